"""Everything andon reads from the machine: processes, the home folder, the latch.

Modules here import the standard library and the pure core only, because every stop command
imports them.
"""

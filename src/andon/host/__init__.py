"""The machine, read in one place: processes, the home folder, the latch.

The standard library and the pure core only; every stop command imports it.
"""

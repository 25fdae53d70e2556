"""What may happen: states, transitions, plans and verdicts.

Pure: no I/O, no clock, no randomness, no await. Time and chance come in as arguments.
"""

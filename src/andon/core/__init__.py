"""The rules: states, transitions, plans and verdicts.

Everything here is pure: no I/O, no clock, no randomness, no await. The current time and random
numbers come in as arguments.
"""

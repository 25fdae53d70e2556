"""Runs: start, list and show them; their input, errors, waits, children and output.

Rules about states live in core and runtime.
"""

"""Runs: start, list, show, wait; their errors, children and output."""

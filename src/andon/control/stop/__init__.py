"""Stops of runs: finding the target, giving the order, its proof, its receipt, and resuming.

A stop counts as done only when every target of its order is proved.
"""

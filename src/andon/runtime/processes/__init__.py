"""Processes that runs start: steps in processes of their own, and attribution to runs.

A process belongs to its run from its first instruction on, so that a stop can find and end it.
"""

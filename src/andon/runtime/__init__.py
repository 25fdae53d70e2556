"""Runs inside the agent's process: agents, their context, and the worker that executes them.

`runtime` and `supervisor` never import each other.
"""

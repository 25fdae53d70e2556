"""The worker: it claims runs, executes them, obeys stop orders, drains and watches its peers.

Shutdown triggers and health probes see it only through `view`.
"""

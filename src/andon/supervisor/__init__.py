"""The supervisor: the process outside the agent that starts, owns, watches and ends agents.

It imports only the standard library and the parts of `andon.core` that need no more. It has one
thread and no event loop but `poll`. So the guaranteed stop shares no dependencies with the
processes that it stops, and does not fail with them.
"""

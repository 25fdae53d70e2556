"""Outside the agent: the process that starts, owns, watches and ends agent processes.

Only the standard library and the parts of `andon.core` that need no more; one thread, no event
loop but `poll`: the guaranteed stop shares neither dependencies nor fate with what it stops.
"""

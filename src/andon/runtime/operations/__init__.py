"""Operations of agent code on its context: steps, asks, child runs, model and tool calls.

An operation whose outcome is in the journal gets that outcome on replay and executes nothing.
"""

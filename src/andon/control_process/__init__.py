"""The supervisor's companion: the only process beside it that speaks with the store."""

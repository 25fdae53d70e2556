"""Group commit: one writer per process takes what is queued and commits it together."""

"""Group commit: one writer per process commits all queued messages together."""

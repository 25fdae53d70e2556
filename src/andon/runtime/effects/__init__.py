"""Effects: declared, executed once, resolved when in doubt, undone."""

"""`andon halt`: the command, and how a supervisor carries it out. No store needed."""

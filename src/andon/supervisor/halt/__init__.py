"""`andon halt`: the command, and how a supervisor carries it out without needing the store."""

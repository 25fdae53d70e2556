"""The processes that a supervisor owns: how it starts, watches, logs and restarts them."""

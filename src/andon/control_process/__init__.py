"""control_process."""

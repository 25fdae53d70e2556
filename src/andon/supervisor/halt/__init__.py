"""halt."""

"""What agent code calls on its context: steps, asks, children, model and tool calls."""

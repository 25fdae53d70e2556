"""Inside the agent's process: agents, their context, the worker that executes them."""

"""A worker: claims runs, executes them, obeys orders, drains, watches its peers."""

"""A simulated fleet: the real core, runtime and SQL on virtual time, one callback at a time."""

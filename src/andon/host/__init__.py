"""The machine, read in one place; the standard library only, below everything else."""

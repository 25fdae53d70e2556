"""Process trees that are killed and frozen as a whole, one file per kernel mechanism."""

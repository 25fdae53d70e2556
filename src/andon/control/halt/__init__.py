"""A halt as the store and its fleet see it."""

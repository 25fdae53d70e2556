"""A halt in the store: the order to the fleet, and its proof.

The command runs this in a separate process: a store that hangs must not delay the halt of the host.
"""

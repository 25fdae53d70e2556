"""The names of orders."""

import os

_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"


def new_order() -> str:
    """The name of a pull or an order, and of its receipt, on every host."""
    return "rcp_" + "".join(_LETTERS[byte & 31] for byte in os.urandom(12))

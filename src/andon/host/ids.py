"""Ids of orders."""

import os

_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"


def new_order() -> str:
    """Return a random id for a pull or an order; its receipt has the same id on every host."""
    return "rcp_" + "".join(_LETTERS[byte & 31] for byte in os.urandom(12))

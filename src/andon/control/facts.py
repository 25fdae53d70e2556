"""Copies fields of rows into the plain values that control returns."""

from typing import Any


def facts(row: object, names: str) -> dict[str, Any]:
    """The fields with these names, separated by spaces, in that order."""
    return {name: getattr(row, name) for name in names.split()}

"""Imports psycopg, which is an extra: users of SQLite need not install it."""

from __future__ import annotations

from andon.errors import StoreError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def driver() -> Any:
    """Return the module psycopg; raise StoreError if it, or the library it needs, is missing."""
    try:
        import psycopg
    except ImportError as missing:
        why = str(missing).strip().partition("\n")[0].rstrip(".:")
        raise StoreError(
            f"PostgreSQL needs the driver psycopg 3, found: {why}. "
            "Run: pip install 'andon[postgres]'"
        ) from None
    if not hasattr(psycopg, "Connection"):  # a folder of that name, not the package
        raise StoreError(
            f"PostgreSQL needs the driver psycopg 3, found {list(psycopg.__path__)}, which is not "
            "it. Run: pip install 'andon[postgres]'"
        )
    return psycopg

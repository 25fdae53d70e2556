"""What is remembered: SQLite by default, PostgreSQL when one machine is not enough."""

from pathlib import Path
from typing import Any

from andon.errors import BadInput


def open_store(url: str, *, create: bool = True) -> Any:
    """The store that `url` names: sqlite:///path or postgresql://…"""
    scheme, _, rest = url.partition("://")
    path = sqlite_path(url)
    if path is not None:
        from andon.store.sqlite import SqliteStore

        return SqliteStore(path, create=create)
    if scheme in ("postgresql", "postgres") and rest:
        from andon.store.postgres import PostgresStore

        return PostgresStore(url)
    raise BadInput(
        f"store {url!r}: expected sqlite:///path/to/file or postgresql://user@host/database"
    )


def sqlite_path(url: str) -> Path | None:
    """The file of an SQLite store; None if `url` names no such store."""
    scheme, _, rest = url.partition("://")
    return _path(rest[1:]) if scheme == "sqlite" and rest.startswith("/") and rest[1:] else None


def absolute(url: str) -> str:
    """The same store, as it is called in every folder."""
    path = sqlite_path(url)
    return url if path is None else f"sqlite:///{path.absolute()}"


def _path(text: str) -> Path:
    """sqlite:///relative and sqlite:////absolute, as everywhere else.

    sqlite:///tmp/x.db is meant absolutely by everybody who writes it in a hurry: it is taken so
    when the folder exists there and not here.
    """
    path, absolute = Path(text), Path("/", text)
    return path if path.parent.is_dir() or not absolute.parent.is_dir() else absolute

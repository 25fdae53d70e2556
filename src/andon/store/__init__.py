"""Durable storage: SQLite by default, PostgreSQL when one machine is not enough."""

from __future__ import annotations

import os

from andon.errors import BadInput

TYPE_CHECKING = False  # pathlib and typing would double the imports of a stop command
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any


def open_store(
    url: str,
    *,
    create: bool = True,
    look: str = "",
    lean: bool = False,
    reserved: bool = False,
) -> Any:
    """Open the store that `url` names: sqlite:///path or postgresql://…

    `look`: the caller only reads, either `once` or for `long`; the store may then be read-only.
    `lean`: use as few server connections as possible. `reserved`: the caller is a short command
    and may use the connections that long-running processes leave free.
    """
    scheme, _, rest = url.partition("://")
    file = sqlite_file(url)
    if file is not None:
        if look:
            from andon.store.sqlite import read_only

            if read_only.is_called_for(file, lasts=look == "long"):
                return read_only.SqliteView(file)
        from andon.store.sqlite.store import SqliteStore

        return SqliteStore(file, create=create)
    if scheme in ("postgresql", "postgres") and rest:
        from andon.store.postgres.driver import driver

        driver()
        from andon.store.postgres.store import PostgresStore

        return PostgresStore(url, look=bool(look), lean=lean, reserved=reserved)
    raise BadInput(
        f"store {url!r}: expected sqlite:///path/to/file or postgresql://user@host/database"
    )


def sqlite_path(url: str) -> Path | None:
    """Return the file of an SQLite store, or None if `url` names another kind of store."""
    from pathlib import Path

    file = sqlite_file(url)
    return None if file is None else Path(file)


def sqlite_file(url: str) -> str | None:
    """Like `sqlite_path`, but returns a string and does not import pathlib."""
    scheme, _, rest = url.partition("://")
    return _file(rest[1:]) if scheme == "sqlite" and rest.startswith("/") and rest[1:] else None


def absolute(url: str) -> str:
    """Return a URL for the same store that does not depend on the working directory."""
    file = sqlite_file(url)
    return url if file is None else f"sqlite:///{from_root(file)}"


def from_root(file: str | os.PathLike[str]) -> str:
    """Return the absolute path of a file. It follows no links, so `..` stays."""
    path = os.fspath(file)
    path = path if os.path.isabs(path) else os.path.join(os.getcwd(), path)
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def _file(text: str) -> str:
    """Resolve sqlite:///relative and sqlite:////absolute, as other tools do.

    People who write sqlite:///tmp/x.db in a hurry mean the absolute path, so the path is taken as
    absolute when its folder exists at the root and not in the working directory.
    """
    absolute = os.path.join("/", text)
    here, there = os.path.dirname(text) or ".", os.path.dirname(absolute)
    return text if os.path.isdir(here) or not os.path.isdir(there) else absolute

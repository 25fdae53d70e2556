"""What is remembered: SQLite by default, PostgreSQL when one machine is not enough."""

from __future__ import annotations

import os

from andon.errors import BadInput

TYPE_CHECKING = False  # pathlib and typing would double what a stop command has to import
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
    """The store that `url` names: sqlite:///path or postgresql://…

    With `look` it is only read, `once` or for `long`, and may be one that cannot be written.
    `lean`: with as few connections to a server as possible. `reserved`: of a command that is over
    soon: it may take one of the places that processes that last leave free.
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
    """The file of an SQLite store; None if `url` names no such store."""
    from pathlib import Path

    file = sqlite_file(url)
    return None if file is None else Path(file)


def sqlite_file(url: str) -> str | None:
    """The same, without the wait for pathlib."""
    scheme, _, rest = url.partition("://")
    return _file(rest[1:]) if scheme == "sqlite" and rest.startswith("/") and rest[1:] else None


def absolute(url: str) -> str:
    """The same store, as it is called in every folder."""
    file = sqlite_file(url)
    return url if file is None else f"sqlite:///{from_root(file)}"


def from_root(file: str | os.PathLike[str]) -> str:
    """The file as it is called in every folder. No link is followed: `..` stays."""
    path = os.fspath(file)
    path = path if os.path.isabs(path) else os.path.join(os.getcwd(), path)
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def _file(text: str) -> str:
    """sqlite:///relative and sqlite:////absolute, as everywhere else.

    sqlite:///tmp/x.db is meant absolutely by everybody who writes it in a hurry: it is taken so
    when the folder exists there and not here.
    """
    absolute = os.path.join("/", text)
    here, there = os.path.dirname(text) or ".", os.path.dirname(absolute)
    return text if os.path.isdir(here) or not os.path.isdir(there) else absolute

"""Translates errors of SQLite and of its files into andon's."""

from __future__ import annotations

import contextlib
import os

import apsw

from andon.errors import AndonError, BadInput, StoreError, StoreUnavailable
from andon.store.sql.runs import NUL

TYPE_CHECKING = False  # commands must not pay for imports they do not need
if TYPE_CHECKING:
    from collections.abc import Iterator

    File = str | os.PathLike[str]

# How long a write waits for other processes' writes, which take milliseconds.
BUSY_SECONDS = 20.0
# Errors with which one message may spoil the batch it shares: errors of the database, text or
# numbers that cannot be passed to it at all, and stored text that no longer decodes.
SPOILED = (apsw.Error, UnicodeError, OverflowError)


@contextlib.contextmanager
def translated(path: File) -> Iterator[None]:
    try:
        yield
    except SPOILED as error:
        raise translate(error, path) from error
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be written: {error}. Check its owner and mode."
        ) from error


def translate(error: Exception, path: File) -> AndonError:  # noqa: PLR0911 (a table)
    match error:
        case AndonError():
            return error
        case UnicodeEncodeError(reason=reason):
            return BadInput(reason if reason == NUL else f"the text is not Unicode: {error}")
        case OverflowError():
            return BadInput(f"a number is too large for the database: {error}")
        case apsw.FullError():
            return StoreUnavailable(
                f"{path}: the disk is full; nothing was written. Free some space, and andon "
                "continues."
            )
        case apsw.BusyError() | apsw.LockedError():
            return StoreUnavailable(
                f"{path}: another process has held the write lock for over {BUSY_SECONDS:.0f} s. "
                "Look for a stopped process that uses this file."
            )
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            return StoreError(f"{path}: the file is read-only. Make it and its folder writable.")
        case apsw.NotADBError():
            return StoreError(f"{path}: is not an SQLite database. Choose another file.")
        case apsw.CorruptError() | UnicodeDecodeError():
            return StoreError(f"{path}: the file is damaged ({error}). Restore it from a backup.")
        case apsw.CantOpenError():
            return StoreUnavailable(
                f"{path}: cannot be opened. Check that its folder exists and that you may write "
                "to it."
            )
        case _:
            return StoreError(f"{path}: {type(error).__name__}: {error}")

"""Checks on the file of an SQLite store: safe SQLite, safe file system, private permissions."""

from __future__ import annotations

import contextlib
import os

import apsw

from andon.errors import BadInput, StoreError

TYPE_CHECKING = False  # commands must not pay for imports they do not need
if TYPE_CHECKING:
    File = str | os.PathLike[str]

# 3.7.0 to 3.51.2 can corrupt a database when two connections reset the WAL at once.
SAFE_VERSION = (3, 51, 3)
# File systems whose locks do not work as SQLite needs them to.
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "fuse.sshfs", "glusterfs"}
)


def file_system(path: File) -> str:
    """Return the kernel's name for the type of file system that holds `path`; '' if unknown."""
    best, kind = "", ""
    with contextlib.suppress(OSError), open("/proc/mounts", encoding="utf-8") as mounts:
        for line in mounts:
            mount, found = line.split()[1:3]
            mount = mount.replace("\\040", " ")
            inside = str(path) == mount or str(path).startswith(mount.rstrip("/") + "/")
            if inside and len(mount) >= len(best):
                best, kind = mount, found
    return kind


def refuse_unsafe(
    path: File, *, create: bool, version: str | None = None, kind: str | None = None
) -> None:
    """Refuse setups that would lose data later, before anything is written."""
    version = version or apsw.sqlite_lib_version()
    if tuple(int(part) for part in version.split(".")) < SAFE_VERSION:
        raise StoreError(
            f"SQLite {version} can corrupt a database in WAL mode; expected 3.51.3 or newer. "
            "Upgrade apsw: pip install -U apsw"
        )
    kind = kind if kind is not None else file_system(path)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreError(
            f"{path}: is on a network file system ({kind}), where SQLite's locks are not safe. "
            "Use a local disk, or PostgreSQL: ANDON_STORE=postgresql://…"
        )
    if os.path.isdir(path):
        raise BadInput(f"{path}: expected a file, found a folder")
    if not os.path.exists(path) and not create:
        raise StoreError(
            f"{path}: there is no database. Start a worker or a run first, or set ANDON_STORE."
        )


def why_unwritable(path: File) -> str:
    """Return why an existing file, or the files SQLite needs beside it, cannot be written."""
    path = os.fspath(path)
    beside = [path + "-wal", path + "-shm"]
    for one in (path, *filter(os.path.exists, beside)):
        if not os.access(one, os.W_OK, effective_ids=True):
            which = "the file" if one == path else f"its {one.rpartition('-')[2]} file"
            return f"{which} is read-only here{_owner(one)}"
    folder = os.path.dirname(path) or "."
    if not all(map(os.path.exists, beside)) and not os.access(folder, os.W_OK, effective_ids=True):
        return f"its folder is read-only here{_owner(folder)}"
    return ""


def _owner(path: str) -> str:
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return " (a read-only file system)"
    owner = os.stat(path).st_uid
    return f" (it belongs to user {owner})" if owner != os.geteuid() else " (by its mode)"


def refuse_unwritable(path: File) -> None:
    """Refuse an unwritable file up front: the system's errors would not say what still works."""
    why = why_unwritable(path) if os.path.isfile(path) else ""
    if why:
        raise StoreError(
            f"{path}: {why}, and this command has to write to it. It can be looked at: andon ps, "
            "show, logs, events, receipts, verify."
        )


def make_private(path: File) -> None:
    """Create the file so that other users cannot read the inputs of runs.

    SQLite gives its other files the same permissions.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

"""Processes, memory and bytes, as reported by the operating system and the database."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path


def kill(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def sqlite_bytes(path: Path) -> int:
    """The size of the file, once its log has been checkpointed."""
    # In a program of its own: two SQLite libraries in one process undo each other's locks.
    move = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute(sys.argv[2]).fetchall()"
    given = [str(path), "PRAGMA wal_checkpoint(TRUNCATE)"]
    subprocess.run([sys.executable, "-c", move, *given], check=True)
    return path.stat().st_size


def postgres_bytes(url: str) -> int:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    return int(row[0]) if row else 0

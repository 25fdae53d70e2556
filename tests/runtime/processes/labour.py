"""Functions that other processes execute for tests/runtime/processes/test_step_process.py."""

import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Point:
    """A value that is not plain JSON."""

    x: int
    y: int


def add(one: int, other: int = 0) -> int:
    return one + other


def pid_and_session() -> list[int]:
    return [os.getpid(), os.getsid(0)]


def leave_thread() -> int:
    """Start a thread that would outlive its step."""
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    return os.getpid()


def mirror(point: Point) -> Point:
    assert isinstance(point, Point)
    return Point(point.y, point.x)


def fail(message: str) -> None:
    raise KeyError(message)


def unstorable() -> object:
    return object()


def leave() -> None:
    sys.exit(3)


def die() -> None:
    os._exit(7)


def spin(folder: str) -> None:
    """Neither cancellation nor SIGTERM ends this, and it has a child."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(folder, "pids.part").write_text(f"{os.getpid()} {child.pid}")
    Path(folder, "pids.part").rename(Path(folder, "pids"))
    while True:
        time.perf_counter()


def big(size: int) -> str:
    return "x" * size


class Tool:
    """Functions of a class are found by their qualified names too."""

    @staticmethod
    def use(what: str) -> str:
        return f"used {what}"

    def bound(self) -> None:
        """Cannot be found by its name: it needs its object."""

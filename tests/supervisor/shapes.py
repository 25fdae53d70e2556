"""Children that behave and children that do not: `python shapes.py SHAPE`."""

import os
import signal
import sys
import time


def ready() -> None:
    os.close(os.open(os.environ["READY"] + f".{os.getpid()}", os.O_CREAT | os.O_WRONLY))


def sleep() -> None:
    ready()
    while True:
        time.sleep(60)


def cooperative() -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    sleep()


def stubborn() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sleep()


def swallows() -> None:
    def swallow(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, swallow)
    ready()
    while True:
        try:
            time.sleep(60)
        except BaseException:  # noqa: BLE001
            continue


def escapes() -> None:
    """A grandchild in a session of its own whose parent is gone."""
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        stubborn()
    os.wait()
    stubborn()


def orphan() -> None:
    """The same, and then ends."""
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        stubborn()
    os.wait()
    mine = os.environ["READY"]
    while not any(
        name.startswith(os.path.basename(mine)) for name in os.listdir(os.path.dirname(mine))
    ):
        time.sleep(0.005)
    os._exit(5)


def storm() -> None:
    """Never the same process for longer than some milliseconds."""
    for _ in range(4):
        if os.fork() == 0:
            os.setsid()
            while True:
                if os.fork():
                    os._exit(0)
                time.sleep(0.003)
    sleep()


def survives() -> None:
    """Clears its parent-death signal."""
    import ctypes

    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
    stubborn()


def pings(spin_after: int = 10**9, count: bool = True) -> None:
    fd, tick = int(os.environ["ANDON_PING_FD"]), 0
    ready()
    while True:
        tick += 1
        said = min(tick, spin_after) if count else 1
        os.write(fd, b'{"tick": %d, "steps": 0, "runs": {}}\n' % said)
        time.sleep(0.02)


def spins() -> None:
    """A thread that sends pings for an event loop that is stuck."""
    pings(spin_after=5)


def mute() -> None:
    os.close(int(os.environ["ANDON_PING_FD"]))
    sleep()


def floods() -> None:
    fd = int(os.environ["ANDON_PING_FD"])
    ready()
    while True:
        os.write(fd, b"x" * 4096)


def fails() -> None:
    os._exit(7)


def prints() -> None:
    """Prints a lot, then a last line."""
    ready()
    for _ in range(int(os.environ.get("LINES", "1000"))):
        os.write(1, b"y" * 1023 + b"\n")
    os.write(1, b"the last line\n")


if __name__ == "__main__":
    globals()[sys.argv[1]]()

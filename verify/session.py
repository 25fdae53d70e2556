"""Runs the command in a session of its own: an interrupt leaves no process behind.

Layers start processes that start others, freeze them and kill their parents. A terminal's Ctrl-C
would reach all of them at once, and a layer that cleans up would find its helpers gone. So only the
command receives it. The command passes it to the layer, which cleans up after itself; then the
command ends the processes that are left.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import NoReturn

from andon.host import proc, syscalls

INTERRUPTED = 130  # as shells call it
# A layer waits for the trials under way; a database's watcher looks every now and then.
CLEAN_UP_SECONDS = 60
LEAVE_SECONDS = 20.0


def apart(play: Callable[[], int]) -> int:
    """The result of `play`, in a process of its own. A second interrupt kills it."""
    syscalls.become_subreaper()
    own = os.getpid()
    layers = os.fork()
    if layers == 0:
        os.setsid()
        syscalls.die_with_parent(signal.SIGTERM)
        signal.signal(signal.SIGTERM, _interrupt)
        if os.getppid() != own:
            os._exit(INTERRUPTED)
        try:
            return play()
        except KeyboardInterrupt:
            print("interrupted: nothing is written", flush=True)
            return INTERRUPTED
    _pass_on(layers)
    status = _wait_for(layers)
    _end_the_rest()
    return status if status >= 0 else INTERRUPTED


def _interrupt(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once: the clean-up must not be interrupted
    raise KeyboardInterrupt


def _pass_on(layers: int) -> None:
    told = False

    def tell(number: int, _: object) -> None:
        nonlocal told
        again = told or number == signal.SIGALRM
        told = True
        signal.alarm(CLEAN_UP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.kill(layers, signal.SIGKILL if again else signal.SIGTERM)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, tell)


def _wait_for(layers: int) -> int:
    """Return its exit status. Orphans become our children, and are reaped at once."""
    while True:
        pid, status = os.wait()
        if pid == layers:
            return os.waitstatus_to_exitcode(status)


def _end_the_rest() -> None:
    end = time.monotonic() + LEAVE_SECONDS
    while rest := list(proc.descendants([os.getpid()])):
        for pid in rest if time.monotonic() > end else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)

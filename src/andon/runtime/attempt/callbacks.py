"""Leftovers of a run on its event loop: callbacks, and tasks that andon does not follow.

A callback (a timer, a reader, `call_soon`) belongs to the run in whose context it was scheduled.
A callback scheduled from a thread, or with `context=`, may have no run's context. Such a callback,
a task created without the loop's task factory and a signal timer belong to the attempt if it had
the worker to itself. If other runs executed beside it, they are named and nothing is proven. If
andon is embedded in another program, they belong to that program.

Callbacks of asyncio and andon reach a run's code only through its tasks, which are known.
"""

import asyncio
import functools
import signal
from collections.abc import Iterator
from typing import Any

from andon.runtime.attempt import branch

# A server that a run has started: it would call the run's code for each connection.
_ACCEPTS = "_accept_connection"
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


def end(loop: Any, tasks: branch.Tasks, *, own: bool, alone: bool) -> list[str]:
    """Cancel what an attempt left behind; return names for people. Look again if there are any.

    `own`: the process is an andon worker and nothing else. `alone`: no other attempt executed here.
    """
    found = []
    for handle, cancel in _handles(loop):
        owner = branch.owner_in(handle._context)  # noqa: SLF001
        if owner is tasks or (owner is None and own):
            found.append(f"callback {_name(handle._callback)}")  # noqa: SLF001
            if owner is tasks or alone:
                cancel()
    if own:
        for task in _unfollowed(loop):
            found.append(f"task {task.get_name()}")
            if alone:
                task.cancel()
        for which in _TIMERS:
            if signal.getitimer(which)[0]:
                found.append("a timer of signals")
                if alone:
                    signal.setitimer(which, 0)
    return found


def _handles(loop: Any) -> Iterator[tuple[Any, Any]]:
    """Callbacks of runs that are due or wait for a timer or a file, and how to cancel each."""
    # uvloop shows none of these.
    for handle in (*getattr(loop, "_scheduled", ()), *getattr(loop, "_ready", ())):
        if not handle.cancelled() and branch.is_users(handle._callback):  # noqa: SLF001
            yield handle, handle.cancel
    selector = getattr(loop, "_selector", None)
    for key in list(selector.get_map().values()) if selector is not None else ():
        ways = (loop.remove_reader, loop.remove_writer)
        for handle, remove in zip(key.data or (), ways, strict=False):
            if handle is not None and _is_served(handle._callback):  # noqa: SLF001
                yield handle, functools.partial(remove, key.fd)


def _is_served(callback: Any) -> bool:
    return branch.is_users(callback) or getattr(callback, "__name__", "") == _ACCEPTS


def _name(callback: Any) -> str:
    return str(getattr(callback, "__qualname__", type(callback).__qualname__))


def _unfollowed(loop: Any) -> Iterator["asyncio.Task[Any]"]:
    followed = branch.all_followed() | {asyncio.current_task(loop)}
    for task in asyncio.all_tasks(loop):
        frame = getattr(task.get_coro(), "cr_frame", None)
        module = "" if frame is None else frame.f_globals.get("__name__", "")
        if task not in followed and branch.is_users_module(module):
            yield task

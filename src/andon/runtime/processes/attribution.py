"""Attributes each process and thread that agent code starts to its run.

A process is marked before it executes anything (`core/mark.py`). These hooks cover the ways of
Python: subprocess and asyncio's, os.fork and what builds on it, posix_spawn, os.system, and uvloop,
which calls the hooks of a fork. Native code that forks by itself bypasses them: its process carries
the worker's mark if the worker has one, and otherwise none.

A thread cannot be ended. It is recorded with its run, so that the worker never reports that nothing
of a run executes while a thread that the run started does.
"""

import _thread
import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import thread as pool
from typing import Any

from andon.core import mark as marks
from andon.host import mark as host
from andon.host import proc
from andon.host.remains import LOOK_SECONDS, Remains
from andon.runtime.attempt import branch

# Time between SIGTERM and SIGKILL.
TERM_SECONDS = 0.2
# Killed processes are gone long before; a process stuck in the kernel is not waited for.
GONE_SECONDS = 2.0

# Modules of other thread classes whose threads do work for any run.
_POOLS = frozenset({"anyio._backends._asyncio"})
_numbers = itertools.count(1)  # numbers this process's attempts that have started something
_open: set["StartedProcesses"] = set()  # of the attempts that this process executes
own: set[int] = set()  # processes that andon itself has started here
_here = threading.local()  # .starter: the run and operation whose function this thread executes
_installed = False
_start_new_thread = _thread.start_new_thread


class StartedProcesses:
    """The processes and threads that one attempt has started outside the event loop."""

    def __init__(self, new_mark: Callable[[], int], note: Callable[[], None]) -> None:
        self.mark: int | None = None  # set with the first process
        self.alone = not _open  # no other attempt has executed in this process meanwhile
        for other in _open:
            other.alone = False
        _open.add(self)
        self._since = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
        self._new_mark, self._note = new_mark, note
        self._operations: dict[Any, int] = {}
        self._threads: list[threading.Thread | _LowThread] = []
        self._lock = threading.RLock()

    def mark_for(self, operation: Any) -> int:
        """Record, then return, the mark for a process about to start. Safe from any thread."""
        with self._lock:
            if self.mark is None:
                self.mark = self._new_mark()
                try:
                    self._note()
                except BaseException:
                    self.mark = None
                    raise
            mark = self.mark
            if operation is not None:
                place = operation.place
                number = self._operations.setdefault(place, len(self._operations) + 1)
                mark = marks.of_operation(self.mark, number)
        return mark

    def any_mark(self) -> int:
        """Return the attempt's mark, even if no process has carried it yet."""
        with self._lock:
            self.mark = self._new_mark() if self.mark is None else self.mark
            return self.mark

    def mark_of(self, operation: Any) -> int | None:
        """Return the mark of an operation's processes, or None if it has started none."""
        number = self._operations.get(operation.place)
        return (
            None if number is None or self.mark is None else marks.of_operation(self.mark, number)
        )

    def add_thread(self, thread: "threading.Thread | _LowThread") -> None:
        with self._lock:
            self._threads = [one for one in self._threads if one.is_alive()]
            self._threads.append(thread)

    def close(self) -> None:
        """Note that the attempt is over."""
        _open.discard(self)

    def dissolve(self) -> None:
        """Drop references: no code of the attempt executes, so it can start nothing more."""
        self._note, self._operations = _nothing, {}

    @property
    def threads(self) -> list[str]:
        """Names of the attempt's threads that still execute."""
        return [one.name for one in self._threads if one.is_alive()]

    def remains(self, operation: Any = None) -> Remains | None:
        """The processes of the attempt, or of one operation; None if there were none."""
        mark = self.mark if operation is None else self.mark_of(operation)
        return None if mark is None else Remains(matches=lambda found: marks.belongs(found, mark))

    def strays(self) -> Remains:
        """Processes that native code has started past these hooks during the attempt.

        They carry the mark of the worker's own process and of no attempt. andon's own are left out.
        """
        found: list[int] = []
        process = getattr(self._new_mark, "process", 0)
        if process:
            host.carriers(lambda one: one == process, found.append)
        ticks = {pid: proc.start_ticks(pid) for pid in found if pid not in own}
        strays = Remains()
        for pid, start in ticks.items():
            if start >= self._since:
                strays.add(pid)
        return strays

    def claim_strays(self) -> bool:
        """Mark the processes native code has started, so that a stop finds them while the run
        waits.

        False if there is one that cannot be told from another run's.
        """
        if not host.has_children():
            return True
        strays = self.strays()
        if strays.look() and self.alone:
            mark = self.mark_for(None)
            for pid in strays.survivors:
                host.put_on(pid, mark)
            strays = self.strays()
        return not strays.look()

    def end_of(self, operation: Any) -> bool:
        """Kill an operation's processes at once; return whether none is left."""
        remains = self.remains(operation)
        return remains is None or remains.end(GONE_SECONDS)


def _nothing() -> None:
    pass


async def end(remains: Remains, *, at_once: bool) -> str:
    """Terminate processes, kill those that remain, and return their names for people.

    Returns "" if there were none. Raises TimeoutError if some cannot be ended.
    """
    begin = time.monotonic()
    patient = not at_once
    terminated: set[int] = set()
    while remains.look() or not remains.strike():
        spent = time.monotonic() - begin
        if spent > TERM_SECONDS + GONE_SECONDS:
            raise TimeoutError(f"still alive: {remains.named(remains.survivors)}")
        patient = patient and spent < TERM_SECONDS
        if not patient:
            remains.strike()
        elif set(remains.survivors) - terminated:
            terminated.update(remains.survivors)
            remains.strike(signal.SIGTERM)
        await asyncio.sleep(LOOK_SECONDS)
    return remains.named(sorted(remains.known))


class _Marks:
    """Makes the marks of attempts."""

    def __init__(self, process: int, put: int) -> None:
        self._process = process
        self.process = put  # the process's own mark; 0 if it carries none

    def __call__(self) -> int:
        return marks.of_attempt(self._process, next(_numbers))


def marks_of(process: int, *, put: bool) -> Callable[[], int]:
    """Return a source of new marks for the attempts of a worker in this process.

    `put`: also mark this process, and with it everything it starts by whatever means. A process
    that a run has started keeps that run's mark instead.
    """
    if put and not marks.is_mark(host.own()):
        host.put(process)
    return _Marks(process, process if host.own() == process else 0)


def _starter() -> tuple[Any, Any] | None:
    """The tasks of the attempt whose code executes here, and the operation if it is inside one."""
    operation, here = branch.inside.get(), branch.current.get()
    found: tuple[Any, Any] | None
    if operation is not None:
        found = operation.attempt.tasks, operation
    elif here is not None:
        found = here.owner, None
    else:
        found = getattr(_here, "starter", None)
    return None if found is None or found[0].started is None else found


def mark_here() -> int | None:
    """The mark for processes started by the code that executes here; None outside of runs."""
    found = _starter()
    if found is None:
        return None
    mark: int = found[0].started.mark_for(found[1])
    return mark


def _marked(
    start: Callable[..., Any], place: int, environment: Callable[[Any, int], Any]
) -> Callable[..., Any]:
    """Wrap a function that starts a process, so that the process carries its run's mark.

    `place` is the position of the environment among the function's arguments.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        mark = mark_here()
        if mark is None:
            return start(*args, **kwargs)
        if len(args) > place:
            args = (*args[:place], environment(args[place], mark), *args[place + 1 :])
        before = host.begin(mark)
        try:
            return start(*args, **kwargs)
        finally:
            host.finish(before)

    return call


def _listed(environment: list[bytes] | None, mark: int) -> list[bytes]:
    """Set the mark in a fork_exec environment, where None means this process's own."""
    if environment is None:
        environment = [name + b"=" + value for name, value in os.environb.items()]
    own = f"{host.VARIABLE}=".encode()
    kept = [one for one in environment if not one.startswith(own)]
    return [*kept, own + str(mark).encode()]


def _mapped(environment: Any, mark: int) -> Any:
    kept = {name: environment[name] for name in environment}
    return {**kept, host.VARIABLE: str(mark)}


def _system(command: str | bytes) -> int:
    """Replacement for os.system that restores the limit before the command ends.

    Returns the command's wait status.
    """
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", command], os.environ)
    while True:
        with contextlib.suppress(InterruptedError):
            return os.waitpid(pid, 0)[1]


class _Forks:
    """Hooks for os.fork and everything that calls its hooks, including uvloop's processes."""

    def __init__(self) -> None:
        self._thread = threading.local()  # .before: the limit of this process, during a fork

    def before(self) -> None:
        mark = mark_here()
        self._thread.before = None if mark is None else host.begin(mark)

    def after_in_parent(self) -> None:
        before, self._thread.before = getattr(self._thread, "before", None), None
        if before is not None:
            host.finish(before)

    def after_in_child(self) -> None:
        """Keep the mark in the child, and renew the lock: its holder may not exist there."""
        self._thread.before = None
        host.renew_lock()


def _attribute(thread: threading.Thread) -> None:
    """Record a thread with its run, and pass the run on to what the thread starts itself."""
    starter = _starter()
    if starter is None or _is_of_a_pool(thread):
        return
    run = thread.run

    def attributed() -> None:
        _here.starter = starter
        try:
            run()
        finally:
            del thread.run  # breaks the cycle: the thread would hold itself

    thread.run = attributed  # type: ignore[method-assign]
    starter[0].started.add_thread(thread)


class _LowThread:
    """A thread that was started without `threading`."""

    name = "a thread of _thread"

    def __init__(self) -> None:
        self._alive = True

    def is_alive(self) -> bool:
        return self._alive

    def run(self, starter: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        _here.starter = starter
        try:
            function(*args, **kwargs)
        finally:
            self.ended()

    def ended(self) -> None:
        self._alive = False


def _start_low(function: Callable[..., Any], args: Any, kwargs: Any = None) -> int:
    """Replacement for `_thread.start_new_thread`; `threading` keeps the original."""
    starter = _starter()
    if starter is None:
        return _start_new_thread(function, args, kwargs or {})
    thread = _LowThread()
    starter[0].started.add_thread(thread)
    try:
        return _start_new_thread(thread.run, (starter, function, args, kwargs or {}))
    except RuntimeError:  # no more threads
        thread.ended()
        raise


def _is_of_a_pool(thread: threading.Thread) -> bool:
    """Whether a thread belongs to a pool, which takes work of any run and attributes each item."""
    waits = getattr(pool, "_worker", None)
    return getattr(thread, "_target", None) is waits or type(thread).__module__ in _POOLS


def follow() -> None:
    """Attribute everything started in this process from now on; further calls do nothing."""
    global _installed  # noqa: PLW0603 (the replaced functions are global too)
    if _installed or sys.platform != "linux":
        return
    _installed = True
    import _posixsubprocess

    fork_exec = _marked(_posixsubprocess.fork_exec, 5, _listed)
    _posixsubprocess.fork_exec = fork_exec
    subprocess._fork_exec = fork_exec  # type: ignore[attr-defined]  # noqa: SLF001
    os.posix_spawn = _marked(os.posix_spawn, 2, _mapped)
    os.posix_spawnp = _marked(os.posix_spawnp, 2, _mapped)
    os.system = _system  # type: ignore[assignment]
    forks = _Forks()
    os.register_at_fork(
        before=forks.before,
        after_in_parent=forks.after_in_parent,
        after_in_child=forks.after_in_child,
    )
    start = threading.Thread.start

    def start_attributed(thread: threading.Thread) -> None:
        _attribute(thread)
        start(thread)

    threading.Thread.start = start_attributed  # type: ignore[method-assign, assignment]
    _thread.start_new_thread = _thread.start_new = _start_low
    submit = ThreadPoolExecutor.submit

    def submit_attributed(executor: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        starter = _starter()
        if starter is not None:
            function = starter[0].marked(_on_behalf(starter, function))
        return submit(executor, function, *args, **kwargs)

    ThreadPoolExecutor.submit = submit_attributed  # type: ignore[method-assign]


def _on_behalf(starter: tuple[Any, Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function for a thread of a pool: what it starts there belongs to the starter."""

    def call(*args: Any, **kwargs: Any) -> Any:
        before = getattr(_here, "starter", None)
        _here.starter = starter
        try:
            return function(*args, **kwargs)
        finally:
            _here.starter = before

    return call


class Pool(ThreadPoolExecutor):
    """The worker's thread pool; the worker itself tracks whose function each thread executes."""

    submit = ThreadPoolExecutor.submit

"""Processes and threads that agent code starts: each is attributed to its run when it starts.

A process is marked before it executes anything (`core/mark.py`). The ways of Python lead through
here: subprocess and asyncio's, os.fork and what builds on it, posix_spawn, os.system, and uvloop,
which calls the hooks of a fork. Native code that forks by itself does not: its process has the mark
of the worker, if the worker has one, and else none.

A thread cannot be ended. It is remembered with its run, so that nobody says of a run that nothing
of it executes while a thread that it has started does.
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

# What is told to end by SIGTERM has so long, and is killed then.
TERM_SECONDS = 0.2
# What was killed is gone long before; a process that the kernel holds is not waited for.
GONE_SECONDS = 2.0

# Modules of other thread classes that do work of anybody.
_POOLS = frozenset({"anyio._backends._asyncio"})
_numbers = itertools.count(1)  # of the attempts of this process that have started something
_open: set["Started"] = set()  # of the attempts that this process executes
own: set[int] = set()  # processes that andon itself has started here
_here = threading.local()  # .starter: whose function this thread executes
_installed = False
_start_new_thread = _thread.start_new_thread


class Started:
    """What one attempt has started outside the event loop."""

    def __init__(self, new_mark: Callable[[], int], note: Callable[[], None]) -> None:
        self.mark: int | None = None  # once there is a first process
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
        """The mark of what is started now, after that was noted. From any thread."""
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
        """Its mark, also if nothing has carried it yet."""
        with self._lock:
            self.mark = self._new_mark() if self.mark is None else self.mark
            return self.mark

    def mark_of(self, operation: Any) -> int | None:
        """The mark of what an operation has started, if it has started anything."""
        number = self._operations.get(operation.place)
        return (
            None if number is None or self.mark is None else marks.of_operation(self.mark, number)
        )

    def add_thread(self, thread: "threading.Thread | _LowThread") -> None:
        with self._lock:
            self._threads = [one for one in self._threads if one.is_alive()]
            self._threads.append(thread)

    def close(self) -> None:
        """The attempt is over."""
        _open.discard(self)

    def dissolve(self) -> None:
        """Nothing of the attempt's code executes: it starts nothing more."""
        self._note, self._operations = _nothing, {}

    @property
    def threads(self) -> list[str]:
        """The names of its threads that go on."""
        return [one.name for one in self._threads if one.is_alive()]

    def remains(self, operation: Any = None) -> Remains | None:
        """Its processes, or those of one operation; None if there were none."""
        mark = self.mark if operation is None else self.mark_of(operation)
        return None if mark is None else Remains(matches=lambda found: marks.belongs(found, mark))

    def strays(self) -> Remains:
        """Processes that were started in its time and past these hooks, by native code.

        They have the mark of a worker's own process, and of no attempt. Those of andon are spared.
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
        """Mark what native code has started, so that a stop finds it while the run waits.

        False if something is there that cannot be told from another run's.
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
        """End at once what an operation has started; whether nothing is left."""
        remains = self.remains(operation)
        return remains is None or remains.end(GONE_SECONDS)


def _nothing() -> None:
    pass


async def end(remains: Remains, *, at_once: bool) -> str:
    """Tell processes to end, kill those that do not; answers their names, for people.

    Empty if there were none. Raises TimeoutError if some cannot be ended.
    """
    begin = time.monotonic()
    patient = not at_once
    told: set[int] = set()
    while remains.look() or not remains.strike():
        spent = time.monotonic() - begin
        if spent > TERM_SECONDS + GONE_SECONDS:
            raise TimeoutError(f"still alive: {remains.named(remains.survivors)}")
        patient = patient and spent < TERM_SECONDS
        if not patient:
            remains.strike()
        elif set(remains.survivors) - told:
            told.update(remains.survivors)
            remains.strike(signal.SIGTERM)
        await asyncio.sleep(LOOK_SECONDS)
    return remains.named(sorted(remains.known))


class _Marks:
    """Makes the marks of attempts."""

    def __init__(self, process: int, put: int) -> None:
        self._process = process
        self.process = put  # the mark of the process itself, if it has it

    def __call__(self) -> int:
        return marks.of_attempt(self._process, next(_numbers))


def marks_of(process: int, *, put: bool) -> Callable[[], int]:
    """New marks for the attempts of a worker in this process.

    `put`: the process is marked too, and so is all that it starts, by whatever means. Not if a run
    has started it: then it is that run's.
    """
    if put and not marks.is_mark(host.own()):
        host.put(process)
    return _Marks(process, process if host.own() == process else 0)


# ── whose it is ───────────────────────────────────────────────────────────────────────────────


def _starter() -> tuple[Any, Any] | None:
    """Whose code executes here: the tasks of an attempt, and the operation, if it is in one."""
    operation = branch.inside.get()
    if operation is not None:
        return operation.attempt.tasks, operation
    here = branch.current.get()
    if here is not None:
        return here.owner, None
    return getattr(_here, "starter", None)


def mark_here() -> int | None:
    """The mark of what the code that executes here starts; None if it is no run's."""
    found = _starter()
    if found is None or found[0].started is None:
        return None
    mark: int = found[0].started.mark_for(found[1])
    return mark


def _marked(
    start: Callable[..., Any], place: int, environment: Callable[[Any, int], Any]
) -> Callable[..., Any]:
    """A function that starts a process, with the mark of the run whose code calls it.

    `place`: of the environment among its arguments.
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
    """As fork_exec wants it: None is that of this process."""
    if environment is None:
        environment = [name + b"=" + value for name, value in os.environb.items()]
    own = f"{host.VARIABLE}=".encode()
    kept = [one for one in environment if not one.startswith(own)]
    return [*kept, own + str(mark).encode()]


def _mapped(environment: Any, mark: int) -> Any:
    kept = {name: environment[name] for name in environment}
    return {**kept, host.VARIABLE: str(mark)}


def _system(command: str | bytes) -> int:
    """os.system, but that the limit is back before the command ends. Answers its wait status."""
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", command], os.environ)
    while True:
        with contextlib.suppress(InterruptedError):
            return os.waitpid(pid, 0)[1]


class _Forks:
    """os.fork, and everything that calls its hooks, uvloop's processes too."""

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
        """The child keeps the mark; a lock that another thread held is nobody's there."""
        self._thread.before = None
        host.renew_lock()


# ── threads ───────────────────────────────────────────────────────────────────────────────────


def _attribute(thread: threading.Thread) -> None:
    """Remember whose thread it is, and let it say so for what it starts itself."""
    starter = _starter()
    if starter is None or starter[0].started is None or _is_of_a_pool(thread):
        return
    run = thread.run

    def attributed() -> None:
        _here.starter = starter
        try:
            run()
        finally:
            del thread.run  # else the thread would hold itself

    thread.run = attributed  # type: ignore[method-assign]
    starter[0].started.add_thread(thread)


class _LowThread:
    """A thread that was started past `threading`."""

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
    """As `_thread.start_new_thread`, which `threading` itself has from before."""
    starter = _starter()
    if starter is None or starter[0].started is None:
        return _start_new_thread(function, args, kwargs or {})
    thread = _LowThread()
    starter[0].started.add_thread(thread)
    try:
        return _start_new_thread(thread.run, (starter, function, args, kwargs or {}))
    except RuntimeError:  # no more threads
        thread.ended()
        raise


def _is_of_a_pool(thread: threading.Thread) -> bool:
    """A thread of a pool waits for work of anybody, and is told whose work it does."""
    waits = getattr(pool, "_worker", None)
    return getattr(thread, "_target", None) is waits or type(thread).__module__ in _POOLS


def follow() -> None:
    """Attribute what is started from here on, in this process, once and for all."""
    global _installed  # noqa: PLW0603 (so are the functions that it replaces)
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
        if starter is not None and starter[0].started is not None:
            function = starter[0].marked(_as(starter, function))
        return submit(executor, function, *args, **kwargs)

    ThreadPoolExecutor.submit = submit_attributed  # type: ignore[method-assign]


def _as(starter: tuple[Any, Any], function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        before = getattr(_here, "starter", None)
        _here.starter = starter
        try:
            return function(*args, **kwargs)
        finally:
            _here.starter = before

    return call


class Pool(ThreadPoolExecutor):
    """The threads of a worker, which knows by itself whose function each of them executes."""

    submit = ThreadPoolExecutor.submit

"""Branches: the chains of awaits in a run's code, by which its operations get their places.

Tasks that agent code creates (gather, TaskGroup, anyio, create_task) are numbered in the order in
which their parent creates them. That order is the program's own and the same on replay, unlike the
order in which they finish. Tasks created inside a step are not the agent's and are not numbered.

This module also decides whether a run does nothing but wait. Such a run is suspended and holds
neither a process nor memory. When that is not certain, the run stays in memory.
"""

import asyncio
import contextvars
import functools
import gc
import inspect
import sys
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

# At this many timers, those that have gone off are dropped.
MOST_TIMERS = 32
# Top-level packages whose callbacks are not a run's code.
_NOBODYS: frozenset[str] = frozenset({"andon", "asyncio", "_asyncio", "concurrent", "builtins", ""})


def is_users(callback: Any) -> bool:
    """Whether a callback is code of a run, or of a library that the run uses."""
    while isinstance(callback, functools.partial):
        callback = callback.func
    return is_users_module(getattr(callback, "__module__", None) or "")


def is_users_module(name: str) -> bool:
    return name.partition(".")[0] not in _NOBODYS


class Branch:
    """One chain of awaits, with the number of its next operation."""

    __slots__ = ("children", "number", "owner", "path")

    def __init__(self, owner: "Tasks", path: str) -> None:
        self.owner, self.path = owner, path
        self.number = 0
        self.children = 0

    def place(self) -> str:
        """The place of the next operation."""
        place = f"{self.path}:{self.number}"
        self.number += 1
        return place

    def child(self) -> "Branch":
        branch = Branch(self.owner, f"{self.path}.{self.children}")
        self.children += 1
        return branch

    def restart(self, path: str) -> None:
        """Count places from a snapshot."""
        self.path, self.number, self.children = path, 0, 0


current: contextvars.ContextVar[Branch | None] = contextvars.ContextVar(
    "andon_branch", default=None
)
# The operation whose function executes here. Inside it no branch is current.
inside: contextvars.ContextVar[Any] = contextvars.ContextVar("andon_inside", default=None)


class Tasks:
    """The living tasks of one attempt."""

    def __init__(self) -> None:
        self.main: asyncio.Task[Any] | None = None  # the agent's own call
        self.living: set[asyncio.Task[Any]] = set()
        self.calls: set[asyncio.Task[Any]] = set()  # calls from a plain agent's threads
        self.waiting: set[Any] = set()  # tasks that wait for a message or a time
        self.queued: set[Any] = set()  # tasks that wait for another branch with the same key
        self.parked: set[Any] = set()  # tasks that wait for their turn in the replay order
        self._at_large: set[asyncio.Task[Any]] = set()  # living tasks that are not parked
        self.timers: list[Any] = []  # set by the agent's own code, e.g. by asyncio.timeout
        self._most_timers = MOST_TIMERS
        self.inner: set[asyncio.Task[Any]] = set()  # tasks that steps and effects have created
        self.executing: set[object] = set()  # one mark per call in a thread or process of the run
        self.on_change: Callable[[], None] = _nothing  # called when a task or operation has ended
        self.on_still: Callable[[], None] = _nothing  # called, from any thread, when a mark is gone
        self.started: Any = None  # processes.attribution.StartedProcesses, of the run
        _attempts.add(self)

    def dissolve(self) -> None:
        self.main = None
        self.on_change = self.on_still = _nothing
        if self.started is not None:
            self.started.dissolve()
        self.timers = []  # each holds its context, which holds the branch it was set in

    def add(self, task: "asyncio.Task[Any]") -> None:
        self.living.add(task)
        self._at_large.add(task)
        task.add_done_callback(self._remove)

    def _remove(self, task: "asyncio.Task[Any]") -> None:
        self.living.discard(task)
        self._at_large.discard(task)
        if not task.cancelled() and not isinstance(task.exception(), Exception | None):
            task.exception()  # Stopped, or a group of it: retrieved, so that asyncio logs nothing
        self.on_change()

    def add_call(self, task: "asyncio.Task[Any]") -> None:
        self.calls.add(task)
        task.add_done_callback(self.calls.discard)

    def add_inner(self, task: "asyncio.Task[Any]") -> None:
        self.inner.add(task)
        task.add_done_callback(self.inner.discard)

    @property
    def all(self) -> "set[asyncio.Task[Any]]":
        return self.living | self.calls

    @property
    def still(self) -> bool:
        """Whether none of the run's code executes any more, as far as this process knows."""
        return not (self.living or self.calls or self.inner or self.executing)

    def ended_elsewhere(self, mark: object) -> None:
        """Remove the mark of a call that ended in a thread or process. Safe from any thread."""
        self.executing.discard(mark)
        self.on_still()

    def marked(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function for a thread, so that it counts as executing while it does."""

        def call(*args: Any) -> Any:
            mark = object()
            self.executing.add(mark)
            try:
                return function(*args)
            finally:
                self.ended_elsewhere(mark)

        return call

    def park(self, task: Any) -> None:
        self.parked.add(task)
        self._at_large.discard(task)

    def unpark(self, task: Any) -> None:
        self.parked.discard(task)
        if task in self.living:
            self._at_large.add(task)

    def any_runs(self) -> bool:
        """Whether some task that is not parked is about to go on."""
        return any(_runs(task) for task in self._at_large)

    def all_wait(self, *, parked: bool = False) -> bool:
        """Whether every task waits durably, or only for tasks that do.

        `parked`: waiting for a turn in the replay order counts as well.
        """
        if self._ticks():
            return False
        waiting = self.waiting | self.queued | (self.parked if parked else set())
        return all(task in waiting or _waits_for_tasks(task, self.living) for task in self.living)

    def add_timer(self, timer: Any) -> None:
        if len(self.timers) >= self._most_timers:
            self._ticks()
            self._most_timers = max(MOST_TIMERS, 2 * len(self.timers))
        self.timers.append(timer)

    def _ticks(self) -> bool:
        """Whether a timer of the run's code is pending.

        If the run were suspended, a timer of the agent would never go off, and a timer of a step
        would go off although nobody executes the run.
        """
        now = asyncio.get_running_loop().time()
        self.timers = [one for one in self.timers if one.when() > now and not one.cancelled()]
        return bool(self.timers)


def _nothing() -> None:
    pass


# The tasks of all attempts in this process; weak, so that it keeps no attempt in memory.
_attempts: "weakref.WeakSet[Tasks]" = weakref.WeakSet()


def all_followed() -> "set[asyncio.Task[Any]]":
    """The living tasks of all attempts."""
    return {task for one in _attempts for task in one.all | one.inner}


def _owner() -> Tasks | None:
    """The attempt whose code executes here: its agent's, or that of one of its operations."""
    return _of(current.get(), inside.get())


def owner_in(context: contextvars.Context) -> Tasks | None:
    """The attempt whose code executes in a context."""
    return _of(context.get(current), context.get(inside))


def _of(here: Branch | None, operation: Any) -> Tasks | None:
    if here is not None:
        return here.owner
    return None if operation is None else operation.attempt.tasks


def follow_timers(loop: Any) -> None:
    """Record the timers that agents set on this loop."""

    def followed(schedule: Callable[..., Any]) -> Callable[..., Any]:
        def call(when: float, callback: Callable[..., object], *args: Any, **options: Any) -> Any:
            timer = schedule(when, callback, *args, **options)
            owner = _owner()
            if owner is not None and (current.get() is not None or is_users(callback)):
                owner.add_timer(timer)
            return timer

        return call

    loop.call_at, loop.call_later = followed(loop.call_at), followed(loop.call_later)


def follow_threads(loop: Any) -> None:
    """Record calls that agents make in threads through this loop: cancelling does not end them."""
    before = loop.run_in_executor

    def run_in_executor(executor: Any, function: Callable[..., Any], *args: Any) -> Any:
        owner = _owner()
        if owner is not None and isinstance(executor, ThreadPoolExecutor | None):
            function = owner.marked(function)
        return before(executor, function, *args)

    loop.run_in_executor = run_in_executor


def call_later(seconds: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
    """Set a timer of andon's own, outside any branch: it does not count as the agent's."""
    here = current.set(None)
    try:
        return asyncio.get_running_loop().call_later(seconds, callback, *args)
    finally:
        current.reset(here)


def follow_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Number the tasks that agents create on this loop; other tasks are created as before."""
    before = loop.get_task_factory()
    if getattr(before, "andon", False):
        return

    def create(
        loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any
    ) -> "asyncio.Task[Any]":
        parent = current.get()
        if parent is None:
            task, owner = _create(before, loop, coro, options), _owner()
            if owner is not None:
                owner.add_inner(task)
            return task
        branch = parent.child()
        context = options.get("context") or contextvars.copy_context()
        context.run(current.set, branch)
        task = _create(before, loop, coro, {**options, "context": context})
        branch.owner.add(task)
        return task

    follow_timers(loop)
    follow_threads(loop)
    create.andon = True  # type: ignore[attr-defined]
    loop.set_task_factory(create)  # type: ignore[arg-type]


def _create(factory: Any, loop: Any, coro: Any, options: dict[str, Any]) -> "asyncio.Task[Any]":
    if factory is None:
        return asyncio.Task(coro, loop=loop, **options)
    task: asyncio.Task[Any] = factory(loop, coro, **options)
    return task


def _waits_for_tasks(task: "asyncio.Task[Any]", living: "set[asyncio.Task[Any]]") -> bool:
    """Whether a task certainly waits for other tasks of the run and for nothing else."""
    if _runs(task):
        return False
    if _is_joined(getattr(task, "_fut_waiter", None), living):
        return True
    frames = _frames(task)
    code = frames[-1].f_code
    if code is _WAIT:
        among = frames[-1].f_locals
        joined = all(_is_joined(one, living) for one in among.get("fs", ()))
        return among.get("timeout") is None and joined
    return code in _joins() or (code is _EVENT and _is_of_framework(task, frames, living))


def _is_of_framework(
    task: "asyncio.Task[Any]", frames: list[Any], living: "set[asyncio.Task[Any]]"
) -> bool:
    """Whether a framework waits for this event, and so sets it in another task of the run."""
    if len(frames) > 1:
        return _caller(frames) in frameworks
    for other in living:  # the wait is a task of its own: find the task that waits for it
        outer = _frames(other)
        if outer[-1].f_code is _WAIT and task in outer[-1].f_locals.get("fs", ()):
            return _caller(outer) in frameworks
    return False


def _caller(frames: list[Any]) -> str:
    """The package whose code waits, looking through asyncio, anyio and contextlib."""
    packages = [frame.f_globals.get("__name__", "").partition(".")[0] for frame in frames]
    return next((name for name in reversed(packages) if name not in _MEANS), "")


def _is_joined(future: Any, living: "set[asyncio.Task[Any]]") -> bool:
    """Whether a future completes with tasks of the run, and depends on nothing else."""
    if future in living or future.done():
        return True
    children = getattr(future, "_children", None)  # asyncio.gather, possibly nested
    return children is not None and all(_is_joined(child, living) for child in children)


def _runs(task: "asyncio.Task[Any]") -> bool:
    """Whether a task that is not running now is about to run."""
    future = getattr(task, "_fut_waiter", None)
    return future is None or bool(future.done())


def _frames(task: "asyncio.Task[Any]") -> list[Any]:
    """The task's frames, innermost last, also through asynchronous generators."""
    found: list[Any] = []
    one: Any = task.get_coro()
    while one is not None:
        frame = getattr(one, "cr_frame", None) or getattr(one, "ag_frame", None)
        if frame is not None:
            found.append(frame)
            one = getattr(one, "cr_await", None) or getattr(one, "ag_await", None)
        else:  # a generator's step has no reference to its generator: ask the collector
            one = next(
                (other for other in gc.get_referents(one) if inspect.isasyncgen(other)), None
            )
    return found or [_NOWHERE]


# The function in which asyncio.wait waits. If Python renames it, runs stay in memory instead.
_WAIT = getattr(getattr(asyncio.tasks, "_wait", None), "__code__", object())
_EVENT = asyncio.Event.wait.__code__
_NOWHERE = SimpleNamespace(f_code=None, f_locals={}, f_globals={})
_MEANS = frozenset({"anyio", "asyncio", "contextlib"})
# Framework packages whose own code waits for events that the same run sets.
frameworks: set[str] = set()


def _joins() -> set[Any]:
    """The code objects in which a task waits for a group of tasks."""
    found = {asyncio.TaskGroup.__aexit__.__code__}
    anyio = sys.modules.get("anyio._backends._asyncio")
    if anyio is not None:
        found.add(anyio.TaskGroup.__aexit__.__code__)
    return found

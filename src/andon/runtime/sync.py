"""Plain threads: the asynchronous objects, called through one portal, with no second version.

A plain agent runs in a thread; its context forwards each call to the event loop and waits. Steps
called from further threads have no order of their own, so they need a key.
"""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from andon.errors import BadInput, Stopped
from andon.runtime.attempt import branch
from andon.runtime.futures import in_new_thread

# Called in the calling thread with the name and keywords of a call; the function it returns is
# called on the loop, just before the call itself.
Prepare = Callable[[str, dict[str, Any]], Callable[[], None]]

# Operations that take a place in the journal, so their order must be one a replay can follow.
_ORDERED = frozenset(
    [
        "step",
        "effect",
        "transaction",
        "child",
        "ask",
        "sleep",
        "event",
        "now",
        "random",
        "uuid",
        "snapshot",
        "model",
        "steered",
    ]
)

# Set wherever a run's code executes, including the threads and tasks that it starts.
_context: contextvars.ContextVar[tuple[Any, Any]] = contextvars.ContextVar(
    "andon_context", default=(None, None)
)


def enter(attempt: Any, context: Any) -> None:
    """Make this the context that `current` and `here` return from now on."""
    _context.set((attempt, context))


def current() -> Any:
    """The context of the run whose code executes here, or None outside of every run.

    For code that a framework calls without handing it a context: a node of a graph, a hook. In a
    thread it is a context whose calls block.
    """
    attempt, context = _context.get()
    if context is None or isinstance(context, Portal) or running_loop() is attempt.loop:
        return context
    return portal(attempt, context)


def on_loop() -> Any:
    """The context if the caller runs on the event loop and not inside a step, else None."""
    context = current()
    return None if isinstance(context, Portal) or branch.inside.get() else context


def here() -> tuple[Any, Any]:
    """The attempt whose code executes here and its own context; a pair of None outside of a run."""
    attempt, context = _context.get()
    return attempt, context.target if isinstance(context, Portal) else context


class Portal:
    """Proxy for an object of the event loop, for use in a plain thread: its coroutines block."""

    def __init__(
        self,
        target: Any,
        loop: asyncio.AbstractEventLoop,
        prepare: Prepare,
        stopped: Callable[[str], Stopped] = Stopped,
    ):
        self.target, self._loop, self._prepare = target, loop, prepare
        self._stopped = stopped

    def __getattr__(self, name: str) -> Any:
        found = inspect.getattr_static(type(self.target), name, None)
        if isinstance(found, property):
            return self._call(name, lambda: getattr(self.target, name), {})
        method = getattr(self.target, name)
        if not callable(method):
            return method
        return lambda *args, **kwargs: self._call(name, lambda: method(*args, **kwargs), kwargs)

    def _call(self, name: str, function: Callable[[], Any], kwargs: dict[str, Any]) -> Any:
        if running_loop() is self._loop:
            return function()  # async step of a plain agent: blocking would deadlock
        prepare = self._prepare(name, kwargs)

        async def call() -> Any:
            prepare()
            result = function()
            if hasattr(result, "__aenter__"):
                return _Entered(result, self._loop)
            return await result if inspect.isawaitable(result) else result

        # Not a branch of the code that started this thread: threads have no order.
        outside = contextvars.copy_context()
        outside.run(branch.current.set, None)
        try:
            return outside.run(asyncio.run_coroutine_threadsafe, call(), self._loop).result()
        except concurrent.futures.CancelledError:
            raise self._stopped("its run leaves this process") from None


def running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class _Entered(contextlib.AbstractContextManager[Any]):
    """An asynchronous context manager, entered and left from a thread."""

    def __init__(self, scope: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._scope, self._loop = scope, loop

    def __enter__(self) -> Any:
        return asyncio.run_coroutine_threadsafe(self._scope.__aenter__(), self._loop).result()

    def __exit__(self, *error: Any) -> bool | None:
        left = asyncio.run_coroutine_threadsafe(self._scope.__aexit__(*error), self._loop)
        return bool(left.result())


async def call_in_thread(
    attempt: Any, context: Any, function: Callable[..., Any], arguments: dict[str, Any]
) -> Any:
    """Run a plain agent in a thread of its own, with a context that forwards to this loop."""
    home: list[int] = []
    forwarding = portal(attempt, context, home)

    def run() -> Any:
        home.append(threading.get_ident())
        enter(attempt, forwarding)
        return function(forwarding, **arguments)

    # Not a pooled thread: a waiting agent must not take one that a step needs.
    outside = contextvars.copy_context()
    outside.run(branch.current.set, None)
    # The waiting task can be cancelled but the thread cannot, so the worker has to track it.
    done = in_new_thread(partial(outside.run, _followed(attempt, run)), "andon-agent")
    try:
        return await done
    finally:
        del done  # an exception in it holds this frame


def portal(attempt: Any, context: Any, home: Sequence[int] = ()) -> Portal:
    """Wrap a run's context for threads; only calls from the threads in `home` have an order."""

    def prepare(name: str, kwargs: dict[str, Any]) -> Callable[[], None]:
        operation = branch.inside.get()  # set inside a step: checkpoint and partial need it
        elsewhere = operation is None and threading.get_ident() not in home
        if elsewhere and name in _ORDERED and kwargs.get("key") is None:
            raise BadInput(
                f"{name}: called from another thread than the agent's: give it a key=, because "
                "threads have no order that a replay could follow"
            )

        def begin() -> None:
            branch.current.set(None if operation else attempt.root)
            branch.inside.set(operation)
            attempt.tasks.add_call(asyncio.current_task())

        return begin

    return Portal(context, attempt.loop, prepare, attempt.exit.stopped)


def _followed(attempt: Any, run: Callable[[], Any]) -> Callable[[], Any]:
    mark = object()
    executing, of_worker = attempt.tasks.executing, attempt.host.in_threads
    executing.add(mark)
    of_worker.add(mark)

    def followed() -> Any:
        try:
            return run()
        finally:
            of_worker.discard(mark)
            attempt.tasks.ended_elsewhere(mark)

    return followed


@contextlib.contextmanager
def blocking(make: Callable[[], Any]) -> Iterator[Any]:
    """Run an asynchronous object such as a Client for plain code; `make` is called on its loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="andon-portal", daemon=True)
    thread.start()

    async def enter() -> Any:
        target = make()
        await target.__aenter__()
        return target

    try:
        target = asyncio.run_coroutine_threadsafe(enter(), loop).result()
        try:
            yield Portal(target, loop, lambda _name, _kwargs: lambda: None)
        finally:
            asyncio.run_coroutine_threadsafe(target.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

"""Plain threads: the same objects, called through one portal. Nothing is written twice.

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
from typing import Any

from andon.errors import BadInput, Stopped
from andon.runtime.attempt import branch

# Called in the calling thread with the name and the keywords of a call; what it answers is called
# on the loop, before the call itself.
Prepare = Callable[[str, dict[str, Any]], Callable[[], None]]

# What takes a place in the journal, and so must be called in an order that a replay can follow.
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

# Set where the code of a run executes, also in the threads and tasks that it starts.
_context: contextvars.ContextVar[tuple[Any, Any]] = contextvars.ContextVar(
    "andon_context", default=(None, None)
)


def enter(attempt: Any, context: Any) -> None:
    """From here on this is the context that code finds."""
    _context.set((attempt, context))


def current() -> Any:
    """The context of the run whose code executes here; None outside of every run.

    For code that a framework calls and nobody hands a context: a node of a graph, a hook. In a
    thread it is one whose calls wait.
    """
    attempt, context = _context.get()
    if context is None or isinstance(context, Portal) or running_loop() is attempt.loop:
        return context
    return portal(attempt, context)


def on_loop() -> Any:
    """The context, where the run's own code executes: on the event loop, and not inside a step."""
    context = current()
    return None if isinstance(context, Portal) or branch.inside.get() else context


def here() -> tuple[Any, Any]:
    """The attempt whose code executes here, and its context itself; nothing outside of a run."""
    attempt, context = _context.get()
    return attempt, context.target if isinstance(context, Portal) else context


class Portal:
    """An object of the event loop, for a plain thread: its coroutines are waited for."""

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
            return function()  # an async step of a plain agent: to wait here would be for ever
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
    attempt.sync = True
    home: list[int] = []
    forwarding = portal(attempt, context, home)

    def run() -> Any:
        home.append(threading.get_ident())
        enter(attempt, forwarding)
        return function(forwarding, **arguments)

    # Its own thread: an agent that waits must not take one that a step needs.
    outside = contextvars.copy_context()
    outside.run(branch.current.set, None)
    done: asyncio.Future[Any] = attempt.loop.create_future()
    # Whoever waits for it may be cancelled, the thread is not: the worker has to know of it.
    thread = threading.Thread(
        target=_report,
        args=(outside, _followed(attempt, run), attempt.loop, done),
        name="andon-agent",
        daemon=True,
    )
    thread.start()
    try:
        return await done
    finally:
        del done  # an error that it brings holds this frame


def portal(attempt: Any, context: Any, home: Sequence[int] = ()) -> Portal:
    """A run's context for threads; `home` is the one whose calls have an order."""

    def prepare(name: str, kwargs: dict[str, Any]) -> Callable[[], None]:
        operation = branch.inside.get()  # inside a step: checkpoint and partial
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

    return Portal(context, attempt.loop, prepare, attempt.stopped)


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


def _report(
    context: contextvars.Context,
    run: Callable[[], Any],
    loop: asyncio.AbstractEventLoop,
    done: "asyncio.Future[Any]",
) -> None:
    try:
        result, error = context.run(run), None
    except BaseException as raised:  # noqa: BLE001 (Stopped must reach the attempt)
        result, error = None, raised
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(_set, done, result, error)
    del error, done  # an error holds this frame, and the future holds the error


def _set(done: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


@contextlib.contextmanager
def blocking(make: Callable[[], Any]) -> Iterator[Any]:
    """An asynchronous object such as a Client, for plain code: `make` is called on its loop."""
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

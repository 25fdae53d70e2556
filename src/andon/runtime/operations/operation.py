"""One call of agent code to andon: its identity, its record in the journal, its execution."""

import asyncio
import contextlib
import contextvars
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any, TypeVar

from andon import points
from andon.core.journal import EntryKind, Mark, Record, settled
from andon.core.values import value
from andon.core.values.function_cache import remembered
from andon.errors import BadInput, Diverged, StepFailed, Stopped, step_failed
from andon.runtime.attempt import branch
from andon.runtime.attempt.exit import Hand
from andon.runtime.attempt.journal_writer import Draft
from andon.store.messages.rows import InboxMessage

if TYPE_CHECKING:
    from andon.runtime.attempt.attempt import Attempt

_T = TypeVar("_T")


class Operation:
    """One call of agent code to andon: its identity, and its record in the journal."""

    __slots__ = (
        "attempt",
        "cuttable",
        "digest",
        "effect",
        "hand",
        "key",
        "kind",
        "name",
        "place",
        "record",
        "since",
    )

    def __init__(
        self, attempt: "Attempt", kind: EntryKind, name: str, key: str | None, digest: str
    ) -> None:
        here = branch.current.get()
        if here is None or here.owner is not attempt.tasks:
            raise BadInput(
                f"{kind} {name!r}: called inside a step, or from a task or thread that is not the "
                "agent's. Call it from the agent's own code; a step must be one unit of work."
            )
        if name.__class__ is not str or not name.isascii() or "\0" in name:
            refuse_unkeepable(kind, "name", name)
        self.attempt, self.kind, self.name, self.digest = attempt, kind, name, digest
        self.key = None if key is None else str(key)
        if self.key is None:
            self.place = here.place()
        else:
            refuse_unkeepable(kind, "key", self.key)
            self.place = f"@{kind}/{name}/{self.key}"
        self.since = attempt.host.clock.now()
        self.cuttable = False  # True for a step whose function is async and can be cancelled
        self.hand: Hand | None = None  # set while it executes
        self.effect: Any = None  # the function and declaration of an effect, for observers
        if attempt.exit.reason is not None:
            # Even if the journal has an answer: catching Stopped frees no code.
            attempt.exit.check()
        self.record: Record | None = None
        # Without recorded places there is nothing to find: the fast path of every new step.
        if attempt.journal.replay.ends or attempt.state.unread or key is not None:
            self.find()
        if attempt.postponed:
            self._cancel_postponed()

    @property
    def id(self) -> str:
        """An id unique in the run, for use outside it: keys begin anew after each snapshot."""
        root = self.attempt.root.path
        return f"{root}/{self.place}" if root and self.key is not None else self.place

    @property
    def answered(self) -> bool:
        if self.record is None or not settled(self.record):
            return False
        # If the code calls an operation again after cancelling it, the operation is tried again.
        return self.record.state != Mark.CANCELLED or self.place not in self.attempt.cancelled

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Let one branch at a time use a key; the next one gets the first one's answer."""
        if self.key is None:
            yield
            return
        lock = self.attempt.keys.setdefault(self.place, asyncio.Lock())
        queued, task = self.attempt.tasks.queued, asyncio.current_task()
        queued.add(task)
        try:
            await lock.acquire()
        finally:
            queued.discard(task)
        try:
            self.attempt.exit.check()  # the attempt may have left meanwhile
            self.find()
            yield
        finally:
            lock.release()

    def find(self) -> None:
        """Look up the operation's record in the journal."""
        try:
            self.attempt.state.refuse_unread()
            self.record = self.attempt.journal.replay.find(
                self.kind, self.name, self.key, self.place, self.digest
            )
        except Diverged as error:
            raise self.attempt.exit.stop("diverged", error) from None

    def cancel(self, **fields: Any) -> None:
        """Record that the agent's own code cancelled it; on replay the code will do so again."""
        self.attempt.cancelled.add(self.place)
        self.attempt.journal.append_soon(self.draft(Mark.CANCELLED, **fields))

    @contextlib.contextmanager
    def recording_cancel(
        self, message: InboxMessage | None = None, **fields: Any
    ) -> Iterator[None]:
        """Record a cancellation that arrives while a wait, or its end, is being written.

        The code will cancel again on replay. The message that ended the wait was not delivered, so
        it is put back for the next wait.
        """
        try:
            yield
        except asyncio.CancelledError:
            if not self.attempt.exit.stopping:
                if message is not None:
                    self.attempt.waits.put_back(message)
                    fields["give_back"] = message.id
                self.cancel(**fields)
            raise

    def draft(self, state: str, body: bytes | None = None, **fields: Any) -> Draft:
        return Draft(
            kind=self.kind,
            state=state,
            place=self.place,
            name=self.name,
            key=self.key,
            digest=self.digest,
            body=body,
            since=self.since,
            fields=fields,
        )

    def write(self, state: str, body: bytes | None = None, **fields: Any) -> Awaitable[None]:
        return self.attempt.journal.append(self.draft(state, body, **fields))

    async def answer(self, decoder: value.Decoder | None = None) -> Any:
        """Give the recorded outcome: return a value, raise an error, or wait to be cancelled."""
        assert self.record is not None
        if self.record.state == Mark.CANCELLED:
            # The code cancelled this operation, by a timeout of its own, and will do so again.
            self.attempt.cancelled.add(self.place)
            await asyncio.get_running_loop().create_future()
        record = self.record
        body = await self._receive(lambda: self.attempt.body_of(record.body, record.blob))
        await self.turn()
        if self.record.state == Mark.FAILED:
            raise self.failed(value.decode(body))
        return (decoder or value.decode)(body)

    async def turn(self) -> None:
        """Wait until it is this recorded outcome's turn."""
        record = self.record
        if record is not None and self.attempt.turns.replayed:
            await self._receive(lambda: self.attempt.turns.take(record.seq))

    async def _receive(self, wait: Callable[[], Awaitable[_T]]) -> _T:
        """Give a recorded outcome even if the code's own timer cancels the wait for it.

        In the first execution the outcome came before the timer. A slow replay, or a process that
        is frozen meanwhile, must not take another path. The next operation is cancelled instead.
        """
        while True:
            try:
                return await wait()
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if self.attempt.exit.stopping or task is None:
                    raise
                self.attempt.postponed[task] = next(iter(error.args), None)

    def _cancel_postponed(self) -> None:
        """Deliver a cancellation that `_receive` held back, unless the timer's scope has ended."""
        task = asyncio.current_task()
        recorded = self.answered and self.record is not None and self.record.state != Mark.CANCELLED
        if task not in self.attempt.postponed or task is None or recorded:
            return
        message = self.attempt.postponed.pop(task)  # anyio recognises its own cancellations by it
        if task.cancelling():
            task.uncancel()
            task.cancel(message)

    def failed(self, error: dict[str, Any]) -> StepFailed:
        """The exception that the agent's code gets for an error, also on replay."""
        # A result that cannot be stored will not be storable next time: do not reopen the step.
        return step_failed(self.name, error, "" if error["type"] == "NotStorable" else self.place)

    def __enter__(self) -> Hand:
        """Count as executing; on exit, record a cancellation by the agent's own code."""
        self.hand = self.attempt.exit.begin_operation(self.name, cuttable=self.cuttable)
        return self.hand

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self.hand is not None
        try:
            cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
            if cancelled and not self.attempt.exit.stopping:
                self.cancel()
        finally:
            self.attempt.exit.end_operation(self.hand)


async def wait_recording_cancel(
    operation: Operation, kind: str, name: str, until: float | None
) -> Any:
    """Wait for a message or a time; record a cancellation by the agent's own code."""
    attempt = operation.attempt
    try:
        return await attempt.waits.wait_for(kind, name, until)
    except asyncio.CancelledError:
        if not attempt.exit.stopping:
            # No code waits for the answer any more: the ask must not stay open.
            closed = {"close_ask": name} if kind == "answer" else {}
            operation.cancel(**closed)
        raise


async def invoke(
    operation: Operation,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    timeout: float | None,  # noqa: ASYNC109 (see Context.step)
) -> Any:
    """Call the user's function: an async one on the event loop, a plain one in a thread."""
    here, inside = branch.current.set(None), branch.inside.set(operation)
    try:
        if timeout is None:
            if operation.cuttable and points.wrap is None:  # fast path of most steps
                return await function(*args, **kwargs)
            return await _call(operation, function, args, kwargs)
        try:
            async with asyncio.timeout(timeout) as scope:
                return await _call(operation, function, args, kwargs)
        except TimeoutError as error:
            if scope.expired():
                raise TimeoutError(f"took longer than {timeout} s") from error
            raise
    except Stopped as error:
        # Only andon raises Stopped, and never inside a step: report the misuse, do not hide it.
        raise RuntimeError("a step used the context of its run") from error
    except SystemExit as error:  # it would end the worker and all its runs
        exited = RuntimeError(f"it called sys.exit({error.code!r})")
        raise exited.with_traceback(error.__traceback__) from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # No code of the run cancelled the task, so none will on replay.
        raise RuntimeError("it was cancelled from inside") from None
    finally:
        branch.current.reset(here)
        branch.inside.reset(inside)


async def _call(
    operation: Operation,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    if points.wrap is not None:
        function = points.wrap(operation, function)
    if is_async(function):
        return await function(*args, **kwargs)
    context = contextvars.copy_context()
    call = functools.partial(context.run, function, *args, **kwargs)
    result = await asyncio.wrap_future(Threads(operation).submit(call))
    if not inspect.isawaitable(result):
        return result
    if isinstance(operation, Operation) and operation.hand is not None:
        operation.hand.cuttable = operation.kind == EntryKind.STEP
    return await result


@remembered
def how_called(function: Callable[..., Any]) -> tuple[bool, value.Decoder | None]:
    """Whether calling the function makes a coroutine, and the decoder of its result."""
    return is_async(function), value.result_decoder(function)


@remembered
def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it makes a coroutine; handles partials and objects with async __call__."""
    inner = getattr(function, "func", function)
    call = getattr(type(inner), "__call__", None)  # noqa: B004 (not whether it is callable)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(call)


class Threads(Executor):
    """The worker's threads; each call counts as executing until it ends, as it cannot be ended."""

    def __init__(self, operation: Operation) -> None:
        self._host, self._tasks = operation.attempt.host, operation.attempt.tasks

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = self._host.threads.submit(fn, *args, **kwargs)
        self._host.in_threads.add(future)
        self._tasks.executing.add(future)
        future.add_done_callback(self._host.in_threads.discard)
        future.add_done_callback(self._tasks.ended_elsewhere)
        return future


def inside(what: str) -> Operation:
    operation: Operation | None = branch.inside.get()
    if operation is None:
        raise BadInput(f"ctx.{what}: only inside a step; between steps use ctx.snapshot")
    return operation


def named(function: Callable[..., Any], name: str | None) -> str:
    if not callable(function):
        raise BadInput(
            f"expected a function, found {function!r}: pass it uncalled, then its arguments"
        )
    if name is not None:
        return name
    inner = getattr(function, "func", function)  # functools.partial
    return str(getattr(inner, "__name__", type(inner).__name__))


def refuse_unkeepable(of: str, what: str, text: str) -> None:
    """Refuse text that not every database can keep, before anything is executed."""
    try:
        if "\0" not in text and (text.isascii() or text.encode()):
            return
    except (AttributeError, TypeError, UnicodeEncodeError):
        pass
    raise BadInput(f"{of} {what} {text!r}: expected Unicode text without NUL")

"""What agent code holds: the durable operations of a run.

Each is answered from the journal if it is there, and else executed and written. An operation whose
result is durable never executes again.
"""

import asyncio
import contextlib
import contextvars
import inspect
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any

import msgspec

from andon.core import value
from andon.core.effect import EffectState
from andon.core.journal import EntryKind, Mark, Record, settled
from andon.core.queue import Retry, note_begin
from andon.errors import (
    AndonError,
    BadInput,
    Diverged,
    NotStorable,
    StepFailed,
    Stopped,
    Unresolved,
    step_failed,
)
from andon.points import point
from andon.runtime import branch
from andon.runtime.attempt import Attempt, Draft, describe, log
from andon.store.store import Ask

_operation: contextvars.ContextVar["Operation | None"] = contextvars.ContextVar(
    "andon_operation", default=None
)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a person said to an ask."""

    decision: str  # approve | edit | reject | respond
    value: Any = None  # approved or edited value, or the response
    by: str = ""

    @property
    def approved(self) -> bool:
        return self.decision in ("approve", "edit")


CHOICES = ("approve", "edit", "reject", "respond")


class Operation:
    """One call of agent code to andon: its identity, and what the journal has of it."""

    def __init__(
        self, attempt: Attempt, kind: EntryKind, name: str, key: str | None, digest: str
    ) -> None:
        here = branch.current.get()
        if here is None or here.owner is not attempt.tasks:
            raise BadInput(
                f"{kind} {name!r}: called inside a step, or from a task or thread that is not the "
                "agent's. Call it from the agent's own code; a step must be one unit of work."
            )
        key = None if key is None else str(key)
        for what, text in (("name", name), ("key", key or "")):
            if not _keepable(text):
                raise BadInput(f"{kind} {what} {text!r}: expected Unicode text without NUL")
        self.attempt, self.kind, self.name, self.digest = attempt, kind, name, digest
        self.key = key
        self.place = here.place() if key is None else f"@{kind}/{name}/{key}"
        self.since = attempt.host.clock.now()
        self.record: Record | None = None
        self.find()

    @property
    def answered(self) -> bool:
        if self.record is None or not settled(self.record):
            return False
        # Asked for again after the code itself had cancelled it: it is tried again.
        return self.record.state != Mark.CANCELLED or self.place not in self.attempt.cancelled

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Of two branches with the same key at the same time, the second gets the first's answer."""
        if self.key is None:
            yield
            return
        async with self.attempt.keys.setdefault(self.place, asyncio.Lock()):
            self.find()
            yield

    def find(self) -> None:
        """Look up what the journal has of it."""
        try:
            self.record = self.attempt.replay.find(
                kind=self.kind, name=self.name, key=self.key, place=self.place, digest=self.digest
            )
        except Diverged as error:
            raise self.attempt.stop("diverged", error) from None

    def cancel(self, **along: Any) -> None:
        """Note that the agent's own code cancelled it; on replay it will do so again."""
        self.attempt.cancelled.add(self.place)
        self.attempt.append_soon(self.draft(Mark.CANCELLED, **along))

    def draft(self, state: str, body: bytes | None = None, **along: Any) -> Draft:
        return Draft(
            kind=self.kind,
            state=state,
            place=self.place,
            name=self.name,
            key=self.key,
            digest=self.digest,
            body=body,
            since=self.since,
            along=along,
        )

    async def write(self, state: str, body: bytes | None = None, **along: Any) -> None:
        await self.attempt.append(self.draft(state, body, **along))

    async def answer(self, decoder: value.Decoder | None = None) -> Any:
        """The recorded outcome: a value, an error, or the same long wait to be cancelled again."""
        assert self.record is not None
        if self.record.state == Mark.CANCELLED:
            # The code cancelled this itself, by a timeout of its own. It will do so again.
            self.attempt.cancelled.add(self.place)
            await asyncio.get_running_loop().create_future()
        body = await self.attempt.body_of(self.record.body, self.record.blob)
        if self.attempt.turns.replayed:
            await self.attempt.turns.take(self.record.seq)
        if self.record.state == Mark.FAILED:
            raise self.failed(value.decode(body))
        return (decoder or value.decode)(body)

    def failed(self, error: dict[str, Any]) -> StepFailed:
        """What the agent's code gets to see of an error, at first and on replay."""
        # A result that cannot be stored will not be storable next time: it is not reopened.
        return step_failed(self.name, error, "" if error["type"] == "NotStorable" else self.place)

    @contextlib.contextmanager
    def operating(self) -> Iterator[None]:
        """Count as executing; note a cancellation that the agent's own code caused."""
        self.attempt.active += 1
        try:
            yield
        except asyncio.CancelledError:
            if self.attempt.reason is None and not self.attempt.host.draining:
                self.cancel()
            raise
        finally:
            self.attempt.done_operating()


class Context:
    """The run, as its agent sees it."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    @property
    def run_id(self) -> str:
        return self._attempt.run.id

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self._attempt.run.attempt

    @property
    def labels(self) -> dict[str, str]:
        labels: dict[str, str] = msgspec.json.decode(self._attempt.run.labels)
        return labels

    @property
    def stopping(self) -> bool:
        """Whether the run is about to leave this process; long code outside steps may look."""
        return self._attempt.reason is not None or self._attempt.host.draining

    # ── steps ─────────────────────────────────────────────────────────────────────────────────

    async def step(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        name: str | None = None,
        key: str | None = None,
        retries: int | Retry = 0,
        timeout: float | None = None,  # noqa: ASYNC109 (it is journaled, unlike a scope's)
        **kwargs: Any,
    ) -> Any:
        """Execute `function` once; its result is durable before this returns.

        The result comes back as JSON, or as the type that the function's annotation says.
        """
        step = _named(function, name)
        operation = Operation(
            self._attempt,
            EntryKind.STEP,
            step,
            key,
            value.digest(args, kwargs, f"step {step!r}"),
        )
        decoder = value.result_decoder(function)

        async def call() -> Any:
            return await invoke(operation, function, args, kwargs, timeout)

        if operation.key is None:
            return await self._carry_out(operation, call, decoder, retries)
        async with operation.alone():
            return await self._carry_out(operation, call, decoder, retries)

    async def _carry_out(
        self,
        operation: Operation,
        call: Callable[[], Awaitable[Any]],
        decoder: value.Decoder | None,
        retries: int | Retry,
    ) -> Any:
        """Execute until it succeeds or its retries run out; each failure is written down."""
        if operation.answered:
            return await operation.answer(decoder)
        policy = retries if isinstance(retries, Retry) else Retry(retries)
        failures = operation.record.failures if operation.record else 0
        if operation.record is not None and operation.record.state == Mark.RETRYING:
            await self._until_retry(operation, value.decode(operation.record.body or "{}"))
        while True:
            try:
                with operation.operating():
                    await self._attempt.boundary()
                    await self._note_begin(operation)
                    point("step:before")
                    await self._attempt.boundary()  # after a freeze: is it still the owner?
                    result = await call()
                    point("step:executed")
                    what = f"the result of {operation.kind} {operation.name!r}"
                    raw, back = value.encode_result(result, what, decoder)
                    await self._store_result(operation, raw)
                    return back
            except NotStorable as error:
                raise await self._fail(operation, error) from error
            except Exception as error:
                failures += 1
                if not policy.again(failures):
                    raise await self._fail(operation, error) from error
                delay = policy.delay(failures, random.random())  # noqa: S311 (not for secrets)
                body = {**describe(error), "until": self._attempt.host.clock.now() + delay}
                await operation.write(Mark.RETRYING, msgspec.json.encode(body))
                await self._until_retry(operation, body)

    async def _note_begin(self, operation: Operation) -> None:
        if note_begin(self._attempt.run.interruptions):
            await operation.write(Mark.BEGUN, step=operation.name)

    async def _store_result(self, operation: Operation, raw: bytes) -> None:
        partial = self._attempt.drop_partial(operation.place)
        await operation.write(Mark.DONE, raw, checkpoint_of=partial)
        point("step:stored")

    async def _fail(self, operation: Operation, error: Exception) -> AndonError:
        body = describe(error)
        await operation.write(Mark.FAILED, msgspec.json.encode(body))
        return operation.failed(body)

    async def _until_retry(self, operation: Operation, body: dict[str, Any]) -> None:
        await wait_noting_cancel(operation, "timer", operation.name, body.get("until", 0.0))

    async def transaction(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        name: str | None = None,
        key: str | None = None,
        retries: int | Retry = 0,
        **kwargs: Any,
    ) -> Any:
        """A step whose function gets a connection to this database as its first argument.

        What it writes there and the step's entry are one commit: exactly once.
        """
        step = _named(function, name)
        if inspect.iscoroutinefunction(function):
            raise BadInput(f"transaction {step!r}: expected a plain function, found an async one")
        operation = Operation(
            self._attempt,
            EntryKind.STEP,
            step,
            key,
            value.digest(args, kwargs, f"transaction {step!r}"),
        )
        decoder = value.result_decoder(function)
        async with operation.alone():
            return await self._commit(operation, function, args, kwargs, decoder, retries)

    async def _commit(
        self,
        operation: Operation,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        decoder: value.Decoder | None,
        retries: int | Retry,
    ) -> Any:
        if operation.answered:
            return await operation.answer(decoder)
        policy = retries if isinstance(retries, Retry) else Retry(retries)
        failures = operation.record.failures if operation.record else 0
        while True:
            try:
                return await self._transact(operation, function, args, kwargs, decoder)
            except Exception as error:
                failures += 1
                if not policy.again(failures) or isinstance(error, NotStorable):
                    raise await self._fail(operation, error) from error
                delay = policy.delay(failures, random.random())  # noqa: S311 (not for secrets)
                body = {**describe(error), "until": self._attempt.host.clock.now() + delay}
                await operation.write(Mark.RETRYING, msgspec.json.encode(body))
                await self._until_retry(operation, body)

    async def _transact(
        self,
        operation: Operation,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        decoder: value.Decoder | None,
    ) -> Any:
        attempt = self._attempt
        with operation.operating():
            await attempt.boundary()
            await attempt.close_gate()
            try:
                return await attempt.transact(
                    operation, lambda connection: function(connection, *args, **kwargs), decoder
                )
            finally:
                attempt.open_gate()

    # ── effects ───────────────────────────────────────────────────────────────────────────────

    async def effect(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        name: str | None = None,
        key: str | None = None,
        kind: str | None = None,
        probe: Callable[..., Any] | None = None,
        undo: Callable[..., Any] | None = None,
        undo_within: str | float | None = None,
        retries: int | Retry = 0,
        timeout: float | None = None,  # noqa: ASYNC109 (it is journaled, unlike a scope's)
        **kwargs: Any,
    ) -> Any:
        """Change the world: written down before it is done, confirmed after, never guessed.

        `function` receives `key` and `fence` if it has parameters of these names.
        """
        from andon.runtime import effects

        declared = effects.declaration(function, kind, probe, undo, undo_within)
        effect = _named(function, name)
        effects.refuse_wrong_arguments(effect, function, args, kwargs)
        operation = Operation(
            self._attempt,
            EntryKind.EFFECT,
            effect,
            key,
            value.digest(args, kwargs, f"effect {effect!r}"),
        )
        async with operation.alone():
            return await effects.carry_out(
                self._attempt, operation, function, args, kwargs, declared, retries, timeout
            )

    # ── state ─────────────────────────────────────────────────────────────────────────────────

    def snapshot(self, state: Any) -> Awaitable[None]:
        """Save the agent's whole state; a resumed run starts with it in `ctx.restored`.

        Written at once and in order; await it to know that it is durable.
        """
        attempt = self._attempt
        if branch.current.get() is not attempt.root or len(attempt.tasks.living) > 1:
            raise BadInput(
                "snapshot: expected the agent's main code with no parallel branch running; "
                "a snapshot is the whole state, so wait for the branches first"
            )
        raw = value.encode(state, "the snapshot")
        try:
            attempt.replay.check_end(attempt.root.number)
        except Diverged as error:
            raise attempt.stop("diverged", error) from None
        future = attempt.append_soon(Draft(kind=EntryKind.SNAPSHOT, state=Mark.DONE, body=raw))
        attempt.root.restart(attempt.replay.root)
        return _wait(future)

    @property
    def restored(self) -> Any:
        """The state of the last snapshot, None if there is none."""
        return self._attempt.restored

    def checkpoint(self, partial: Any) -> None:
        """Inside a step: keep this partial value; the step's next attempt finds it in `partial`."""
        operation = _inside("checkpoint")
        raw = value.encode(partial, f"the checkpoint of {operation.kind} {operation.name!r}")
        operation.attempt.keep_partial(operation.place, raw.decode())

    @property
    def partial(self) -> Any:
        """Inside a step: the latest checkpoint of it, None if there is none."""
        operation = _inside("partial")
        body = operation.attempt.checkpoints.get(operation.place)
        return None if body is None else value.decode(body)

    # ── waiting ───────────────────────────────────────────────────────────────────────────────

    async def sleep(self, seconds: float) -> None:
        """Wait; a long wait holds no process."""
        if not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
            raise BadInput(f"sleep: expected seconds of 0 or more, found {seconds!r}")
        operation = Operation(self._attempt, EntryKind.SLEEP, "sleep", None, _digest(seconds))
        if operation.answered:
            await operation.answer()
            return
        until = await self._deadline(operation, seconds)
        await wait_noting_cancel(operation, "timer", "sleep", until)
        await operation.write(Mark.DONE)  # on replay it must be known what it ended before

    async def event(self, name: str, *, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        """The next event of that name sent to this run. Raises Unresolved after `timeout`."""
        operation = Operation(self._attempt, EntryKind.EVENT, name, None, _digest(timeout))
        if operation.answered:
            return await self._outcome(operation)
        until = await self._deadline(operation, timeout)
        letter = await self._wait(operation, "event", name, until)
        if letter is None:
            await operation.write(Mark.FAILED, b'{"type": "Unresolved"}')
            raise Unresolved(f"event {name!r} did not come within {timeout} s")
        await operation.write(Mark.DONE, letter.body.encode(), take=letter.id)
        return value.decode(letter.body)

    async def ask(
        self,
        question: str,
        value_: Any = None,
        /,
        *,
        key: str | None = None,
        expires: float | None = None,
    ) -> Answer:
        """Ask a person; nothing is held while nobody answers. Raises Unresolved after `expires`."""
        digest = value.digest((question, value_), {}, "the ask")
        operation = Operation(self._attempt, EntryKind.ASK, "ask", key, digest)
        if not operation.answered:
            until = None
            if operation.record is None:
                until = await self._open_ask(operation, question, value_, expires)
            else:
                until = value.decode(operation.record.body or "null")
            letter = await self._wait(operation, "answer", operation.place, until)
            if letter is None:
                await operation.write(
                    Mark.FAILED, b'{"type": "Unresolved"}', close_ask=operation.place
                )
                raise Unresolved(f"nobody answered {question!r} within {expires} s")
            await operation.write(Mark.DONE, letter.body.encode(), take=letter.id)
            given = value.decode(letter.body)
        else:
            given = await self._outcome(operation)
        if given["decision"] == "approve":
            given["value"] = value.decode(value.encode(value_, "the ask"))
        return Answer(**given)

    async def _open_ask(
        self, operation: Operation, question: str, about: Any, expires: float | None
    ) -> float | None:
        await self._attempt.boundary()
        until = None if expires is None else self._attempt.host.clock.now() + expires
        ask = Ask(
            id=operation.place,
            about="value",
            question=question,
            value=value.encode(about, "the ask's value").decode(),
            choices=msgspec.json.encode(CHOICES).decode(),
            expires_at=until,
        )
        await operation.write(Mark.WAITING, msgspec.json.encode(until), ask=ask)
        return until

    async def child(
        self,
        agent: Any,
        /,
        *args: Any,
        wait: bool = True,
        id: str | None = None,  # noqa: A002 (the same word as in client.start)
        key: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Start a run of another agent; its result, or its id when it is not waited for."""
        from andon.runtime import children

        return await children.carry_out(self._attempt, agent, args, kwargs, wait, id, key)

    async def _deadline(self, operation: Operation, seconds: float | None) -> float | None:
        if operation.record is not None:
            until: float | None = value.decode(operation.record.body or "null")
            return until
        await self._attempt.boundary()
        if seconds is None:
            return None
        until = self._attempt.host.clock.now() + seconds
        await operation.write(Mark.WAITING, msgspec.json.encode(until))
        return until

    async def _wait(
        self, operation: Operation, kind: str, name: str, until: float | None
    ) -> Any:
        return await wait_noting_cancel(operation, kind, name, until)

    async def _outcome(self, operation: Operation) -> Any:
        """Like `answer`, but a wait that ended without an outcome is Unresolved."""
        assert operation.record is not None
        if operation.record.state == Mark.FAILED:
            raise Unresolved(f"{operation.kind} {operation.name!r} ended without an outcome")
        return await operation.answer()

    # ── values that must be the same on replay ────────────────────────────────────────────────

    def now(self) -> datetime:
        """The time, the same one on every replay."""
        found = self._value("now", self._attempt.host.clock.now)
        return datetime.fromtimestamp(found, timezone.utc)

    def random(self) -> float:
        """A number from 0 to 1, the same one on every replay."""
        return float(self._value("random", random.random))

    def uuid(self) -> str:
        """A fresh unique id, the same one on every replay."""
        return str(self._value("uuid", lambda: str(uuid.uuid4())))

    def _value(self, name: str, make: Callable[[], Any]) -> Any:
        operation = Operation(self._attempt, EntryKind.VALUE, name, None, "")
        if operation.record is not None:
            return value.decode(operation.record.body or "null")
        made = make()
        self._attempt.append_soon(operation.draft(Mark.DONE, msgspec.json.encode(made)))
        return made

    # ── the rest ──────────────────────────────────────────────────────────────────────────────

    def log(self, text: str, *, level: str = "info") -> None:
        """A line for `andon logs`. Not written again on replay."""
        here = branch.current.get()
        if here is not None and self._attempt.replay.replaying(here.path, here.number):
            return
        self._attempt.add_line(level, str(text).replace("\x00", "\\0"))

    @contextlib.asynccontextmanager
    async def shield(self, name: str, *, at_most: float = 30.0) -> AsyncIterator[None]:
        """Let this block end before a polite stop takes effect, for `at_most` seconds."""
        attempt, began = self._attempt, self._attempt.loop.time()
        attempt.shields[name] = began + at_most
        try:
            yield
        finally:
            del attempt.shields[name]
            took = attempt.loop.time() - began
            if took > at_most:
                log.warning("run %s: shield %r took %.1f s, its limit is %s s", self.run_id, name, took, at_most)
                self.log(f"shield {name!r} took {took:.1f} s, its limit is {at_most} s", level="warning")

    def cleanup(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        """Call `function` when this attempt ends, however it ends; the last one first."""
        self._attempt.cleanups.append(lambda: function(*args, **kwargs))


async def wait_noting_cancel(
    operation: Operation, kind: str, name: str, until: float | None
) -> Any:
    """Wait for a letter; a cancellation by the agent's own code is written down."""
    attempt = operation.attempt
    try:
        return await attempt.wait_for(kind, name, until)
    except asyncio.CancelledError:
        if attempt.reason is None and not attempt.host.draining:
            # Nobody waits for the answer any more: the question must not stay open.
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
    """Call the user's function: async ones here, plain ones in a thread."""
    here, inside = branch.current.set(None), _operation.set(operation)
    try:
        if timeout is None:
            return await _call(operation, function, args, kwargs)
        try:
            async with asyncio.timeout(timeout) as scope:
                return await _call(operation, function, args, kwargs)
        except TimeoutError as error:
            if scope.expired():
                raise TimeoutError(f"took longer than {timeout} s") from error
            raise
    except Stopped as error:
        # Only andon raises it, and not inside a step; swallowing it here would hide a misuse.
        raise RuntimeError("a step used the context of its run") from error
    except SystemExit as error:  # it would end the worker, and everybody else's runs with it
        raise RuntimeError(f"it called sys.exit({error.code!r})") from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Nobody asked for it, so nobody will ask for it again on replay.
        raise RuntimeError("it was cancelled from inside") from None
    finally:
        branch.current.reset(here)
        _operation.reset(inside)


async def _call(
    operation: Operation,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    if is_async(function):
        return await function(*args, **kwargs)
    context = contextvars.copy_context()
    result = await _in_thread(operation, lambda: context.run(function, *args, **kwargs))
    return await result if inspect.isawaitable(result) else result


@lru_cache(maxsize=4096)
def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it makes a coroutine: also a partial, or an object with an async __call__."""
    inner = getattr(function, "func", function)
    call = getattr(type(inner), "__call__", None)  # noqa: B004 (not whether it is callable)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(call)


async def _in_thread(operation: Operation, call: Callable[[], Any]) -> Any:
    """Run in a thread, and have the worker know for how long: a thread cannot be ended."""
    host = operation.attempt.host
    future = host.threads.submit(call)
    host.in_threads.add(future)
    future.add_done_callback(host.in_threads.discard)
    return await asyncio.wrap_future(future)


def _inside(what: str) -> Operation:
    operation = _operation.get()
    if operation is None:
        raise BadInput(f"ctx.{what}: only inside a step; between steps use ctx.snapshot")
    return operation


def _named(function: Callable[..., Any], name: str | None) -> str:
    if not callable(function):
        raise BadInput(f"expected a function, found {function!r}: pass it uncalled, then its arguments")
    if name is not None:
        return name
    inner = getattr(function, "func", function)  # functools.partial
    return str(getattr(inner, "__name__", type(inner).__name__))


def _keepable(text: str) -> bool:
    """Whether every database can keep it."""
    if not isinstance(text, str) or "\0" in text:
        return False
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _digest(argument: Any) -> str:
    return value.digest((argument,), {}, "the wait")


async def _wait(future: "asyncio.Future[Any]") -> None:
    await asyncio.shield(future)


__all__ = ["Answer", "Context", "EffectState", "Operation"]

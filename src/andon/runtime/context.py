"""The durable operations available to agent code.

Each operation is answered from the journal if its entry is there; otherwise it is executed and
written. An operation whose result is durable never executes again.
"""

import contextlib
import inspect
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from andon.core.journal import EntryKind, Mark
from andon.core.queue import Retry
from andon.core.values import value
from andon.core.values.step_progress import progress_of
from andon.errors import BadInput, Diverged, Unresolved
from andon.runtime.attempt import branch
from andon.runtime.attempt.exit import log
from andon.runtime.attempt.journal_writer import Durable
from andon.runtime.operations import asks, steps
from andon.runtime.operations.asks import Answer
from andon.runtime.operations.calls import refuse_wrong_arguments
from andon.runtime.operations.model_loop import ModelLoop
from andon.runtime.operations.operation import (
    Operation,
    how_called,
    inside,
    invoke,
    named,
    refuse_unkeepable,
    wait_recording_cancel,
)


class Context(ModelLoop):
    """The agent's handle to its run.

    Durable operations belong in the agent's own code. Inside a step, only `checkpoint`, `partial`,
    `log`, `stopping` and the facts about the run may be used. A plain agent calls the same methods
    without awaiting them.
    """

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._attempt.run.id

    @property
    def attempt(self) -> int:
        """Number of this attempt, starting at 1.

        It differs on replay, so it must not decide which operations without a key follow.
        """
        return self._attempt.run.attempt

    @property
    def labels(self) -> dict[str, str]:
        """The run's labels."""
        labels: dict[str, str] = msgspec.json.decode(self._attempt.run.labels)
        return labels

    @property
    def stopping(self) -> bool:
        """Whether the run is about to leave this process; long code outside steps can check it."""
        return self._attempt.exit.stopping

    async def step(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        name: str | None = None,
        key: str | None = None,
        retries: int | Retry = 0,
        timeout: float | None = None,  # noqa: ASYNC109 (it is journaled, unlike a scope's)
        process: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Execute `function` once and return its result, which is durable by then.

        On replay the result comes from the journal and `function` is not called. It is decoded as
        JSON, or as the type in the function's return annotation. An operation with a `key` is found
        by it, so the code may move it. `process=True` runs a plain function in a process of its
        own, which can be ended at any moment. Raises StepFailed once the retries are used up.
        """
        step = named(function, name)
        is_async, decoder = how_called(function)
        called = function
        if process:
            called, is_async = self._apart(step, function), True
        digest = value.digest(args, kwargs, f"step {step!r}")
        operation = Operation(self._attempt, EntryKind.STEP, step, key, digest)
        operation.cuttable = is_async
        call = partial(invoke, operation, called, args, kwargs, timeout)
        return await steps.carry_out(operation, call, decoder, retries)

    def _apart(self, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        from andon.runtime.processes import step_pool as pool

        pool.refuse_unreachable(step, function)
        host = self._attempt.host.processes
        caller: Callable[..., Any] = host.caller(self._attempt.tasks, step, function)
        return caller

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
        """Execute a step whose function gets a database connection as its first argument.

        The connection is to the store's own database: the function's writes and the step's entry
        share one commit, so they happen exactly once.
        """
        step = named(function, name)
        if inspect.iscoroutinefunction(function):
            raise BadInput(f"transaction {step!r}: expected a plain function, found an async one")
        digest = value.digest(args, kwargs, f"transaction {step!r}")
        operation = Operation(self._attempt, EntryKind.STEP, step, key, digest)
        decoder = value.result_decoder(function)

        def write(connection: Any) -> Any:
            return function(connection, *args, **kwargs)

        return await steps.transact(operation, write, decoder, retries)

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
        """Execute a change to the outside world: journaled before it starts and confirmed after.

        If its worker is lost in between, andon asks `probe`, calls `undo`, repeats an effect whose
        `kind` is pure or idempotent, or asks a person; it never guesses the outcome. These
        arguments replace the declaration of `andon.effect_of` as a whole. `function` receives
        `key`, for use as an idempotency key, and `fence` if it has parameters of these names.
        """
        from andon.runtime.effects import effect as effects
        from andon.runtime.effects.declaration import declaration

        declared = declaration(function, kind, probe, undo, undo_within)
        effect = named(function, name)
        refuse_wrong_arguments(effect, function, args, kwargs)
        digest = value.digest(args, kwargs, f"effect {effect!r}")
        operation = Operation(self._attempt, EntryKind.EFFECT, effect, key, digest)
        async with operation.alone():
            return await effects.carry_out(
                self._attempt, operation, function, args, kwargs, declared, retries, timeout
            )

    def snapshot(self, state: Any) -> Awaitable[None]:
        """Save the agent's whole state; a resumed run starts with it in `ctx.restored`.

        Snapshots are submitted at once and written in order; await the result to know that this one
        is durable.
        """
        attempt = self._attempt
        if branch.current.get() is not attempt.root or len(attempt.tasks.living) > 1:
            raise BadInput(
                "snapshot: expected the agent's main code with no parallel branch running; "
                "a snapshot is the whole state, so wait for the branches first"
            )
        raw = value.encode(state, "the snapshot")
        try:
            attempt.journal.replay.check_end(attempt.root.number)
        except Diverged as error:
            raise attempt.exit.stop("diverged", error) from None
        future = attempt.journal.append_soon(attempt.state.save(raw))
        attempt.root.restart(attempt.journal.replay.root)
        return Durable(attempt.journal, future)

    @property
    def restored(self) -> Any:
        """State of the last snapshot, of this attempt or an earlier one; None if there is none."""
        return self._attempt.state.read()

    def checkpoint(
        self, partial: Any, *, done: int | None = None, total: int | None = None
    ) -> None:
        """Save a partial value inside a step; the step's next attempt reads it from `ctx.partial`.

        `done` and `total` are for people: `andon ps` shows how far the step is.
        """
        operation = inside("checkpoint")
        raw = value.encode(partial, f"the checkpoint of {operation.kind} {operation.name!r}")
        progress = None if done is None else progress_of(operation.name, done, total)
        operation.attempt.journal.keep_partial(operation.place, raw.decode(), progress)

    @property
    def partial(self) -> Any:
        """The latest checkpoint of the current step, or None."""
        operation = inside("partial")
        body = operation.attempt.journal.checkpoints.get(operation.place)
        return None if body is None else value.decode(body)

    async def sleep(self, seconds: float) -> None:
        """Sleep durably; a long sleep holds no process."""
        if not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
            raise BadInput(f"sleep: expected seconds of 0 or more, found {seconds!r}")
        operation = Operation(self._attempt, EntryKind.SLEEP, "sleep", None, _digest(seconds))
        if operation.answered:
            await operation.answer()
            return
        until = await self._deadline(operation, seconds)
        await wait_recording_cancel(operation, "timer", "sleep", until)
        with operation.recording_cancel():
            await operation.write(Mark.DONE)  # replay needs to know which operations it preceded

    async def event(self, name: str, *, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        """Wait for the next event of this name; raises Unresolved after `timeout` seconds."""
        operation = Operation(self._attempt, EntryKind.EVENT, name, None, _digest(timeout))
        if operation.answered:
            return await self._outcome(operation)
        until = None
        if operation.record or timeout is not None or not self._attempt.waits.has("event", name):
            until = await self._deadline(operation, timeout)
        message = await wait_recording_cancel(operation, "event", name, until)
        with operation.recording_cancel(message):
            if message is None:
                await operation.write(Mark.FAILED, b'{"type": "Unresolved"}')
                raise Unresolved(f"event {name!r} did not come within {timeout} s")
            await operation.write(Mark.DONE, message.body.encode(), take=message.id)
        return value.decode(message.body)

    async def ask(
        self,
        question: str,
        value_: Any = None,
        /,
        *,
        key: str | None = None,
        expires: float | None = None,
    ) -> Answer:
        """Ask a person and wait, holding no process; raises Unresolved after `expires`."""
        refuse_unkeepable("the", "question", question)
        digest = value.digest((question, value_), {}, "the ask")
        operation = Operation(self._attempt, EntryKind.ASK, "ask", key, digest)
        async with operation.alone():
            if operation.answered:
                given = await self._outcome(operation)
            else:
                given = await self._await_answer(operation, question, value_, expires)
        if given["decision"] == "approve":
            given["value"] = value.decode(value.encode(value_, "the ask"))
        return Answer(**given)

    async def _await_answer(
        self, operation: Operation, question: str, about: Any, expires: float | None
    ) -> Any:
        ask_id, until = await asks.opened(operation, question, about, expires)
        message = await wait_recording_cancel(operation, "answer", ask_id, until)
        with operation.recording_cancel():
            if message is None:
                await operation.write(Mark.FAILED, b'{"type": "Unresolved"}', close_ask=ask_id)
                raise Unresolved(f"no answer to {question!r} within {expires} s")
            await operation.write(Mark.DONE, message.body.encode(), take=message.id)
        return value.decode(message.body)

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
        """Start a run of another agent and return its result, or its id with `wait=False`.

        Raises StepFailed if the child fails.
        """
        from andon.runtime.operations import child_runs

        return await child_runs.carry_out(self._attempt, agent, args, kwargs, wait, id, key)

    async def _deadline(self, operation: Operation, seconds: float | None) -> float | None:
        if operation.record is not None:
            until: float | None = value.decode(operation.record.body or "null")
            return until
        with operation.recording_cancel():
            await self._attempt.boundary()
            until = None if seconds is None else self._attempt.host.clock.now() + seconds
            await operation.write(Mark.WAITING, msgspec.json.encode(until))
        return until

    async def _outcome(self, operation: Operation) -> Any:
        """Like `answer`, but raise Unresolved for a wait that ended without an outcome."""
        assert operation.record is not None
        if operation.record.state == Mark.FAILED:
            await operation.turn()
            raise Unresolved(f"{operation.kind} {operation.name!r} ended without an outcome")
        return await operation.answer()

    def now(self) -> datetime:
        """The current time in UTC, the same on every replay."""
        found = self._value("now", self._attempt.host.clock.now)
        return datetime.fromtimestamp(found, UTC)

    def random(self) -> float:
        """A random number from 0 to 1, the same on every replay."""
        return float(self._value("random", random.random))

    def uuid(self) -> str:
        """A fresh unique id, the same on every replay."""
        return str(self._value("uuid", lambda: str(uuid.uuid4())))

    def _value(self, name: str, make: Callable[[], Any]) -> Any:
        operation = Operation(self._attempt, EntryKind.VALUE, name, None, "")
        if operation.record is not None:
            return value.decode(operation.record.body or "null")
        made = make()
        self._attempt.journal.append_soon(operation.draft(Mark.DONE, msgspec.json.encode(made)))
        return made

    def log(self, text: str, *, level: str = "info") -> None:
        """Write a line for `andon logs`; replay does not write it again."""
        here = branch.current.get()
        if here is not None and self._attempt.journal.replay.replaying(here.path, here.number):
            return
        self._attempt.journal.add_line(_line(level), _line(text))

    @contextlib.asynccontextmanager
    async def shield(self, name: str, *, at_most: float = 30.0) -> AsyncIterator[None]:
        """Hold off a polite stop until this block ends, for at most `at_most` seconds.

        A longer block is logged and no longer protected.
        """
        attempt, began = self._attempt, self._attempt.loop.time()
        shield = object()  # two shields of one name may be open at once
        attempt.exit.shields[shield] = began + at_most
        try:
            yield
        finally:
            del attempt.exit.shields[shield]
            attempt.exit.notify()
            took = attempt.loop.time() - began
            if took > at_most:
                text = f"shield {name!r} took {took:.1f} s, its limit is {at_most} s"
                log.warning("run %s: %s", self.run_id, text)
                self.log(text, level="warning")

    @contextlib.asynccontextmanager
    async def together(self) -> AsyncIterator[None]:
        """Commit each result in this block together with the intent that follows it at once.

        Both are durable before the effect, or anything else, executes. Only the agent's own code in
        between may see a result that a crash takes back.
        """
        attempt = self._attempt
        attempt.journal.joining += 1
        try:
            yield
        finally:
            attempt.journal.joining -= 1
        await attempt.journal.written()

    @property
    def scratch(self) -> Path:
        """A folder for temporary files, removed when this attempt ends."""
        return self._attempt.scratch

    def cleanup(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        """Call `function` when this attempt ends, however it ends; last registered, first run.

        Each call has five seconds. A plain function runs in a thread.
        """
        counted = self._attempt.tasks.marked(lambda: function(*args, **kwargs))
        self._attempt.cleanups.append(counted)


def _line(text: Any) -> str:
    """Make text storable in every database: a log line is not worth an error."""
    return str(text).replace("\x00", "\\0").encode("utf-8", "backslashreplace").decode()


def _digest(argument: Any) -> str:
    return value.digest((argument,), {}, "the wait")

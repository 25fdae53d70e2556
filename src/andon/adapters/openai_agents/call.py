"""A call of Runner with the id of a run: it starts that run or continues it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from typing import TYPE_CHECKING, Any

from agents import RunResult, RunState
from agents.agent_output import AgentOutputSchema
from pydantic import TypeAdapter

from andon.adapters.openai_agents.conversation import keeping
from andon.adapters.openai_agents.model import arguments_of
from andon.adapters.openai_agents.scope import PLAIN, CallScope, within
from andon.core.run import State
from andon.errors import Conflict, NotFound, StepFailed
from andon.runtime.agent import Agent as Durable
from andon.runtime.client import Client
from andon.transcript.wire import plain

if TYPE_CHECKING:
    from andon.adapters.openai_agents.scope import Effects
    from andon.runtime.context import Context
    from andon.runtime.operations.asks import Answer

GUARDED = ("input", "output", "tool_input", "tool_output")
REST_TRIES = 50  # of POLL_SECONDS; then the result is returned anyway
LET_GO_SECONDS = 1.0  # how long executing code may take to end after the caller stops waiting
POLL_SECONDS = 0.02  # how late an ask in the store is noticed


class Called:
    """One call of Runner: its run in andon, and the result shown to the caller."""

    def __init__(
        self, run_id: str, effects: Effects, agent: Any, given: Any, options: dict[str, Any]
    ) -> None:
        self.run_id, self.effects = run_id, effects
        self.agent, self.given, self.options = agent, given, options
        self.legs: asyncio.Queue[Any] | None = None  # of a streamed call
        self.result: Any = None
        self.error: Exception | None = None
        self.shown: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def carry_out(self) -> Any:
        """Return the result; early if the run waits for people or was released."""
        async with Client() as client:
            name = re.sub(r"[^\w.-]+", "-", self.agent.name)[:100] or "agent"
            durable = Durable(self._execute, name=name)
            start = await self._start(client)
            await self._wake(client)
            running = asyncio.ensure_future(client.run(durable, start, id=self.run_id))
            try:
                while True:
                    await asyncio.wait({running, self.shown}, return_when=asyncio.FIRST_COMPLETED)
                    if running.done():
                        return await self._outcome(running)
                    result, asks = self.shown.result()
                    self.shown = asyncio.get_running_loop().create_future()
                    if not await self._answer(client, result, asks):
                        await self._rest(client)
                        return result
            except asyncio.CancelledError:
                client.let_go(LET_GO_SECONDS)
                raise
            finally:
                running.cancel()
                await asyncio.wait({running})

    async def _wake(self, client: Client) -> None:
        """Wake a run that waits for people, so that it shows its asks to this caller too."""
        with contextlib.suppress(NotFound):
            if (await client.get(self.run_id)).state == State.SUSPENDED:
                await client.send(self.run_id, "andon.called")

    async def _rest(self, client: Client) -> None:
        """Wait until a run that waits for people has settled, before its process may end."""
        for _ in range(REST_TRIES):
            if (await client.get(self.run_id)).state != State.RUNNING:
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _start(self, client: Client) -> Any:
        """Return the run's input; a call that brings a decision keeps the input of the first."""
        if not isinstance(self.given, RunState):
            return {"input": plain(self.given)}
        with contextlib.suppress(NotFound):
            first = (await client.journal(self.run_id))[0]
            raw = first.body or await asyncio.to_thread(client._store.blob, first.blob)  # noqa: SLF001
            return json.loads(str(raw))["start"]
        return {"state": self.given.to_json()}

    async def _outcome(self, running: asyncio.Future[Any]) -> Any:
        try:
            kept = running.result()
        except StepFailed as failed:
            error = self.error
            if error is None:
                raise
            cause = error.__cause__ if isinstance(error, StepFailed) else None
            raise (cause if isinstance(cause, Exception) else error) from failed
        return self.result or await _revived(kept, self.agent, self.options.get("context"))

    async def _execute(self, ctx: Context, start: Any) -> Any:
        try:
            return await self._play(ctx, start)
        except Exception as error:
            self.error = error
            raise

    async def _play(self, ctx: Context, start: Any) -> Any:
        given = await self._state(start["state"]) if "state" in start else start["input"]
        leg = 0
        while (result := await self._leg(ctx, given, leg)).interruptions:
            given = await self._decided(ctx, result, leg)
            leg += 1
        self.result = result
        return _kept(result)

    async def _leg(self, ctx: Context, given: Any, leg: int) -> Any:
        scope = CallScope(ctx, f"{leg}/" if leg else "", self.effects, owner="")
        options = keeping(scope, self.options)
        with within(scope):
            if self.legs is None:
                return await PLAIN.run(self.agent, given, **options)
            result: Any = PLAIN.run_streamed(self.agent, given, **options)
        self.legs.put_nowait(result)
        await result.run_loop_task
        result._check_errors()  # noqa: SLF001 (raises what a listener of the stream would get)
        if result._stored_exception is not None:  # noqa: SLF001
            raise result._stored_exception  # noqa: SLF001
        if result._cancel_mode == "after_turn" and result.final_output is None:  # noqa: SLF001
            self._show(result, [])
            await asyncio.get_running_loop().create_future()  # until the run has left
        return result

    def _show(self, result: Any, asks: list[str]) -> None:
        if not self.shown.done():
            self.shown.set_result((result, asks))

    async def _decided(self, ctx: Context, result: Any, leg: int) -> Any:
        """Ask people about the calls that need approval, show the asks to the caller, and wait."""
        keys = [f"approve/{leg}/{item.call_id}" for item in result.interruptions]
        asked = [
            asyncio.ensure_future(
                ctx.ask(
                    f"May the tool {item.name!r} be called?", arguments_of(item.arguments), key=key
                )
            )
            for item, key in zip(result.interruptions, keys, strict=True)
        ]
        ids = [f"@ask/ask/{key}" for key in keys]
        while not all(one.done() for one in asked):
            attempt = ctx._attempt  # noqa: SLF001
            found = await attempt.read(attempt.host.store.asks, ctx.run_id)
            if opened := [one.id for one in found if one.id in ids]:
                self._show(result, opened)
                break
            await asyncio.sleep(POLL_SECONDS)
        answers: list[Answer] = await asyncio.gather(*asked)
        for answer in answers:
            if answer.decision == "respond" and isinstance(answer.value, dict):
                return await self._state(answer.value)
        state = result.to_state()
        for item, answer in zip(state.get_interruptions(), answers, strict=True):
            if answer.decision == "approve":
                state.approve(item)
            else:
                why = None if answer.value is None else f"A person said: {plain(answer.value)}"
                state.reject(item, rejection_message=why)
        return state

    async def _answer(self, client: Client, result: Any, asks: list[str]) -> bool:
        """Answer the open asks with the decisions in the caller's state; return whether it did."""
        given, self.given = self.given, None
        if not asks or not isinstance(given, RunState):
            return False
        about = {item.call_id for item in given.get_interruptions()}
        if about != {item.call_id for item in result.interruptions}:
            raise Conflict(
                f"run {self.run_id}: it waits for decisions about other calls than this state has; "
                "take the state of the result that Runner.run gave last"
            )
        for ask in asks:
            await client.answer(self.run_id, "respond", given.to_json(), ask=ask, by="RunState")
        return True

    async def _state(self, kept: Any) -> Any:
        context = self.options.get("context")
        override = {} if context is None else {"context_override": context}
        return await RunState.from_json(self.agent, kept, **override)


def _kept(result: Any) -> dict[str, Any]:
    """Return a result as JSON: the SDK's own form of a run, and its output."""
    state = result.to_state().to_json(context_serializer=lambda _: {})
    state["context"]["context"] = {}  # the caller has it, and it need not be JSON
    output = TypeAdapter(Any).dump_python(result.final_output, mode="json")
    return {"state": state, "final_output": output}


async def _revived(kept: dict[str, Any], agent: Any, context: Any) -> RunResult:
    """Rebuild the recorded result of a finished run."""
    state: Any = await RunState.from_json(agent, kept["state"], context_override=context or {})
    output, last = kept["final_output"], state._current_agent  # noqa: SLF001
    shape = getattr(last, "output_type", None)
    if isinstance(shape, AgentOutputSchema):
        shape = shape.output_type
    if isinstance(shape, type) and shape is not str:
        output = TypeAdapter(shape).validate_python(output)
    names = {"input": "_original_input", "new_items": "_session_items"}
    names |= {"raw_responses": "_model_responses", "context_wrapper": "_context"}
    names |= {f"{one}_guardrail_results": f"_{one}_guardrail_results" for one in GUARDED}
    fields = {name: getattr(state, part) for name, part in names.items()}
    return RunResult(final_output=output, _last_agent=last, **fields)

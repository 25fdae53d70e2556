"""Middleware that makes an agent's model calls steps and its tool calls effects of its run."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from langchain.agents.middleware import AgentMiddleware
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import (
    AIMessage,
    RemoveMessage,
    ToolMessage,
)
from langchain_core.runnables.config import merge_configs, var_child_runnable_config
from langchain_core.tools import BaseTool
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import interrupt

from andon.adapters.langgraph import wire
from andon.adapters.langgraph.invocation import Invocation, here, task_key
from andon.core.effect import SETTLED, EffectState
from andon.core.values import value
from andon.errors import BadInput, Rejected
from andon.runtime.effects.declaration import Declaration, Postponed, declaration
from andon.runtime.operations import asks
from andon.runtime.operations.asks import Answer
from andon.runtime.operations.operation import inside
from andon.store.messages.graphs import GraphFilter
from andon.transcript import IN_DOUBT, NOT_STARTED, Done, Open, Policy
from andon.transcript.ledger import next_move
from andon.transcript.wire import as_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from langchain.agents.middleware.types import AgentState, ModelRequest
    from langgraph.prebuilt.tool_node import ToolCallRequest
    from langgraph.runtime import Runtime

    from andon.runtime.attempt.attempt import Attempt
    from andon.store.store import EffectRow


class AndonMiddleware(AgentMiddleware[Any, Any, Any]):
    """Journals and gates every model call and tool call of an agent. Put it first in the list.

    `effects` declares tools by name whose functions are not declared with `andon.effect_of`: a
    kind, or the arguments of `effect_of`. `approve` names the tools that need a person's approval,
    by LangGraph's `interrupt` and as an ask of the run.
    """

    def __init__(
        self,
        effects: Mapping[str, str | Mapping[str, Any]] | None = None,
        approve: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._effects = {name: _declared(given) for name, given in (effects or {}).items()}
        self._approve = frozenset(approve)

    def before_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> Any:
        """Answer the calls an abandoned thread has left open, so that the model can continue."""
        if not _orphans(state["messages"]):
            return None
        invocation = here()
        return invocation.portal(Repair(invocation.attempt)).update(state["messages"])

    async def abefore_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> Any:
        orphans = _orphans(state["messages"])
        return await Repair(here().attempt).update(state["messages"]) if orphans else None

    def wrap_model_call(
        self, request: ModelRequest[Any], proceed: Callable[[ModelRequest[Any]], Any]
    ) -> Any:
        invocation = here()
        # Emptied after the call: caches remember functions, and would keep the request alive.
        given: list[Any] = [proceed, request]

        def ask() -> Any:
            proceed, request = given
            with _streamed(), _unwinding(_Bubble()):
                return wire.stored_answer(proceed(request))

        context = invocation.portal(invocation.context)
        with _bubbled(given):
            answer = context.model(ask, key=task_key(), calls=wire.planned)
        return wire.response(answer, request)

    async def awrap_model_call(
        self, request: ModelRequest[Any], proceed: Callable[[ModelRequest[Any]], Awaitable[Any]]
    ) -> Any:
        invocation = here()
        given: list[Any] = [proceed, request]

        async def ask() -> Any:
            proceed, request = given
            with _streamed(), _unwinding(_Bubble()):
                return wire.stored_answer(await proceed(request))

        with _bubbled(given):
            answer = await invocation.context.model(ask, key=task_key(), calls=wire.planned)
        return wire.response(answer, request)

    def wrap_tool_call(
        self, request: ToolCallRequest, proceed: Callable[[ToolCallRequest], Any]
    ) -> Any:
        invocation = here(request.runtime.config)
        if request.tool is None:
            return proceed(request)  # reports that there is no such tool
        given: list[Any] = [proceed, request]

        def run(**arguments: Any) -> Any:
            proceed, request = given
            with _unwinding(Postponed("the tool has interrupted its graph")):
                return wire.stored(proceed(_with(request, arguments)))

        tool, call = self._tool(request, run), request.tool_call
        context = invocation.portal(invocation.context)
        with _bubbled(given), _rejected(call) as refusal:
            return wire.result(call, context.tool(*tool, approve=self._asks(invocation, call)))
        return refusal[0]

    async def awrap_tool_call(
        self, request: ToolCallRequest, proceed: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        invocation = here(request.runtime.config)
        if request.tool is None:
            return await proceed(request)
        given: list[Any] = [proceed, request]

        async def run(**arguments: Any) -> Any:
            proceed, request = given
            with _unwinding(Postponed("the tool has interrupted its graph")):
                return wire.stored(await proceed(_with(request, arguments)))

        def begin(**arguments: Any) -> Any:
            return run(**arguments)

        # A tool that LangChain executes in a thread continues there when its await is cancelled.
        tool = self._tool(request, run if _is_async(request.tool) else begin)
        call = request.tool_call
        with _bubbled(given), _rejected(call) as refusal:
            approve = self._asks(invocation, call)
            return wire.result(call, await invocation.context.tool(*tool, approve=approve))
        return refusal[0]

    def _tool(self, request: ToolCallRequest, run: Any) -> tuple[str, str, Any, Any]:
        call, tool = request.tool_call, request.tool
        own = getattr(tool, "func", None) or getattr(tool, "coroutine", None) or tool
        declared = getattr(own, "__andon_effect__", None) or self._effects.get(call["name"])
        if declared is not None:
            run.__andon_effect__ = declared
        if not call["id"]:
            raise BadInput(f"tool {call['name']!r}: expected a call with the provider's id")
        return call["id"], call["name"], call["args"], run

    def _asks(self, invocation: Invocation, call: Any) -> Any:
        """Return how to ask a person: natively and by andon; the first answer counts."""
        if call["name"] not in self._approve:
            return False
        about = {"tool": call["name"], "args": call["args"], "call_id": call["id"]}
        if invocation.over:  # this question was its last state: show it again
            interrupt({"question": f"May the tool {call['name']!r} be called?", **about})

        async def ask(question: str, arguments: Any, *, key: str) -> Answer:
            attempt = invocation.attempt
            said = await asks.put(attempt, question, arguments, key=key)
            if said is None:
                word = _said(interrupt({"question": question, **about}))
                said = await asks.put(attempt, question, arguments, key=key, given=word)
            assert said is not None
            return said

        return ask


def _declared(given: str | Mapping[str, Any]) -> Declaration:
    options = {"kind": given} if isinstance(given, str) else dict(given)
    names = ("kind", "probe", "undo", "undo_within")
    if unknown := options.keys() - set(names):
        raise BadInput(f"effects: expected the arguments of andon.effect_of, found {unknown}")
    return declaration(_declared, *(options.get(name) for name in names))  # type: ignore[arg-type]


def _is_async(tool: BaseTool) -> bool:
    if hasattr(tool, "coroutine"):
        return tool.coroutine is not None
    return type(tool)._arun is not BaseTool._arun  # noqa: SLF001 (LangChain's own way to say so)


def _with(request: ToolCallRequest, arguments: dict[str, Any]) -> ToolCallRequest:
    """Replace the arguments, which a person may have edited."""
    return request.override(tool_call={**request.tool_call, "args": arguments})


def _said(word: Any) -> Answer:
    """Interpret the value a program resumed the graph with; anything unclear counts as a no."""
    if isinstance(word, dict) and isinstance(word.get("decisions"), list) and word["decisions"]:
        word = word["decisions"][0]
    if isinstance(word, dict):
        decision = str(word.get("decision", word.get("type", "respond")))
        rest = word.get("value", word.get("message"))
        edited = word.get("args", (word.get("edited_action") or {}).get("args"))
        if decision == "edit" and isinstance(edited or rest, dict):
            return Answer(decision="edit", value=edited or rest)
        if decision in ("approve", "reject"):
            return Answer(decision=decision, value=rest if decision == "reject" else None)
        return Answer(decision="respond", value=word)
    if word is True or word in ("approve", "yes"):
        return Answer(decision="approve")
    if word is False or word in ("reject", "no"):
        return Answer(decision="reject")
    return Answer(decision="respond", value=word)


@contextlib.contextmanager
def _rejected(call: Any) -> Iterator[list[Any]]:
    refusal: list[Any] = []
    try:
        yield refusal
    except Rejected as error:
        refusal.append(wire.message(call, str(error), "error"))


class _Bubble(BaseException):
    """Unwinds through a step, which then has no outcome."""


@contextlib.contextmanager
def _unwinding(passed: BaseException) -> Iterator[None]:
    """Raise `passed` instead of an exception of LangGraph that unwinds the node."""
    try:
        yield
    except GraphBubbleUp as bubble:
        raise passed from bubble


@contextlib.contextmanager
def _bubbled(given: list[Any]) -> Iterator[None]:
    """Raise the original exception outside the step, and drop the call's references."""
    try:
        yield
    except (_Bubble, Postponed) as passed:
        raise (passed.__cause__ or passed) from None
    finally:
        given.clear()


class _Partial(BaseCallbackHandler):
    """Stores a model's text so far; the next attempt reads it from `andon.current().partial`."""

    run_inline = True

    def __init__(self) -> None:
        self._operation, self._text = inside("model"), ""

    def add(self, *given: Any, **named: Any) -> None:
        said = given[0] if given else named.get("token")
        if isinstance(said, str) and said:
            self._text += said
            journal = self._operation.attempt.journal
            journal.keep_partial(self._operation.place, json.dumps(self._text))


setattr(_Partial, "on_llm_new_token", _Partial.add)  # noqa: B010 (LangChain's word for it)


@contextlib.contextmanager
def _streamed() -> Iterator[None]:
    config = merge_configs(get_config(), {"callbacks": [_Partial()]})
    before = var_child_runnable_config.set(config)
    try:
        yield
    finally:
        var_child_runnable_config.reset(before)


def _orphans(messages: Sequence[Any]) -> list[Any]:
    """Return the calls without a result before the last message of a continued thread."""
    last = messages[-1] if messages else None
    return [] if isinstance(last, AIMessage | ToolMessage) else wire.unanswered(messages)


class Repair:
    """Inserts the missing results of a thread where they belong, from the ledgers of its runs."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    async def update(self, messages: Sequence[Any]) -> dict[str, Any]:
        """Return the update that replaces the thread's messages by the repaired ones."""
        orphans = {call["id"] for call in _orphans(messages)}
        rows = await self._rows()
        found: list[Any] = []
        for message in messages:
            found.append(message)
            calls = message.tool_calls if isinstance(message, AIMessage) else ()
            open_ones = [call for call in calls if call["id"] in orphans]
            found += [await self._result(call, rows) for call in open_ones]
        return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), *_in_place(found)]}

    async def _rows(self) -> list[tuple[str, EffectRow]]:
        """The effects of all runs that have worked on the thread, the newest run first."""
        attempt, store = self._attempt, self._attempt.host.store
        thread = str(get_config()["configurable"]["thread_id"])
        keys = await attempt.read(store.graph_checkpoints, GraphFilter(thread=thread, namespace=""))
        earlier = [json.loads(key.metadata).get("andon_run") for key in keys]
        runs = list(dict.fromkeys([attempt.run.id, *filter(None, earlier)]))
        return [(run, row) for run in runs for row in await attempt.read(store.ledger, run)]

    async def _result(self, call: Any, rows: list[tuple[str, EffectRow]]) -> ToolMessage:
        wanted = call["name"], call["id"]
        own = (one for one in rows if (one[1].name, one[1].key.partition("@@")[0]) == wanted)
        newest = next(own, None)
        state = None if newest is None else await self._state(*newest)
        done = next_move(state, Policy.INTERRUPTED, asked=True, last=False)
        assert isinstance(done, Done)
        if not isinstance(state, Done) or state.error:
            return wire.message(call, done.result, "error")
        found = wire.result(call, done.result)
        for one in found if isinstance(found, list) else [found]:
            if isinstance(one, ToolMessage) and one.tool_call_id == call["id"]:
                return one
        return wire.message(call, as_text(done.result))

    async def _state(self, run: str, row: EffectRow) -> Done | Open:
        if row.state == EffectState.PLANNED:
            return NOT_STARTED
        if row.state not in SETTLED:
            return IN_DOUBT
        store = self._attempt.host.store
        [entry] = await self._attempt.read(store.journal, run, row.seq - 1, 1)
        body = value.decode(await self._attempt.body_of(entry.body, entry.blob))
        if entry.state == EffectState.CONFIRMED:
            return Done(body)
        why = body.get("message", "") if isinstance(body, dict) else ""
        return Done(f"Failed: {why}", error=True)


def _in_place(messages: list[Any]) -> list[Any]:
    """Move results directly after the message with their calls, in the order of the calls."""
    results = {one.tool_call_id: one for one in messages if isinstance(one, ToolMessage)}
    found: list[Any] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            continue
        found.append(message)
        calls = message.tool_calls if isinstance(message, AIMessage) else ()
        found += [results.pop(call["id"]) for call in calls if call["id"] in results]
    return found

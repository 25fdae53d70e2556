"""Pydantic AI: an agent whose model requests and tool calls are in andon's journal.

A durability capability on the framework's own surface for engines (`pydantic_ai.durable_exec`), and
nothing beside it: a model request is `ctx.model`, a tool call `ctx.tool` under the provider's id,
everything else that reaches outside a step. What is not known is refused, never just executed.
"""

import asyncio
import hashlib
import inspect
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, get_type_hints
from weakref import WeakKeyDictionary

import msgspec
from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError
from pydantic_ai import Agent
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    BoundDurableOperation,
    CapabilityOperationId,
    DurabilityEngineSpec,
    DurableOperation,
    DurableOperationBackend,
    EventStreamHandlerId,
    JournalOperationNamer,
    ModelCancelSuspendedResponseId,
    ModelCompactMessagesId,
    ModelRequestId,
    ToolsetCallToolId,
    ToolsetGetInstructionsId,
    ToolsetGetToolsId,
    ToolsetValidateToolArgumentsId,
    conversation_id_from_run_id,
    durable_unit_scope,
)
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ToolCallPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import RunContext, ToolDenied
from pydantic_ai.toolsets import AbstractToolset, ExternalToolset
from pydantic_core import PydanticSerializationError, to_jsonable_python

import andon
from andon.core.journal import EntryKind
from andon.errors import BadInput, Rejected, Stopped
from andon.runtime import branch
from andon.runtime.agent import Agent as RunAgent
from andon.runtime.effects import Declaration
from andon.runtime.operation import Operation, in_thread
from andon.runtime.operation import current as executing
from andon.runtime.sync import Portal
from andon.transcript import Call

__all__ = ["AndonDurability", "run", "run_sync"]

branch.frameworks |= {"pydantic_ai", "pydantic_graph"}

# What else reaches outside; repeated after a crash, which changes nothing.
_STEPS = (
    EventStreamHandlerId,
    ModelCancelSuspendedResponseId,
    ModelCompactMessagesId,
    ToolsetGetInstructionsId,
    ToolsetGetToolsId,
    ToolsetValidateToolArgumentsId,
)
# A tool's result stands in the ledger as it is; what is not a result is under this name.
_OTHER = "pydantic_ai"

# What the function that andon calls is to do: andon keeps functions, so they must be few.
_body: ContextVar[Callable[[dict[str, Any]], Awaitable[Any]]] = ContextVar("andon_pydantic_ai")


def _here() -> Any:
    """The context of the run whose own code executes here, and not inside a step."""
    context = andon.current()
    outside = context is None or isinstance(context, Portal) or executing.get() is not None
    return None if outside else context


class AndonDurability(BaseDurabilityCapability[Any]):
    """`Agent(…, capabilities=[AndonDurability()])`: its runs are andon's.

    `effects`: what a tool is, by its name, where its function does not say so itself: a kind, or
    what `andon.effect_of(…)` answers. `approve`: the tools that a person is asked about first.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="andon",
        durable_unit_noun="step",
        durable_container_noun="run",
        codec=JSON_CODEC,
        toolset_lifecycles={
            "function": "enter-always",
            "mcp": "enter-in-durable-unit",
            "dynamic": "enter-never",
        },
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        cancellation_error_types=(Stopped,),
    )

    def __init__(
        self,
        effects: Mapping[str, str | Callable[..., Any]] | None = None,
        approve: Sequence[str] = (),
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if isinstance(approve, str):
            raise BadInput(f"approve={approve!r}: expected the names of tools, as a tuple or list")
        self.effects = {name: _declared(given) for name, given in (effects or {}).items()}
        self.approve = frozenset(approve)

    @property
    def in_durable_context(self) -> bool:
        return _here() is not None

    def get_durable_operation_backend(self) -> "_Backend":
        return _Backend(self)

    async def before_run(self, ctx: RunContext[Any]) -> None:
        inside = executing.get()  # a tool of another agent: what is done here belongs to it
        if _here() is None and (inside is None or inside.kind != EntryKind.EFFECT):
            raise BadInput(
                f"agent {self.name!r} has AndonDurability and was started outside of a run; nothing"
                " was done. Start it with andon.adapters.pydantic_ai.run(agent, …, run_id=…), "
                "or inside an `async def` that @andon.agent decorates, and not in a step of it"
            )
        await super().before_run(ctx)

    def get_default_run_id(self) -> str | None:
        """The same one on replay, and it says which run of andon it belongs to."""
        context, here = _here(), branch.current.get()
        return None if context is None or here is None else f"{context.run_id}/{here.place()}"

    def get_default_conversation_id(self, run_id: str) -> str | None:
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def wrap_tool_execute(self, ctx: RunContext[Any], **given: Any) -> Any:
        handler = given["handler"]
        try:
            return await handler(given["args"])
        except Rejected as error:
            return ToolDenied(str(error))

    def _wrap_other_leaf_toolset(self, ts: AbstractToolset[Any]) -> Any:
        """A toolset of the user's own acts too. (The base would let it execute unseen.)"""
        return None if isinstance(ts, ExternalToolset) else self._build_function_toolset(ts)  # type: ignore[arg-type]

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any] | None:
        wrapped = super().get_wrapper_toolset(toolset) or toolset
        if self.in_durable_context:
            known = {id(one.wrapped) for one in self._toolsets_by_id.values()}
            wrapped.apply(lambda leaf: _refuse_unseen(leaf, known))
        return wrapped

    def _model_stream_event_handler(self) -> Any:
        """What the model says while it speaks is kept, should the run have to leave."""
        handler = super()._model_stream_event_handler()

        async def keep(ctx: RunContext[Any], events: Any) -> None:
            if handler is None:
                async for _ in _checkpointed(events):
                    pass
            else:
                await handler(ctx, _checkpointed(events))

        return keep


async def _checkpointed(events: Any) -> Any:
    said, context = "", andon.current()
    async for event in events:
        part = getattr(event, "part", None) or getattr(event, "delta", None)
        kind = getattr(part, "part_kind", None) or getattr(part, "part_delta_kind", None)
        if kind == "text" and event.event_kind != "part_end":
            said += getattr(part, "content", None) or getattr(part, "content_delta", "") or ""
            context.checkpoint(said)
        yield event


def _refuse_unseen(leaf: AbstractToolset[Any], known: set[int]) -> None:
    if id(leaf) not in known and not isinstance(leaf, ExternalToolset):
        raise BadInput(
            f"toolset {leaf.label}: it was added at run time, so its calls would not be written "
            "down; nothing was executed. Give it to Agent(toolsets=[…]), with an id"
        )


# ── what is done, by what it is ───────────────────────────────────────────────────────────────


class _Backend(DurableOperationBackend[None]):
    def __init__(self, durability: AndonDurability) -> None:
        self.durability = durability

    def bind(self, operation: DurableOperation[Any, Any, Any]) -> "_Bound":
        return _Bound(operation, self.durability)

    def config_for_tool(self, *_: Any, **__: Any) -> Literal[False] | None:
        return None

    def registrations(self) -> Sequence[Callable[..., object]]:
        return ()


class _Bound(BoundDurableOperation[Any, Any, Any]):
    """One operation of the framework, as one of andon's."""

    def __init__(
        self, operation: DurableOperation[Any, Any, Any], durability: AndonDurability
    ) -> None:
        self._operation, self.durability = operation, durability

    @property
    def operation(self) -> DurableOperation[Any, Any, Any]:
        return self._operation

    async def __call__(self, params: Any, *, config: object | None = None) -> Any:
        context, meant = _here(), self.operation.operation_id
        if context is None:
            raise BadInput(f"{type(meant).__name__}: called outside of a run; nothing was executed")
        match meant:
            case ModelRequestId():
                payload = await self._model(context, params)
            case ToolsetCallToolId():
                payload = await self._tool(context, params)
            case CapabilityOperationId():
                payload = await self._effect(context, params)
            case _ if isinstance(meant, _STEPS):
                payload = await self._step(context, params)
            case _:
                raise BadInput(
                    f"andon does not know the operation {type(meant).__name__} of this version of "
                    "pydantic-ai; nothing was executed. Use a version of the tested range"
                )
        return self.operation.result_codec.load(payload)

    async def _model(self, context: Any, params: Any) -> Any:
        """Ask the model; its answer and the calls that it plans are one commit."""
        planned = _callable(params.model_request_parameters)

        def calls(payload: Any) -> list[Call]:
            said = self.operation.result_codec.load(payload)
            parts = [part for part in said.tool_calls if part.tool_name in planned]
            return [Call(one.tool_call_id, one.tool_name, one.args_as_dict(), 0) for one in parts]

        key = _next_key(context, params, "model")
        with _doing(lambda _: self._handled(params)):
            return await context.model(_ask, _digest(params.messages), key=key, calls=calls)

    async def _tool(self, context: Any, params: Any) -> Any:
        """Call a tool as the model asked for it: an effect under the provider's id."""
        call_id, name, arguments = _asked(params)
        names = {name, params.name}

        def body(given: dict[str, Any]) -> Awaitable[Any]:
            return self._called(params if given == arguments else _edited(params, given))

        quiet = self.operation.operation_id.toolset_kind == "mcp" or _is_async(params)  # type: ignore[union-attr]
        function = _acting(self._declaration(params, names), quiet)
        approve = bool(names & self.durability.approve)
        with _doing(body):
            stored = await context.tool(call_id, name, arguments, function, approve=approve)
        return _payload(stored)

    async def _effect(self, context: Any, params: Any) -> Any:
        """What a capability does may act: once, unless it is declared."""
        meant: Any = self.operation.operation_id
        name = f"{meant.capability_id}.{meant.operation}"
        function = _acting(self.durability.effects.get(name, _declared(None)), quiet=False)
        with _doing(lambda _: self._handled(params)):
            return await context.effect(function, name=name, key=_next_key(context, params, name))

    async def _step(self, context: Any, params: Any) -> Any:
        name = JournalOperationNamer(self.durability.name).operation_name(
            self.operation.operation_id
        )
        with _doing(lambda _: self._handled(params)):
            return await context.step(_unit, name=name, key=_next_key(context, params, name))

    def _declaration(self, params: Any, names: set[str]) -> Any:
        """What the tool is: by its function, else by its name, else by what its server hints."""
        own = getattr(_function_of(params), "__andon_effect__", None)
        if own is not None:
            return own
        effects = self.durability.effects
        named = next((effects[name] for name in sorted(names) if name in effects), None)
        return named or _declared(_hinted(params))

    async def _handled(self, params: Any) -> Any:
        """The framework's own work, its result as JSON; one that is none is andon's to refuse."""
        inside = executing.get()
        assert inside is not None
        with durable_unit_scope(), Agent.using_thread_executor(_Threads(inside)):
            result = await self.operation.handler(params)
        try:
            return self.operation.result_codec.dump(result)
        except (PydanticSerializationError, TypeError):
            return result  # it did happen: andon writes that down, with why it cannot be kept

    async def _called(self, params: Any) -> Any:
        inside = executing.get()
        assert inside is not None
        # What the tool sees is what the ledger has, and so can serve as an idempotency key.
        ctx = replace(params.ctx, tool_call_id=inside.key)
        return _stored(await self._handled(replace(params, ctx=ctx)))


class _Threads(Executor):
    """Where plain functions are called: andon knows of these threads, and when they end."""

    def __init__(self, inside: Operation) -> None:
        self._inside = inside

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return in_thread(self._inside, lambda: fn(*args, **kwargs))


@contextmanager
def _doing(body: Callable[[dict[str, Any]], Awaitable[Any]]) -> Iterator[None]:
    token = _body.set(body)
    try:
        yield
    finally:
        _body.reset(token)


async def _ask(_conversation: str) -> Any:
    return await _body.get()({})


async def _unit() -> Any:
    return await _body.get()({})


@lru_cache(maxsize=1024)
def _acting(declared: Declaration, quiet: bool) -> Callable[..., Any]:
    """A function that does what is to be done. `quiet`: once it is cancelled, nothing acts."""

    async def here(**given: Any) -> Any:
        return await _body.get()(given)

    def perhaps_in_a_thread(**given: Any) -> Any:
        return _body.get()(given)

    function: Callable[..., Any] = here if quiet else perhaps_in_a_thread
    vars(function)["__andon_effect__"] = declared
    return function


def _declared(given: str | Callable[..., Any] | None) -> Declaration:
    def marked() -> None:
        return None

    decorate = given if callable(given) else andon.effect_of(kind=given)
    found = getattr(decorate(marked), "__andon_effect__", None)
    if not isinstance(found, Declaration):
        raise BadInput(f"effects: expected a kind or andon.effect_of(…), found {given!r}")
    return found


# ── what the framework says about it ──────────────────────────────────────────────────────────


def _callable(parameters: ModelRequestParameters) -> set[str]:
    """The tools that are called here: not an output, nor what others call or a person allows."""
    return {tool.name for tool in parameters.function_tools if tool.kind == "function"}


def _asked(params: Any) -> tuple[str, str, dict[str, Any]]:
    """The call as the model made it: its id, name and arguments."""
    ctx: RunContext[Any] = params.ctx
    call_id = str(ctx.tool_call_id)
    said = (part for message in reversed(ctx.messages) for part in message.parts)
    made = next(
        (p for p in said if isinstance(p, ToolCallPart) and p.tool_call_id == call_id), None
    )
    if made is not None and not ctx.tool_call_approved:
        return call_id, made.tool_name, made.args_as_dict()
    # A person has allowed it, and may have changed it; the tool may have asked for that itself.
    name = params.name if made is None else made.tool_name
    return f"{call_id}@approved", name, to_jsonable_python(params.tool_args)


def _edited(params: Any, given: dict[str, Any]) -> Any:
    """The same call with what a person made of its arguments."""
    tool = getattr(params, "tool", None)
    if tool is not None:
        given = tool.args_validator.validate_python(given, context=params.ctx.validation_context)
    return replace(params, tool_args=given)


def _function_of(params: Any) -> Any:
    tool = getattr(params, "tool", None)
    found = getattr(getattr(tool, "toolset", None), "tools", None)
    name = getattr(tool, "original_name", None) or params.name
    return getattr(found.get(name), "function", None) if isinstance(found, dict) else None


def _is_async(params: Any) -> bool:
    return bool(getattr(getattr(params, "tool", None), "is_async", False))


def _hinted(params: Any) -> str | None:
    """What an MCP server says of its tool: a hint, which the user's own word precedes."""
    tool = getattr(params, "tool", None)
    definition = tool.tool_def if tool is not None else getattr(params, "tool_def", None)
    hints = (definition.metadata or {}).get("annotations") if definition is not None else None
    if not isinstance(hints, dict):
        return None
    return (
        "pure"
        if hints.get("readOnlyHint")
        else "idempotent"
        if hints.get("idempotentHint")
        else None
    )


_counts: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()


def _next_key(context: Any, params: Any, name: str) -> str:
    """Which one of an agent's run it is, or which call it belongs to: the same on replay."""
    ctx = getattr(params, "ctx", None) or getattr(params, "run_context", None)
    of = "/".join(
        str(one) for one in (getattr(ctx, "run_id", ""), getattr(ctx, "tool_call_id", None)) if one
    )
    counted = _counts.setdefault(context, Counter())
    counted[f"{name} {of}"] += 1
    return f"{of}/{counted[f'{name} {of}']}"


def _digest(messages: list[ModelMessage]) -> str:
    """What was said, without when it was, and without what the model is told anew each time."""
    said = [
        (message["kind"], [_told(part) for part in message["parts"]])
        for message in ModelMessagesTypeAdapter.dump_python(messages, mode="json")
    ]
    return hashlib.sha256(msgspec.json.encode(said)).hexdigest()


def _told(part: dict[str, Any]) -> dict[str, Any]:
    if part["part_kind"] == "system-prompt":
        return {}
    fresh = {"timestamp", "tool_call_id"} if part["part_kind"] == "retry-prompt" else {"timestamp"}
    return {name: given for name, given in part.items() if name not in fresh}


def _stored(payload: Any) -> Any:
    plain = isinstance(payload, dict) and payload.keys() == {"result", "kind"}
    if plain and payload["kind"] == "tool_return" and not _is_other(payload["result"]):
        return payload["result"]
    return {_OTHER: payload} if isinstance(payload, dict) else payload


def _payload(stored: Any) -> Any:
    return stored[_OTHER] if _is_other(stored) else {"result": stored, "kind": "tool_return"}


def _is_other(stored: Any) -> bool:
    return isinstance(stored, dict) and stored.keys() == {_OTHER}


# ── runs ──────────────────────────────────────────────────────────────────────────────────────


async def run(
    agent: AbstractAgent[Any, Any],
    user_prompt: Any = None,
    *,
    run_id: str | None = None,
    store: str | None = None,
    **arguments: Any,
) -> AgentRunResult[Any]:
    """`agent.run(…)` as a run of andon; with a `run_id` that exists, that one is gone on with.

    Inside of a run it is a part of that one. `store`: else the one of ANDON_STORE or andon.toml.
    """
    if andon.current() is not None:
        return await agent.run(user_prompt, **arguments)
    kinds = [*_types(arguments.get("output_type") or agent.output_type), Any]

    async def execute(ctx: Any, prompt: Any) -> Any:
        result = await agent.run(user_prompt, **arguments)
        number = next(n for n, kind in enumerate(kinds) if _is_a(result.output, kind))
        return {"type": number, "result": _kept(kinds[number]).dump_python(result, mode="json")}

    name = re.sub(r"[^\w.\-]", "-", agent.name or "agent")[:100]
    async with andon.Client(store) as client:
        prompt = to_jsonable_python(user_prompt)
        found = await client.run(RunAgent(execute, name=name), prompt, id=run_id)
    result: AgentRunResult[Any] = _kept(kinds[found["type"]]).validate_python(found["result"])
    return result


def run_sync(agent: AbstractAgent[Any, Any], user_prompt: Any = None, **arguments: Any) -> Any:
    """The same for a plain program."""
    return asyncio.run(run(agent, user_prompt, **arguments))


def _kept(kind: Any) -> TypeAdapter[Any]:
    of: Any = AgentRunResult
    return TypeAdapter(of[kind])


def _types(spec: Any) -> list[Any]:
    """What an agent may answer with, in order."""
    if isinstance(spec, Sequence) and not isinstance(spec, str):
        return [kind for one in spec for kind in _types(one)]
    if type(spec).__module__ == "pydantic_ai.output":
        held = ("output", "outputs", "output_function")
        return _types(next(getattr(spec, name) for name in held if hasattr(spec, name)))
    return [get_type_hints(spec).get("return", Any)] if inspect.isroutine(spec) else [spec]


def _is_a(output: Any, kind: Any) -> bool:
    try:
        TypeAdapter(kind).validate_python(output, strict=True)
    except (ValidationError, PydanticSchemaGenerationError):
        return False
    return True

"""Pydantic AI: an agent whose model requests and tool calls are in andon's journal.

It is a durability capability and uses only the framework's own surface for engines
(`pydantic_ai.durable_exec`). A model request is `ctx.model`, a tool call is `ctx.tool` under the
provider's id, and every other operation that reaches outside is a step. An unknown operation is
refused, never just executed.
"""

import asyncio
import inspect
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from typing import Any, get_type_hints
from weakref import WeakKeyDictionary

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError
from pydantic_ai import Agent, AgentRunResult, RunContext, ToolDenied
from pydantic_ai import durable_exec as durable
from pydantic_ai import messages as wire
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.toolsets import AbstractToolset, ExternalToolset
from pydantic_core import PydanticSerializationError, to_jsonable_python

import andon
from andon.adapters.pydantic_ai.conversation import OTHER, is_other
from andon.core.journal import EntryKind
from andon.errors import BadInput, Rejected, Stopped
from andon.runtime.agent import Agent as RunAgent
from andon.runtime.attempt import branch
from andon.runtime.effects.declaration import Declaration
from andon.runtime.operations.operation import Threads
from andon.runtime.sync import on_loop
from andon.transcript import Call

branch.frameworks |= {"pydantic_ai", "pydantic_graph"}

# Other operations that reach outside; a crash may repeat them, which changes nothing.
_STEPS = (
    durable.EventStreamHandlerId,
    durable.ModelCancelSuspendedResponseId,
    durable.ModelCompactMessagesId,
    durable.ToolsetGetInstructionsId,
    durable.ToolsetGetToolsId,
    durable.ToolsetValidateToolArgumentsId,
)
# The work of the function that andon calls. andon caches functions, so they must be few.
_body: ContextVar[Callable[[dict[str, Any]], Awaitable[Any]]] = ContextVar("andon_pydantic_ai")


class AndonDurability(durable.BaseDurabilityCapability[Any]):
    """Makes the runs of `Agent(…, capabilities=[AndonDurability()])` runs of andon.

    `effects` declares tools by name whose functions do not declare themselves: a kind, or the
    result of `andon.effect_of(…)`. `approve` names the tools that need a person's approval first.
    """

    engine_spec = durable.DurabilityEngineSpec(
        engine_name="andon",
        durable_unit_noun="step",
        durable_container_noun="run",
        codec=durable.JSON_CODEC,
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
        return on_loop() is not None

    def get_durable_operation_backend(self) -> "_Operations":
        return _Operations(self)

    async def before_run(self, ctx: RunContext[Any]) -> None:
        inside = branch.inside.get()  # a tool of another agent: this run belongs to it
        if on_loop() is None and (inside is None or inside.kind != EntryKind.EFFECT):
            raise BadInput(
                f"agent {self.name!r} has AndonDurability and was started outside of a run; nothing"
                " was done. Start it with andon.adapters.pydantic_ai.run(agent, …, run_id=…), "
                "or inside an `async def` that @andon.agent decorates, and not in a step of it"
            )
        await super().before_run(ctx)

    def get_default_run_id(self) -> str | None:
        """Return an id that is the same on replay and names the run of andon it belongs to."""
        context, place = on_loop(), branch.current.get()
        return f"{context.run_id}/{place.place()}" if context and place else None

    def get_default_conversation_id(self, run_id: str) -> str | None:
        return durable.conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def wrap_tool_execute(self, ctx: RunContext[Any], **given: Any) -> Any:
        try:
            return await given["handler"](given["args"])
        except Rejected as error:
            return ToolDenied(str(error))

    def _wrap_other_leaf_toolset(self, ts: AbstractToolset[Any]) -> Any:
        """Wrap the user's own toolsets too: they act, and the base would not journal them."""
        return None if isinstance(ts, ExternalToolset) else self._build_function_toolset(ts)  # type: ignore[arg-type]

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any] | None:
        wrapped = super().get_wrapper_toolset(toolset) or toolset
        if self.in_durable_context:
            seen = {id(one.wrapped) for one in self._toolsets_by_id.values()}
            wrapped.apply(lambda leaf: _refuse_unseen(leaf, seen))
        return wrapped

    def _model_stream_event_handler(self) -> Any:
        """Checkpoint the model's text while it streams, in case the run has to leave."""
        handle = super()._model_stream_event_handler() or _drain
        return lambda ctx, events: handle(ctx, _checkpointed(events))


async def _drain(_: RunContext[Any], events: Any) -> None:
    async for _event in events:
        pass


async def _checkpointed(events: Any) -> Any:
    said, context = "", andon.current()
    async for event in events:
        part = event.part if event.event_kind == "part_start" else getattr(event, "delta", None)
        if isinstance(part, wire.TextPart | wire.TextPartDelta):
            said += part.content if isinstance(part, wire.TextPart) else part.content_delta
            context.checkpoint(said)
        yield event


def _refuse_unseen(leaf: AbstractToolset[Any], seen: set[int]) -> None:
    if id(leaf) not in seen and not isinstance(leaf, ExternalToolset):
        raise BadInput(
            f"toolset {leaf.label}: it was added at run time, so its calls would not be written "
            "down; nothing was executed. Give it to Agent(toolsets=[…]), with an id"
        )


class _Operations(durable.DurableOperationBackend[None]):
    def __init__(self, durability: AndonDurability) -> None:
        self.durability = durability

    def bind(self, operation: durable.DurableOperation[Any, Any, Any]) -> "_Bound":
        return _Bound(operation, self.durability)

    def config_for_tool(self, *_: Any, **__: Any) -> None:
        return None

    def registrations(self) -> Sequence[Callable[..., object]]:
        return ()


class _Bound(durable.BoundDurableOperation[Any, Any, Any]):
    """One operation of the framework, carried out as one of andon's."""

    def __init__(
        self, operation: durable.DurableOperation[Any, Any, Any], durability: AndonDurability
    ) -> None:
        self._operation, self.durability = operation, durability

    @property
    def operation(self) -> durable.DurableOperation[Any, Any, Any]:
        return self._operation

    async def __call__(self, params: Any, *, config: object | None = None) -> Any:
        context, meant = on_loop(), self.operation.operation_id
        if context is None:
            raise BadInput(f"{type(meant).__name__}: called outside of a run; nothing was executed")
        doing = {
            durable.ModelRequestId: self._model,
            durable.ToolsetCallToolId: self._tool,
            durable.CapabilityOperationId: self._effect,
            **dict.fromkeys(_STEPS, self._step),
        }.get(type(meant))
        if doing is None:
            raise BadInput(
                f"andon does not know the operation {type(meant).__name__} of this version of "
                "pydantic-ai; nothing was executed. Use a version of the tested range"
            )
        return self.operation.result_codec.load(await doing(context, params))

    async def _model(self, context: Any, params: Any) -> Any:
        """Ask the model; its answer and the calls that it plans are one commit."""
        # Function tools only: neither outputs nor calls that others make or a person must allow.
        tools = params.model_request_parameters.function_tools
        planned = {tool.name for tool in tools if tool.kind == "function"}

        def calls(payload: Any) -> list[Call]:
            said = self.operation.result_codec.load(payload)
            parts = [part for part in said.tool_calls if part.tool_name in planned]
            return [Call(one.tool_call_id, one.tool_name, one.args_as_dict(), 0) for one in parts]

        key = _next_key(context, params, "model")
        _body.set(lambda _: self._handled(params))
        return await context.model(_unit, _said(params.messages), key=key, calls=calls)

    async def _tool(self, context: Any, params: Any) -> Any:
        """Execute a tool call of the model as an effect whose key is the provider's id."""
        call_id, name, arguments = _asked(params)
        tool, names = getattr(params, "tool", None), {name, params.name}

        def body(given: dict[str, Any]) -> Awaitable[Any]:
            return self._called(params if given == arguments else _edited(params, tool, given))

        _body.set(body)
        kind = getattr(self.operation.operation_id, "toolset_kind", "")
        quiet = kind == "mcp" or getattr(tool, "is_async", False)
        function = _acting(self._declaration(params, tool, names), quiet)
        approve = bool(names & self.durability.approve)
        stored = await context.tool(call_id, name, arguments, function, approve=approve)
        return stored[OTHER] if is_other(stored) else {"result": stored, "kind": "tool_return"}

    async def _effect(self, context: Any, params: Any) -> Any:
        """Execute a capability's operation, which may act: once, unless declared otherwise."""
        meant: Any = self.operation.operation_id
        name = f"{meant.capability_id}.{meant.operation}"
        function = _acting(self.durability.effects.get(name, _declared(None)), quiet=False)
        _body.set(lambda _: self._handled(params))
        return await context.effect(function, name=name, key=_next_key(context, params, name))

    async def _step(self, context: Any, params: Any) -> Any:
        namer = durable.JournalOperationNamer(self.durability.name)
        name = namer.operation_name(self.operation.operation_id)
        _body.set(lambda _: self._handled(params))
        return await context.step(_unit, name=name, key=_next_key(context, params, name))

    def _declaration(self, params: Any, tool: Any, names: set[str]) -> Declaration:
        """Declare the tool: by its function, else by its name, else by its server's hints."""
        functions = getattr(getattr(tool, "toolset", None), "tools", None) or {}
        own = functions.get(getattr(tool, "original_name", None) or params.name)
        declared = getattr(getattr(own, "function", None), "__andon_effect__", None)
        named = (one for name, one in self.durability.effects.items() if name in names)
        return declared or next(named, None) or _declared(_hinted(params, tool))

    async def _handled(self, params: Any) -> Any:
        """Run the framework's handler; returns JSON, or the result itself if it has no JSON."""
        inside = branch.inside.get()
        assert inside is not None
        with durable.durable_unit_scope(), Agent.using_thread_executor(Threads(inside)):
            result = await self.operation.handler(params)
        try:
            return self.operation.result_codec.dump(result)
        except (PydanticSerializationError, TypeError):
            return result  # it did happen: andon records that, and why the result cannot be stored

    async def _called(self, params: Any) -> Any:
        inside = branch.inside.get()
        assert inside is not None
        # The tool sees the ledger's id, so the id can serve as an idempotency key.
        ctx = replace(params.ctx, tool_call_id=inside.key)
        return _stored(await self._handled(replace(params, ctx=ctx)))


async def _unit(*_: Any) -> Any:
    return await _body.get()({})


@lru_cache(maxsize=1024)
def _acting(declared: Declaration, quiet: bool) -> Callable[..., Any]:
    """Return a function that executes the current body; `quiet`: nothing acts after a cancel."""

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


def _asked(params: Any) -> tuple[str, str, dict[str, Any]]:
    """Return the call as the model made it: its id, name and arguments."""
    ctx: RunContext[Any] = params.ctx
    said = [part for one in ctx.messages for part in one.parts if part.part_kind == "tool-call"]
    made = next((part for part in reversed(said) if part.tool_call_id == ctx.tool_call_id), None)
    name = params.name if made is None else made.tool_name
    # An approved call is a new one: it may have been changed, or have asked for approval itself.
    if ctx.tool_call_approved:
        return f"{ctx.tool_call_id}@approved", name, to_jsonable_python(params.tool_args)
    arguments = to_jsonable_python(params.tool_args) if made is None else made.args_as_dict()
    return str(ctx.tool_call_id), name, arguments


def _edited(params: Any, tool: Any, given: dict[str, Any]) -> Any:
    """Replace the arguments of a call by those that a person has edited."""
    if tool is not None:
        context = params.ctx.validation_context
        try:
            given = tool.args_validator.validate_python(given, context=context)
        except ValidationError as error:
            raise andon.did_not_happen(f"the edited value does not fit: {error}") from None
    return replace(params, tool_args=given)


def _hinted(params: Any, tool: Any) -> str | None:
    """Return the kind an MCP server hints for its tool; the user's declaration takes precedence."""
    definition = getattr(tool or params, "tool_def", None)
    hints = (getattr(definition, "metadata", None) or {}).get("annotations") or {}
    if hints.get("readOnlyHint"):
        return "pure"
    return "idempotent" if hints.get("idempotentHint") else None


_counts: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()


def _next_key(context: Any, params: Any, name: str) -> str:
    """Return a key from the agent's run, its tool call and a count, the same on replay."""
    ctx = getattr(params, "ctx", None) or getattr(params, "run_context", None)
    of = f"{getattr(ctx, 'run_id', None)}/{getattr(ctx, 'tool_call_id', None) or ''}".rstrip("/")
    counted = _counts.setdefault(context, Counter())
    counted[f"{name} {of}"] += 1
    return f"{of}/{counted[f'{name} {of}']}"


def _said(messages: list[wire.ModelMessage]) -> list[Any]:
    """Dump messages without timestamps and without parts that are made anew for each request."""
    dumped = wire.ModelMessagesTypeAdapter.dump_python(messages, mode="json")
    return [[_lasting(part) for part in message["parts"]] for message in dumped]


def _lasting(part: dict[str, Any]) -> dict[str, Any]:
    if part["part_kind"] == "system-prompt":
        return {}
    fresh = {"timestamp", "tool_call_id"} if part["part_kind"] == "retry-prompt" else {"timestamp"}
    return {name: given for name, given in part.items() if name not in fresh}


def _stored(payload: Any) -> Any:
    plain = isinstance(payload, dict) and payload.keys() == {"result", "kind"}
    if plain and payload["kind"] == "tool_return" and not is_other(payload["result"]):
        return payload["result"]
    return {OTHER: payload} if isinstance(payload, dict) else payload


async def run(
    agent: AbstractAgent[Any, Any],
    user_prompt: Any = None,
    *,
    run_id: str | None = None,
    store: str | None = None,
    **arguments: Any,
) -> AgentRunResult[Any]:
    """Execute `agent.run(…)` as a run of andon; an existing `run_id` continues that run.

    Inside a run, it is part of that run. `store` defaults to that of ANDON_STORE or andon.toml.
    """
    if andon.current() is not None:
        return await agent.run(user_prompt, **arguments)
    kinds = [*_types(arguments.get("output_type") or agent.output_type), Any]
    result_of: Any = AgentRunResult

    async def execute(ctx: Any, prompt: Any) -> Any:
        result = await agent.run(user_prompt, **arguments)
        number = _number(result.output, kinds)
        kept = TypeAdapter(result_of[kinds[number]]).dump_python(result, mode="json")
        return {"type": number, "result": kept}

    name = re.sub(r"[^\w.\-]", "-", agent.name or "agent")[:100]
    async with andon.Client(store) as client:
        prompt = to_jsonable_python(user_prompt)
        found = await client.run(RunAgent(execute, name=name), prompt, id=run_id)
    kept = TypeAdapter(result_of[kinds[found["type"]]])
    return kept.validate_python(found["result"])  # type: ignore[no-any-return]


def run_sync(agent: AbstractAgent[Any, Any], user_prompt: Any = None, **arguments: Any) -> Any:
    """Call `run` from a plain program."""
    return asyncio.run(run(agent, user_prompt, **arguments))


def _types(spec: Any) -> list[Any]:
    """Return the types an agent may answer with, in order."""
    if isinstance(spec, Sequence) and not isinstance(spec, str):
        return [kind for one in spec for kind in _types(one)]
    if type(spec).__module__ == "pydantic_ai.output":
        held = ("output", "outputs", "output_function")
        return _types(next(getattr(spec, name) for name in held if hasattr(spec, name)))
    return [get_type_hints(spec).get("return", Any)] if inspect.isroutine(spec) else [spec]


def _number(output: Any, kinds: list[Any]) -> int:
    """Return the position of the first type that the output fits."""
    for number, kind in enumerate(kinds):
        with suppress(ValidationError, PydanticSchemaGenerationError):
            TypeAdapter(kind).validate_python(output, strict=True)
            return number
    raise AssertionError  # unreachable: the last type is Any

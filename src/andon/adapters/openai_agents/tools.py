"""Function tools as effects, whose key is the provider's id of the call."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, get_type_hints

from agents import ToolOutputFileContent, ToolOutputImage, ToolOutputText
from agents.run_internal import tool_execution
from agents.tool import _FunctionToolInvocationResult
from pydantic import BaseModel, TypeAdapter

from andon.adapters.openai_agents.model import arguments_of
from andon.adapters.openai_agents.scope import CallScope, active, within
from andon.errors import Stopped
from andon.runtime.effects.declaration import effect_of
from andon.runtime.operations.operation import is_async
from andon.transcript.wire import plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from agents import FunctionTool

_KINDS = (ToolOutputText, ToolOutputImage, ToolOutputFileContent)
_OUTPUTS: dict[str, type[BaseModel]] = {one.__name__: one for one in _KINDS}
_KIND = "andon.output"  # marks a tool's output that is not plain JSON
_plainly: Any = tool_execution._invoke_function_tool_with_metadata  # type: ignore[attr-defined]  # noqa: SLF001


async def call_tool(*, function_tool: FunctionTool, context: Any, arguments: str) -> Any:
    """Call a function tool as an effect whose key is the provider's id of the call."""
    scope = active()
    plainly = partial(_plainly, function_tool=function_tool, context=context)
    if scope is None:
        return await plainly(arguments=arguments)
    call_id, name = context.tool_call_id, getattr(context.tool_call, "name", context.tool_name)
    if function_tool._is_agent_tool:  # noqa: SLF001 (the SDK has no public flag)
        inner = CallScope(scope.ctx, f"{scope.label}{scope.numbers['']}.{call_id}/", scope.effects)
        inner.taken = False
        with within(inner):
            return await plainly(arguments=arguments)

    async def call(**given: Any) -> Any:
        with within(None):
            found = await plainly(arguments=arguments)
        return _stored(function_tool, found)

    called = call if is_async(getattr(function_tool, "__wrapped__", call)) else lambda **_: call()
    try:
        kept = await scope.ctx.tool(
            scope.call_id(call_id),
            name,
            arguments_of(arguments),
            _declared(function_tool, called, scope.effects.get(name)),
        )
    except asyncio.CancelledError:
        if scope.ctx.stopping:  # the SDK turns a cancellation into text for the model
            raise Stopped("its run leaves this process") from None
        raise
    return _output(function_tool, kept)


def _declared(tool: FunctionTool, call: Callable[..., Any], said: Any) -> Callable[..., Any]:
    """Declare the tool as an effect: by the caller, else by itself, else by its server's hints."""
    own = getattr(tool, "__andon_effect__", None)
    own = own or getattr(getattr(tool, "__wrapped__", None), "__andon_effect__", None)
    hints = plain(tool.mcp_annotations) or {}
    if said is None and own is not None:
        call.__andon_effect__ = own  # type: ignore[attr-defined]
    elif said is not None:
        call = effect_of(kind=said)(call) if isinstance(said, str) else said(call)
    elif hints.get("readOnlyHint") or hints.get("read_only_hint"):
        call = effect_of(kind="pure")(call)
    elif hints.get("idempotentHint") or hints.get("idempotent_hint"):
        call = effect_of(kind="idempotent")(call)
    return call


def _stored(tool: FunctionTool, found: Any) -> Any:
    """Return a tool's output as JSON; most outputs are text and stay as they are."""
    output, error = found.output, found.is_sdk_generated_error
    kept = _packed(output)
    if kept is _NOTHING:
        try:
            kept = {_KIND: "typed", "value": _typed(tool).dump_python(output, mode="json")}
        except Exception:  # noqa: BLE001 (the type is the user's)
            kept = str(output)  # the SDK shows the model the same text
    return {_KIND: "error", "value": kept} if error else kept


_NOTHING: Any = object()


def _packed(output: Any) -> Any:
    if isinstance(output, str | int | float | bool | None):
        return output
    if isinstance(output, _KINDS):
        return {_KIND: type(output).__name__, "value": output.model_dump(mode="json")}
    if isinstance(output, list):
        parts = [_packed(one) for one in output]
        return _NOTHING if _NOTHING in parts else parts
    texts = isinstance(output, dict) and all(isinstance(name, str) for name in output)
    if texts and _KIND not in output:
        named = {name: _packed(one) for name, one in output.items()}
        return _NOTHING if _NOTHING in named.values() else named
    return _NOTHING


def _output(tool: FunctionTool, kept: Any) -> Any:
    error = isinstance(kept, dict) and kept.get(_KIND) == "error"
    output = _unpacked(tool, kept["value"] if error else kept)
    return _FunctionToolInvocationResult(output, is_sdk_generated_error=error)


def _unpacked(tool: FunctionTool, kept: Any) -> Any:
    if isinstance(kept, list):
        return [_unpacked(tool, one) for one in kept]
    if not isinstance(kept, dict):
        return kept
    if _KIND not in kept:
        return {name: _unpacked(tool, one) for name, one in kept.items()}
    if kept[_KIND] == "typed":
        return _typed(tool).validate_python(kept["value"])
    return _OUTPUTS[kept[_KIND]].model_validate(kept["value"])


def _typed(tool: FunctionTool) -> TypeAdapter[Any]:
    return TypeAdapter(get_type_hints(tool.__wrapped__)["return"])

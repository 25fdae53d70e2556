"""Models whose answers are journaled, whole or streamed."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from agents import (
    ApplyPatchTool,
    ComputerTool,
    CustomTool,
    LocalShellTool,
    Model,
    ModelBehaviorError,
    ModelResponse,
    ShellTool,
)
from agents.models._response_terminal import (
    response_error_event_failure_error,
    response_terminal_failure_error,
)
from agents.run_internal import model_retry
from agents.usage import Usage, _response_usage_to_usage
from openai.types import responses as wire
from pydantic import TypeAdapter

from andon.errors import BadInput
from andon.transcript import Call
from andon.transcript.wire import plain

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from andon.adapters.openai_agents.scope import CallScope
    from andon.runtime.context import Context

_ANSWER = TypeAdapter(ModelResponse)
_REQUEST = inspect.signature(Model.get_response)
# The parts of a request that its journaled answer depends on: if they differ, the run has diverged.
_ASKED = ("system_instructions", "input", "previous_response_id", "conversation_id", "prompt")
# These tools act on this machine without going through andon.
_REFUSED = (ApplyPatchTool, ComputerTool, CustomTool, LocalShellTool, ShellTool)


class JournaledModel(Model):
    """A model whose answers, and the calls that they plan, are journaled."""

    def __init__(self, model: Model, settings: Any, scope: CallScope) -> None:
        self._model, self._settings, self._scope = model, settings, scope

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def get_retry_advice(self, request: Any) -> Any:
        return None  # retries happen inside the step

    async def close(self) -> None:
        await self._model.close()

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self._model._cleanup_on_run_end(owner)  # noqa: SLF001

    async def get_response(self, *request: Any, **options: Any) -> ModelResponse:
        async def ask(*_: Any) -> Any:
            found = await model_retry.get_response_with_retry(
                get_response=lambda: self._model.get_response(*request, **options),
                **self._retrying(options),
            )
            return _dumped(found)

        return _ANSWER.validate_python(await self._asked(ask, request, options))

    async def stream_response(self, *request: Any, **options: Any) -> AsyncIterator[Any]:
        """Stream the answer as it arrives; its completion follows once the answer is durable."""
        events: asyncio.Queue[Any] = asyncio.Queue()
        wholes: list[Any] = []

        async def ask(*_: Any) -> Any:
            stream = model_retry.stream_response_with_retry(
                get_stream=lambda: self._model.stream_response(*request, **options),
                **self._retrying(options),
            )
            whole = await _forwarded(stream, events, self._scope.ctx)
            wholes.append(whole)
            usage = _response_usage_to_usage(whole.usage) if whole.usage else Usage()
            return _dumped(ModelResponse(output=whole.output, usage=usage, response_id=whole.id))

        asking = asyncio.ensure_future(self._asked(ask, request, options))
        asking.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            answer = _ANSWER.validate_python(asking.result())
        finally:
            if not asking.done():
                asking.cancel()
                await asyncio.wait({asking})
        for event in [_completed(wholes[0])] if wholes else _events(answer):
            yield event

    def _retrying(self, options: dict[str, Any]) -> dict[str, Any]:
        """Make the SDK's retries part of one step, so that a replay needs only the outcome."""

        async def rewind() -> None: ...

        return {
            "rewind": rewind,
            "retry_settings": self._settings.retry,
            "get_retry_advice": self._model.get_retry_advice,
            "previous_response_id": options.get("previous_response_id"),
            "conversation_id": options.get("conversation_id"),
            "timeout": self._settings.timeout,
        }

    async def _asked(self, ask: Callable[..., Any], request: Any, options: Any) -> Any:
        asked = _REQUEST.bind(self, *request, **options).arguments
        for tool in asked["tools"]:
            if isinstance(tool, _REFUSED):
                raise BadInput(
                    f"tool {tool.name!r}: a {type(tool).__name__} acts without andon, so that it "
                    "could act twice. Expected function tools, MCP servers or the provider's own "
                    "tools; make it a @function_tool."
                )
        scope, key = self._scope, self._scope.key()
        what = {name: plain(asked[name]) for name in _ASKED}
        calls = partial(_planned, scope)
        return await scope.ctx.model(ask, what, key=key, calls=calls)


def _planned(scope: CallScope, answer: dict[str, Any]) -> list[Call]:
    return [
        Call(scope.call_id(item["call_id"]), item["name"], arguments_of(item["arguments"]), place)
        for place, item in enumerate(answer["output"])
        if item["type"] == "function_call"
    ]


def arguments_of(text: str) -> dict[str, Any]:
    """Parse a call's arguments; the tool itself rejects anything but an object."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"input": text}


async def _forwarded(stream: Any, events: asyncio.Queue[Any], ctx: Context) -> Any:
    """Forward a stream's events except the last, and checkpoint its text in case it is cut off."""
    said, items, whole = "", [], None
    async with contextlib.aclosing(stream):
        async for event in stream:
            match event.type:
                case "response.completed":
                    whole = event.response
                    continue
                case "response.failed" | "response.incomplete":
                    raise response_terminal_failure_error(event.type, event.response)
                case "error" | "response.error":
                    raise response_error_event_failure_error(event.type, event)
                case "response.output_text.delta":
                    said += event.delta
                    ctx.checkpoint(said)
                case "response.output_item.done":
                    items.append(event.item)
                case _:
                    pass
            events.put_nowait(event)
    if whole is None:
        raise ModelBehaviorError("Model did not produce a final response!")
    whole.output = whole.output or items
    return whole


def _dumped(answer: ModelResponse) -> Any:
    """Dump only the fields the provider set: the next request would send others back to it."""
    return _ANSWER.dump_python(
        answer, mode="json", by_alias=True, exclude_unset=True, warnings=False
    )


def _events(answer: ModelResponse) -> Iterator[Any]:
    """Replay a recorded answer as a stream: each item, with its text in one piece."""
    for place, item in enumerate(answer.output):
        at: Any = {"output_index": place, "sequence_number": 0}
        kind = "response.output_item.added"
        yield wire.ResponseOutputItemAddedEvent.model_construct(type=kind, item=item, **at)
        for index, part in enumerate(getattr(item, "content", None) or ()):
            if getattr(part, "type", "") == "output_text":
                yield wire.ResponseTextDeltaEvent.model_construct(
                    type="response.output_text.delta",
                    content_index=index,
                    item_id=item.id,
                    delta=part.text,
                    logprobs=[],
                    **at,
                )
        kind = "response.output_item.done"
        yield wire.ResponseOutputItemDoneEvent.model_construct(type=kind, item=item, **at)
    whole = wire.Response.model_construct(
        id=answer.response_id, output=answer.output, usage=answer.usage, object="response"
    )
    yield _completed(whole)


def _completed(response: Any) -> Any:
    return wire.ResponseCompletedEvent.model_construct(
        type="response.completed", response=response, sequence_number=0
    )

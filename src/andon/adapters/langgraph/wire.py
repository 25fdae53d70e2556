"""LangChain's own types as JSON, the form in which the journal stores them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from langchain.agents.middleware.types import ExtendedModelResponse, ModelResponse
from langchain.agents.structured_output import AutoStrategy, ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage, messages_from_dict
from langgraph.types import Command, Send
from pydantic import TypeAdapter

from andon.transcript import Call
from andon.transcript.wire import as_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langchain.agents.middleware.types import ModelRequest

_MESSAGE, _COMMAND, _SEND = "andon:message", "andon:command", "andon:send"


def stored(given: Any) -> Any:
    """Convert to JSON; values without such a form stay as they are, for the journal to refuse."""
    match given:
        case BaseMessage():
            return {_MESSAGE: {"type": given.type, "data": given.model_dump()}}
        case Command():
            parts = {name: stored(getattr(given, name)) for name in ("graph", "update", "goto")}
            return {_COMMAND: parts}
        case Send():
            return {_SEND: [given.node, stored(given.arg)]}
        case dict():
            return {name: stored(one) for name, one in given.items()}
        case list() | tuple():
            return [stored(one) for one in given]
        case _:
            return given


def restored(kept: Any) -> Any:
    match kept:
        case {"andon:message": message}:
            return messages_from_dict([message])[0]
        case {"andon:command": parts}:
            return Command(**{name: restored(one) for name, one in parts.items()})
        case {"andon:send": [node, arg]}:
            return Send(node, restored(arg))
        case dict():
            return {name: restored(one) for name, one in kept.items()}
        case list():
            return [restored(one) for one in kept]
        case _:
            return kept


def stored_answer(given: Any) -> dict[str, Any]:
    """Return a model's answer as it is stored."""
    command = None
    if isinstance(given, ExtendedModelResponse):
        given, command = given.model_response, given.command
    if isinstance(given, AIMessage):
        given = ModelResponse(result=[given])
    structured = given.structured_response
    if structured is not None:
        structured = TypeAdapter(Any).dump_python(structured, mode="json")
    said = {"result": stored(given.result), "structured": structured}
    return said if command is None else {**said, "command": stored(command)}


def planned(answer: Any) -> list[Call]:
    """Return the calls of an answer that are still to be made."""
    messages = restored(answer["result"])
    return [Call(one["id"], one["name"], one["args"], 0) for one in unanswered(messages)]


def response(answer: Any, request: ModelRequest[Any]) -> Any:
    structured = answer["structured"]
    schema: Any = request.response_format
    if isinstance(schema, AutoStrategy | ToolStrategy | ProviderStrategy):
        schema = schema.schema
    if structured is not None and not isinstance(schema, dict | None):
        structured = TypeAdapter(schema).validate_python(structured)
    response = ModelResponse(result=restored(answer["result"]), structured_response=structured)
    if "command" not in answer:
        return response
    return ExtendedModelResponse(model_response=response, command=restored(answer["command"]))


def unanswered(messages: Sequence[Any]) -> list[Any]:
    """Return the calls of AI messages that no tool message answers."""
    done = {one.tool_call_id for one in messages if isinstance(one, ToolMessage)}
    spoken = [one for one in messages if isinstance(one, AIMessage)]
    return [call for one in spoken for call in one.tool_calls if call["id"] not in done]


def result(call: Any, kept: Any) -> Any:
    """Return a tool's result; from a probe or a person, only its text is known."""
    found = restored(kept)
    parts = found if isinstance(found, list) else [found]
    if parts and all(isinstance(one, ToolMessage | Command) for one in parts):
        return found
    return message(call, as_text(found))


def message(call: Any, text: str, status: Literal["success", "error"] = "success") -> ToolMessage:
    return ToolMessage(text, tool_call_id=call["id"], name=call["name"], status=status)

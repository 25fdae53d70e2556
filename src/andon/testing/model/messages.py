"""Anthropic Messages: every tool_use is answered by tool_results first in the very next message."""

import json
from collections.abc import Iterator
from typing import Any

from andon.testing.model.wire import Refused, Turn, count, pieces

PATH = "/v1/messages"
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}


def error_body(status: int, message: str, kind: str = "", **facts: Any) -> dict[str, Any]:
    kind = kind or _KINDS.get(status, "api_error")
    request = f"req_{count(message):04}{status}"
    return {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": request,
    }


def check(body: dict[str, Any], _: Any = None) -> int:
    """How many turns the model had; refuses what the provider refuses."""
    for name in ("model", "max_tokens", "messages"):
        if name not in body:
            raise Refused(400, f"{name}: Field required")
    messages = body["messages"]
    if not messages:
        raise Refused(400, "messages: at least one message is required")
    before: list[str] = []
    for place, message in enumerate(messages):
        _refuse_unpaired(place, _blocks(message), before)
        before = _calls(message)
    if before:
        raise _unanswered(len(messages) - 1, before)
    return sum(message.get("role") == "assistant" for message in messages)


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _calls(message: dict[str, Any]) -> list[str]:
    if message.get("role") != "assistant":
        return []
    return [block["id"] for block in _blocks(message) if block.get("type") == "tool_use"]


def _refuse_unpaired(place: int, blocks: list[dict[str, Any]], before: list[str]) -> None:
    """`before`: the calls of the message before this one."""
    leading: list[str] = []
    for number, block in enumerate(blocks):
        if block.get("type") != "tool_result":
            continue
        name = block["tool_use_id"]
        if name not in before:
            raise Refused(
                400,
                f"messages.{place}.content.{number}: unexpected `tool_use_id` found in "
                f"`tool_result` blocks: {name}. Each `tool_result` block must have a corresponding "
                "`tool_use` block in the previous message.",
            )
        if name in leading:
            raise Refused(
                400,
                f"messages.{place}.content.{number}: each tool_use must have a single result. "
                f"Found multiple `tool_result` blocks with id: {name}",
            )
        if number == len(leading):  # what comes after something else does not count
            leading.append(name)
    missing = [name for name in before if name not in leading]
    if missing:
        raise _unanswered(place, missing)


def _unanswered(place: int, missing: list[str]) -> Refused:
    return Refused(
        400,
        f"messages.{place}: `tool_use` ids were found without `tool_result` blocks immediately "
        f"after: {', '.join(missing)}. Each `tool_use` block must have a corresponding "
        "`tool_result` block in the next message.",
    )


def answer(body: dict[str, Any], turn: Turn, _: Any = None) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": turn.text}] if turn.text else []
    content += [
        {
            "type": "tool_use",
            "id": turn.id_of("toolu_", place),
            "name": call.name,
            "input": call.arguments,
        }
        for place, call in enumerate(turn.calls)
    ]
    return {
        "id": turn.id_of("msg_"),
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": content,
        "stop_reason": "tool_use" if turn.calls else "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": count(body["messages"]),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": count(content),
        },
    }


def events(body: dict[str, Any], whole: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The same answer as a stream."""
    for kind, facts in _events(whole):
        yield kind, {"type": kind, **facts}


def _events(whole: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    usage = {**whole["usage"], "output_tokens": 1}
    begun = {**whole, "content": [], "stop_reason": None, "usage": usage}
    yield "message_start", {"message": begun}
    yield "ping", {}
    empty: dict[str, Any]
    for place, block in enumerate(whole["content"]):
        if block["type"] == "text":
            empty, kind, name = {"text": ""}, "text_delta", "text"
            parts = pieces(block["text"])
        else:
            empty, kind, name = {"input": {}}, "input_json_delta", "partial_json"
            parts = ["", *pieces(json.dumps(block["input"]))]
        yield "content_block_start", {"index": place, "content_block": {**block, **empty}}
        for part in parts:
            yield "content_block_delta", {"index": place, "delta": {"type": kind, name: part}}
        yield "content_block_stop", {"index": place}
    end = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    usage = {"output_tokens": whole["usage"]["output_tokens"]}
    yield "message_delta", {"delta": end, "usage": usage}
    yield "message_stop", {}

"""Anthropic Messages: tool_results for every tool_use come first in the very next message."""

import json
from collections.abc import Iterator
from typing import Any

from andon.testing.model.wire import ModelRefusal, Turn, count, pieces

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


def too_long(tokens: int, window: int) -> ModelRefusal:
    return ModelRefusal(f"prompt is too long: {tokens} tokens > {window} maximum")


def check(body: dict[str, Any], _: Any = None) -> int:
    """Return how many turns the model had; raises ModelRefusal as the provider would."""
    for name in ("model", "max_tokens", "messages"):
        if name not in body:
            raise ModelRefusal(f"{name}: Field required")
    messages = body["messages"]
    if not messages:
        raise ModelRefusal("messages: at least one message is required")
    before: list[str] = []
    seen: set[str] = set()
    for place, message in enumerate(messages):
        final = place == len(messages) - 1
        _refuse_malformed(place, message, final=final)
        _refuse_unpaired(place, _blocks(message), before)
        before = _calls(message)
        _refuse_reused(place, message, seen)
    if before:
        raise _unanswered(len(messages) - 1, before)
    _refuse_unserved(messages)
    if (body.get("thinking") or {}).get("type") in ("enabled", "adaptive"):
        _refuse_thoughtless(messages)
    return sum(message.get("role") == "assistant" for message in messages)


_ROLES = ("user", "assistant", "system")
_TOOL_USE = {"type", "id", "name", "input", "cache_control", "caller", "toolset_name"}
_THINKING = ("thinking", "redacted_thinking")
_SERVED = ("server_tool_use", "mcp_tool_use")
_TAGS = "'text', 'image', 'document', 'thinking', 'tool_use', 'tool_result', ..."


def _refuse_malformed(place: int, message: Any, *, final: bool) -> None:
    role = message.get("role") if isinstance(message, dict) else None
    if role not in _ROLES:
        raise ModelRefusal(
            f'messages: Unexpected role "{role}". Allowed roles are "user" or "assistant"'
        )
    content = message.get("content")
    if not isinstance(content, str | list):
        raise ModelRefusal(f"messages.{place}.content: Input should be a valid list")
    speaks = final and role == "assistant"
    if not content and not speaks:
        raise ModelRefusal(
            f"messages.{place}: all messages must have non-empty content except for the optional "
            "final assistant message"
        )
    if not content:
        return
    blocks = _blocks(message)
    for number, block in enumerate(blocks):
        _refuse_block(f"messages.{place}.content.{number}", block, role)
    if role == "assistant" and blocks[-1]["type"] in _THINKING:
        raise ModelRefusal(
            f"messages.{place}: The final block in an assistant message cannot be `thinking`."
        )
    text = blocks[-1].get("text", "") if blocks[-1]["type"] == "text" else ""
    if speaks and text != text.rstrip():
        raise ModelRefusal("messages: final assistant content cannot end with trailing whitespace")


def _refuse_block(where: str, block: Any, role: str) -> None:
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str) or kind.endswith("_delta"):
        raise ModelRefusal(
            f"{where}: Input tag '{kind}' found using 'type' does not match any of the expected "
            f"tags: {_TAGS}"
        )
    if kind == "text":
        _refuse_silence(block)
    if kind == "thinking" and not block.get("signature"):
        raise ModelRefusal(f"{where}.thinking.signature: Field required")
    if kind == "tool_use" and role != "assistant":
        raise ModelRefusal(f"{where}: `tool_use` blocks can only be in `assistant` messages")
    if kind == "tool_result" and role != "user":
        raise ModelRefusal(f"{where}: `tool_result` blocks can only be in `user` messages")
    if kind in ("tool_use", *_SERVED):
        _refuse_call(f"{where}.{kind}", block)


def _refuse_silence(block: dict[str, Any]) -> None:
    if not isinstance(block.get("text"), str) or not block["text"]:
        raise ModelRefusal("messages: text content blocks must be non-empty")
    if not block["text"].strip():
        raise ModelRefusal("messages: text content blocks must contain non-whitespace text")


def _refuse_call(where: str, block: dict[str, Any]) -> None:
    for name in ("id", "name"):
        if not isinstance(block.get(name), str) or not block[name]:
            raise ModelRefusal(f"{where}.{name}: Field required")
    if not isinstance(block.get("input"), dict):
        raise ModelRefusal(f"{where}.input: Input should be a valid dictionary")
    for name in block.keys() - _TOOL_USE if block["type"] == "tool_use" else ():
        raise ModelRefusal(f"{where}.{name}: Extra inputs are not permitted")


def _refuse_reused(place: int, message: dict[str, Any], seen: set[str]) -> None:
    for number, block in enumerate(_blocks(message)):
        if block["type"] != "tool_use":
            continue
        if block["id"] in seen:
            raise ModelRefusal(f"messages.{place}.content.{number}: `tool_use` ids must be unique")
        seen.add(block["id"])


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _calls(message: dict[str, Any]) -> list[str]:
    if message.get("role") != "assistant":
        return []
    return [block["id"] for block in _blocks(message) if block.get("type") == "tool_use"]


def _refuse_unpaired(place: int, blocks: list[dict[str, Any]], before: list[str]) -> None:
    """Refuse unpaired calls and results; `before`: the calls of the previous message."""
    leading: list[str] = []
    for number, block in enumerate(blocks):
        if block.get("type") != "tool_result":
            continue
        name = block.get("tool_use_id")
        if name not in before:
            raise ModelRefusal(
                f"messages.{place}.content.{number}: unexpected `tool_use_id` found in "
                f"`tool_result` blocks: {name}. Each `tool_result` block must have a corresponding "
                "`tool_use` block in the previous message."
            )
        if name in leading:
            raise ModelRefusal(
                f"messages.{place}.content.{number}: each tool_use must have a single result. "
                f"Found multiple `tool_result` blocks with id: {name}"
            )
        if number == len(leading):  # a result after any other block does not count
            leading.append(name)
    missing = [name for name in before if name not in leading]
    if missing:
        raise _unanswered(place, missing)


def _unanswered(place: int, missing: list[str]) -> ModelRefusal:
    return ModelRefusal(
        f"messages.{place}: `tool_use` ids were found without `tool_result` blocks immediately "
        f"after: {', '.join(missing)}. Each `tool_use` block must have a corresponding "
        "`tool_result` block in the next message."
    )


def _refuse_unserved(messages: list[dict[str, Any]]) -> None:
    """Refuse a call of the provider's own tools whose result is missing when the user speaks again.

    The result follows its call, at the latest in the assistant turn that continues after
    tool_results.
    """
    waiting: dict[str, str] = {}
    for place, message in enumerate(messages):
        for number, block in enumerate(_blocks(message)):
            kind = block["type"]
            if message["role"] != "assistant" and kind != "tool_result" and waiting:
                name, tool = next(iter(waiting.items()))
                raise ModelRefusal(
                    f"messages.{place}: `{tool}` tool use with id `{name}` was found without a "
                    f"corresponding `{tool}_tool_result` block"
                )
            if kind in _SERVED:
                waiting[block["id"]] = block["name"]
            elif kind.endswith("_tool_result") and waiting.pop(block["tool_use_id"], None) is None:
                raise ModelRefusal(
                    f"messages.{place}.content.{number}: unexpected `tool_use_id` found in "
                    f"`{kind}` blocks: {block['tool_use_id']}. Each `{kind}` block must have a "
                    "corresponding `server_tool_use` block before it."
                )


def _refuse_thoughtless(messages: list[dict[str, Any]]) -> None:
    """Refuse a turn that asked for the tools now in use but does not begin with its thinking."""
    asking = [place for place, message in enumerate(messages) if _calls(message)]
    if not asking or asking[-1] != len(messages) - 2:
        return
    kind = _blocks(messages[asking[-1]])[0]["type"]
    if kind not in _THINKING:
        raise ModelRefusal(
            f"messages.{asking[-1]}.content.0.type: Expected `thinking` or `redacted_thinking`, "
            f"but found `{kind}`. When `thinking` is enabled, a final `assistant` message must "
            "start with a thinking block (preceeding the lastmost set of `tool_use` and "
            "`tool_result` blocks). We recommend you include thinking blocks from previous turns. "
            "To avoid this requirement, disable `thinking`."
        )


def conversation(body: dict[str, Any], _: Any = None) -> Any:
    return [body.get("system"), body["messages"]]


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
    """Return the same answer as a stream."""
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

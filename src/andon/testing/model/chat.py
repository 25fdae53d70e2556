"""OpenAI Chat Completions: tool messages for every tool call follow directly after it."""

import json
from collections.abc import Iterator
from typing import Any

from andon.testing.model.wire import CREATED, ModelRefusal, Turn, count, pieces

PATH = "/v1/chat/completions"
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_SPOKEN = ("content", "refusal", "function_call", "audio")
_STRAY = (
    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
    "'tool_calls'."
)


def error_body(status: int, message: str, kind: str = "", **facts: Any) -> dict[str, Any]:
    kinds = {401: "invalid_request_error", 429: "requests", 500: "server_error"}
    code = "rate_limit_exceeded" if status == 429 else None
    found = {"param": None, "code": code, **facts}
    kind = kind or kinds.get(status, "server_error" if status > 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, **found}}


def too_long(tokens: int, window: int) -> ModelRefusal:
    return ModelRefusal(
        f"This model's maximum context length is {window} tokens. However, your messages resulted "
        f"in {tokens} tokens. Please reduce the length of the messages.",
        param="messages",
        code="context_length_exceeded",
    )


def check(body: dict[str, Any], _: Any = None) -> int:
    """Return how many turns the model had; raises ModelRefusal as the provider would."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ModelRefusal("Missing required parameter: 'messages'.", param="messages")
    turns, place = 0, 0
    while place < len(messages):
        message = messages[place]
        _refuse_malformed(place, message)
        calls = [call["id"] for call in message.get("tool_calls") or ()]
        turns += message.get("role") == "assistant"
        if message.get("role") == "tool":
            raise ModelRefusal(_STRAY, param=f"messages.[{place}].role")
        place += 1
        if calls:
            place = _answers(messages, place, calls)
    return turns


def _refuse_malformed(place: int, message: Any) -> None:
    role = message.get("role") if isinstance(message, dict) else None
    if role not in _ROLES:
        raise ModelRefusal(
            f"Invalid value: '{role}'. Supported values are: 'system', 'assistant', 'user', "
            "'function', 'tool', and 'developer'.",
            param=f"messages[{place}].role",
        )
    if role != "assistant":
        return
    calls = message.get("tool_calls")
    if calls == []:
        raise ModelRefusal(
            f"Invalid 'messages[{place}].tool_calls': empty array. Expected an array with minimum "
            "length 1, but got an empty array instead.",
            param=f"messages[{place}].tool_calls",
            code="empty_array",
        )
    if not calls and all(message.get(name) is None for name in _SPOKEN):
        raise ModelRefusal(
            "Invalid value for 'content': expected a string, got null.",
            param=f"messages.[{place}].content",
        )
    seen: set[str] = set()
    for number, call in enumerate(calls or ()):
        _refuse_call(f"messages[{place}].tool_calls[{number}]", call, seen)


def _refuse_call(where: str, call: Any, seen: set[str]) -> None:
    if not isinstance(call, dict) or not call.get("id"):
        raise _missing(f"{where}.id")
    body = call.get("function") or call.get("custom")
    if not body or not body.get("name"):
        raise _missing(f"{where}.function.name")
    if call["id"] in seen:
        raise ModelRefusal(
            f"Invalid parameter: Duplicate value for 'tool_call_id' of '{call['id']}'.",
            param=f"{where}.id",
        )
    seen.add(call["id"])


def _missing(name: str) -> ModelRefusal:
    return ModelRefusal(
        f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter"
    )


def _answers(messages: list[dict[str, Any]], place: int, calls: list[str]) -> int:
    """Check the tool messages that begin here; return the place after the last."""
    answered: dict[Any, int] = {}
    while place < len(messages) and messages[place].get("role") == "tool":
        name = messages[place].get("tool_call_id")
        if name not in calls:
            raise ModelRefusal(
                f"Invalid parameter: 'tool_call_id' of '{name}' not found in 'tool_calls' of "
                "previous message.",
                param=f"messages.[{place}].tool_call_id",
            )
        if name in answered:
            raise ModelRefusal(
                f"Invalid parameter: Duplicate value for 'tool_call_id' of '{name}', in "
                f"messages[{answered[name]}] and messages[{place}].",
                param=f"messages.[{place}].tool_call_id",
            )
        answered[name] = place
        place += 1
    missing = [name for name in calls if name not in answered]
    if missing:
        raise ModelRefusal(
            "An assistant message with 'tool_calls' must be followed by tool messages responding "
            "to each 'tool_call_id'. The following tool_call_ids did not have response messages: "
            + ", ".join(missing),
            param=f"messages.[{place}].role",
        )
    return place


def conversation(body: dict[str, Any], _: Any = None) -> Any:
    return body["messages"]


def answer(body: dict[str, Any], turn: Turn, _: Any = None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None, "refusal": None}
    if turn.calls:
        message["tool_calls"] = [
            {
                "id": turn.id_of("call_", place),
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for place, call in enumerate(turn.calls)
        ]
    end = "tool_calls" if turn.calls else "stop"
    asked, said = count(body["messages"]), count(message)
    return {
        "id": turn.id_of("chatcmpl-"),
        "object": "chat.completion",
        "created": CREATED,
        "model": body.get("model", "fake"),
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": end}],
        "usage": {
            "prompt_tokens": asked,
            "completion_tokens": said,
            "total_tokens": asked + said,
        },
        "system_fingerprint": "fp_fake",
    }


def events(body: dict[str, Any], whole: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Return the same answer as a stream."""
    kept = ("id", "created", "model", "system_fingerprint")
    head = {**{name: whole[name] for name in kept}, "object": "chat.completion.chunk"}
    [choice] = whole["choices"]

    def chunk(delta: dict[str, Any], end: str | None = None) -> tuple[str, Any]:
        part = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": end}
        return "", {**head, "choices": [part]}

    message = choice["message"]
    yield chunk({"role": "assistant", "content": "" if message["content"] else None})
    for piece in pieces(message["content"]) if message["content"] else ():
        yield chunk({"content": piece})
    for place, call in enumerate(message.get("tool_calls", ())):
        function = {"name": call["function"]["name"], "arguments": ""}
        begun = {"index": place, "id": call["id"], "type": "function", "function": function}
        yield chunk({"tool_calls": [begun]})
        for piece in pieces(call["function"]["arguments"]):
            yield chunk({"tool_calls": [{"index": place, "function": {"arguments": piece}}]})
    yield chunk({}, choice["finish_reason"])
    if (body.get("stream_options") or {}).get("include_usage"):
        yield "", {**head, "choices": [], "usage": whole["usage"]}
    yield "", "[DONE]"

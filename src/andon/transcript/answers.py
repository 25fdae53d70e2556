"""Parses a model's answer: its turn for the transcript, its tool calls, and their results.

The format is read from the answer itself: Anthropic has `content`, Chat has `choices`, Responses
has `output`.
"""

from collections.abc import Sequence
from typing import Any

from andon.errors import BadInput
from andon.transcript.ledger import Call, Done
from andon.transcript.wire import as_text, parsed, plain, word


def calls(answer: Any) -> list[Call]:
    """Return the tool calls that this program has to answer, in order.

    Arguments that are not JSON are returned as text.
    """
    given = plain(answer)
    match _format(given):
        case "anthropic":
            blocks = given["content"]
            return [
                Call(word(one, "id"), word(one, "name"), one.get("input"), 0, place)
                for place, one in _of_type(blocks, "tool_use")
            ]
        case "chat":
            asked = _message(given).get("tool_calls") or []
            return [
                Call(
                    word(one, "id"),
                    word(one["function"], "name"),
                    _arguments(one["function"]),
                    0,
                    place,
                )
                for place, one in _of_type(asked, "function")
            ]
        case _:
            return [
                Call(word(one, "call_id"), word(one, "name"), _arguments(one), place)
                for place, one in _of_type(given["output"], "function_call")
            ]


def turn(answer: Any) -> list[Any]:
    """Return the answer in the form it has in a transcript."""
    given = plain(answer)
    match _format(given):
        case "anthropic":
            return [{"role": "assistant", "content": given["content"]}]
        case "chat":
            return [_message(given)]
        case _:
            return list(given["output"])


def text(answer: Any) -> str:
    """Return the model's text, without thinking and calls."""
    given = plain(answer)
    match _format(given):
        case "anthropic":
            parts = [one["text"] for _, one in _of_type(given["content"], "text")]
        case "chat":
            parts = [_message(given).get("content") or ""]
        case _:
            said = [one for _, one in _of_type(given["output"], "message")]
            parts = [
                one["text"] for item in said for _, one in _of_type(item["content"], "output_text")
            ]
    return "".join(parts)


def results(answer: Any, found: Sequence[tuple[Call, Done]]) -> list[Any]:
    """Return the messages after the turn: every call's result, where the format wants it."""
    match _format(plain(answer)):
        case "anthropic":
            blocks = [_block(call, done) for call, done in found]
            return [{"role": "user", "content": blocks}] if blocks else []
        case "chat":
            return [
                {"role": "tool", "tool_call_id": call.id, "content": as_text(done.result)}
                for call, done in found
            ]
        case _:
            return [
                {"type": "function_call_output", "call_id": call.id, "output": as_text(done.result)}
                for call, done in found
            ]


def _block(call: Call, done: Done) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": call.id, "content": as_text(done.result)}
    return {**block, "is_error": True} if done.error else block


def _format(given: Any) -> str:
    if isinstance(given, dict):
        if isinstance(given.get("content"), list):
            return "anthropic"
        if isinstance(given.get("choices"), list) and given["choices"]:
            return "chat"
        if isinstance(given.get("output"), list):
            return "responses"
    keys = ", ".join(map(repr, given)) if isinstance(given, dict) else type(given).__name__
    raise BadInput(
        "expected a model's answer with 'content' (Anthropic), 'choices' (OpenAI Chat) or "
        f"'output' (OpenAI Responses), found {keys:.200}; return what the provider's client "
        "returned"
    )


def _message(given: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = given["choices"][0]["message"]
    return found


def _of_type(items: Sequence[Any], kind: str) -> list[tuple[int, Any]]:
    return [
        (place, one)
        for place, one in enumerate(items)
        if isinstance(one, dict) and one.get("type", "function") == kind
    ]


def _arguments(given: dict[str, Any]) -> Any:
    found, _ = parsed(given.get("arguments"))
    return found

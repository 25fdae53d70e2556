"""OpenAI Responses: every function call has its output later in the input, or on the server.

With `previous_response_id` the items of earlier responses count as sent: a call without output
stays an orphan there until its output is submitted.
"""

import json
from collections.abc import Iterator
from typing import Any

from andon.testing.model import chat
from andon.testing.model.wire import CREATED, ModelRefusal, Turn, count, pieces

PATH = "/v1/responses"
error_body = chat.error_body
Kept = dict[str, list[dict[str, Any]]]  # response id → all items up to and including its output


def too_long(_tokens: int, _window: int) -> ModelRefusal:
    return ModelRefusal(
        "Your input exceeds the context window of this model. Please adjust your input and try "
        "again.",
        param="input",
        code="context_length_exceeded",
    )


def items_of(body: dict[str, Any], kept: Kept) -> list[dict[str, Any]]:
    given = body.get("input")
    if given is None:
        raise ModelRefusal("Missing required parameter: 'input'.", param="input")
    new = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
    before = body.get("previous_response_id")
    if before is None:
        return new
    if before not in kept:
        raise ModelRefusal(
            f"Previous response with id '{before}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return [*kept[before], *new]


def check(body: dict[str, Any], kept: Kept) -> int:
    """Return how many turns the model had; raises ModelRefusal as the provider would."""
    items = items_of(body, kept)
    turns, speaking = 0, False
    called: dict[tuple[str, str], None] = {}
    answered: set[tuple[str, str]] = set()
    _refuse_reused(items)
    for place, item in enumerate(items):
        said = _is_said(item)
        turns += said and not speaking and item.get("type") != "reasoning"
        speaking = said and (speaking or item.get("type") != "reasoning")
        _refuse_lone_reasoning(items, place)
        _take_call(item, called)
        _take_output(item, called, answered)
    for kind, call_id in called:
        if (kind, call_id) not in answered:
            words = kind.replace("_", " ")
            raise ModelRefusal(f"No tool output found for {words} {call_id}.", param="input")
    return turns


_CALLS = {  # calls that the client answers; the provider's own tools need no output
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "computer_call": "computer_call_output",
}
_OUTPUTS = {output: call for call, output in _CALLS.items()}
_ROLES = ("system", "developer", "user", "assistant")


def _is_said(item: dict[str, Any]) -> bool:
    kind = item.get("type") or "message"
    return item.get("role") == "assistant" or kind == "reasoning" or kind.endswith("_call")


def _refuse_reused(items: list[Any]) -> None:
    seen: set[str] = set()
    for item in items:
        kind = (item.get("type") or "message") if isinstance(item, dict) else ""
        if not kind or (kind == "message" and item.get("role") not in _ROLES):
            raise ModelRefusal(f"Invalid value: '{kind}'.", param="input")
        name = item.get("id") if kind != "local_shell_call_output" else None
        if name in seen:
            raise ModelRefusal(
                f"Duplicate item found with id {name}. Remove duplicate items from your input and "
                "try again.",
                param="input",
            )
        seen |= {name} if name else set()


def _refuse_lone_reasoning(items: list[dict[str, Any]], place: int) -> None:
    if items[place].get("type") != "reasoning":
        return
    if place + 1 == len(items) or not _is_said(items[place + 1]):
        raise ModelRefusal(
            f"Item '{items[place].get('id')}' of type 'reasoning' was provided without its "
            "required following item.",
            param="input",
        )


def _take_call(item: dict[str, Any], called: dict[tuple[str, str], None]) -> None:
    kind = item.get("type") or ""
    if kind not in _CALLS:
        return
    name = item.get("id" if kind == "local_shell_call" else "call_id")
    if not name:
        raise ModelRefusal("Missing required parameter: 'input[].call_id'.", param="input")
    if (kind, name) in called:
        raise ModelRefusal(f"Duplicate {kind} for call_id '{name}'.", param="input")
    called[kind, name] = None


def _take_output(
    item: dict[str, Any], called: dict[tuple[str, str], None], answered: set[tuple[str, str]]
) -> None:
    kind = item.get("type") or ""
    if kind not in _OUTPUTS:
        return
    name = item.get("id" if kind == "local_shell_call_output" else "call_id")
    key = (_OUTPUTS[kind], str(name))
    if key not in called:
        raise ModelRefusal(
            f"No tool call found for {kind.replace('_', ' ')} with call_id {name}.", param="input"
        )
    if key in answered:
        raise ModelRefusal(
            f"Duplicate {kind} for call_id '{name}'. Each {key[0]} must have exactly one matching "
            f"{kind}",
            param="input",
        )
    answered.add(key)


def conversation(body: dict[str, Any], kept: Kept) -> Any:
    return [body.get("instructions"), items_of(body, kept)]


def answer(body: dict[str, Any], turn: Turn, kept: Kept) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    if turn.text:
        part = {"type": "output_text", "text": turn.text, "annotations": [], "logprobs": []}
        output.append(
            {
                "id": turn.id_of("msg_"),
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [part],
            }
        )
    output += [
        {
            "id": turn.id_of("fc_", place),
            "type": "function_call",
            "status": "completed",
            "call_id": turn.id_of("call_", place),
            "name": call.name,
            "arguments": json.dumps(call.arguments),
        }
        for place, call in enumerate(turn.calls)
    ]
    items = items_of(body, kept)
    whole = _response(body, turn.id_of("resp_"), output, count(items))
    if body.get("store", True):
        kept[whole["id"]] = [*items, *output]
    return whole


def _response(
    body: dict[str, Any], name: str, output: list[dict[str, Any]], asked: int
) -> dict[str, Any]:
    said = count(output)
    return {
        "id": name,
        "object": "response",
        "created_at": CREATED,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": body.get("metadata") or {},
        "model": body.get("model", "fake"),
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": body.get("previous_response_id"),
        "reasoning": {"effort": None, "summary": None},
        "store": body.get("store", True),
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools", []),
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": {
            "input_tokens": asked,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": said,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": asked + said,
        },
        "user": None,
    }


def events(body: dict[str, Any], whole: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Return the same answer as a stream: every event is numbered, and there is no [DONE]."""
    for number, (kind, facts) in enumerate(_events(whole)):
        yield kind, {"type": kind, "sequence_number": number, **facts}


def _events(whole: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    for place, item in enumerate(whole["output"]):
        empty: dict[str, Any] = {"content": []} if item["type"] == "message" else {"arguments": ""}
        opened = {**item, "status": "in_progress", **empty}
        yield "response.output_item.added", {"output_index": place, "item": opened}
        yield from _text(place, item) if item["type"] == "message" else _arguments(place, item)
        yield "response.output_item.done", {"output_index": place, "item": item}
    yield "response.completed", {"response": whole}


def _text(place: int, item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    where = {"item_id": item["id"], "output_index": place, "content_index": 0}
    [part] = item["content"]
    yield "response.content_part.added", {**where, "part": {**part, "text": ""}}
    for piece in pieces(part["text"]):
        yield "response.output_text.delta", {**where, "delta": piece, "logprobs": []}
    yield "response.output_text.done", {**where, "text": part["text"], "logprobs": []}
    yield "response.content_part.done", {**where, "part": part}


def _arguments(place: int, item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    where = {"item_id": item["id"], "output_index": place}
    for piece in pieces(item["arguments"]):
        yield "response.function_call_arguments.delta", {**where, "delta": piece}
    done = {**where, "name": item["name"], "arguments": item["arguments"]}
    yield "response.function_call_arguments.done", done

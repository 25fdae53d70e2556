"""OpenAI Responses: every function call has its output later in the input, or on the server.

With `previous_response_id` the items of earlier responses count as sent: an orphan among them stays
there until its output is submitted.
"""

import json
from collections.abc import Iterator
from typing import Any

from andon.testing.model import chat
from andon.testing.model.wire import CREATED, Refused, Turn, count, pieces

PATH = "/v1/responses"
error_body = chat.error_body
Kept = dict[str, list[dict[str, Any]]]  # response id → all items up to and with its output


def items_of(body: dict[str, Any], kept: Kept) -> list[dict[str, Any]]:
    given = body.get("input")
    if given is None:
        raise Refused(400, "Missing required parameter: 'input'.", param="input")
    new = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
    before = body.get("previous_response_id")
    if before is None:
        return new
    if before not in kept:
        raise Refused(
            400,
            f"Previous response with id '{before}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return [*kept[before], *new]


def check(body: dict[str, Any], kept: Kept) -> int:
    """How many turns the model had; refuses what the provider refuses."""
    turns, speaking = 0, False
    called: dict[str, None] = {}
    answered: set[str] = set()
    for item in items_of(body, kept):
        kind = item.get("type", "message")
        said = kind == "function_call" or item.get("role") == "assistant"
        turns += said and not speaking
        speaking = said or (speaking and kind == "reasoning")
        if kind == "function_call":
            called[item["call_id"]] = None
        elif kind == "function_call_output":
            if item["call_id"] not in called:
                raise Refused(
                    400,
                    f"No tool call found for function call output with call_id {item['call_id']}.",
                    param="input",
                )
            answered.add(item["call_id"])
    for call_id in called:
        if call_id not in answered:
            raise Refused(400, f"No tool output found for function call {call_id}.", param="input")
    return turns


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
    """The same answer as a stream: every event is numbered, and there is no [DONE]."""
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

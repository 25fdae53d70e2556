"""Conversations, valid and broken, in the three wire formats.

A talk is drawn once, independent of the format, and written in each; it is broken by a list of
small operations on the written form. Every result has a text of its own, so that a lost one is
noticed.
"""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

FORMATS = ("anthropic", "chat", "responses")
Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class Turn:
    """The model's part of a turn, and the messages that follow it."""

    thinks: bool
    speaks: bool
    calls: int
    serves: bool  # a tool of the provider's own
    custom: bool  # the first call is of another kind, where the format has one
    backwards: bool  # the results come in the other order
    nested: bool  # the results are lists
    after: int  # the user's next message: none, a text, or a text beside the results


turns = st.builds(
    Turn,
    *[st.booleans()] * 2,
    st.integers(0, 3),
    *[st.booleans()] * 4,
    st.integers(0, 2),
)
talks = st.lists(turns, min_size=1, max_size=5)


def written(talk: list[Turn], form: str) -> Messages:
    return {"anthropic": _anthropic, "chat": _chat, "responses": _responses}[form](talk)


def names(turn: Turn, number: int) -> list[str]:
    return [f"call_{number}{'abc'[place]}" for place in range(turn.calls)]


def in_order(turn: Turn, number: int) -> list[str]:
    found = names(turn, number)
    return found[::-1] if turn.backwards else found


def silent(turn: Turn) -> bool:
    return not turn.calls and not turn.speaks


def _anthropic(talk: list[Turn]) -> Messages:
    out: Messages = [{"role": "user", "content": "begin"}]
    for number, turn in enumerate(talk):
        blocks: list[Any] = []
        if turn.thinks:
            blocks.append({"type": "thinking", "thinking": "hm", "signature": f"sig{number}"})
        if turn.serves:
            name = f"srv_{number}"
            blocks += [
                {"type": "server_tool_use", "id": name, "name": "web_search", "input": {"q": "x"}},
                {"type": "web_search_tool_result", "tool_use_id": name, "content": []},
            ]
        if turn.speaks or silent(turn):
            blocks.append({"type": "text", "text": f"I say {number}"})
        for name in names(turn, number):
            blocks.append({"type": "tool_use", "id": name, "name": "act", "input": {"n": number}})
        out.append({"role": "assistant", "content": blocks})
        back: list[Any] = []
        for name in in_order(turn, number):
            text: Any = f"result of {name}."
            content = [{"type": "text", "text": text}] if turn.nested else text
            back.append({"type": "tool_result", "tool_use_id": name, "content": content})
        if turn.after == 2:
            back.append({"type": "text", "text": f"and {number}"})
        if back:
            out.append({"role": "user", "content": back})
        if turn.after == 1 or not back:
            out.append({"role": "user", "content": f"you say {number}"})
    return out


def _chat(talk: list[Turn]) -> Messages:
    out: Messages = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "begin"},
    ]
    for number, turn in enumerate(talk):
        said: dict[str, Any] = {"role": "assistant", "content": None}
        if turn.speaks or silent(turn):
            said["content"] = f"I say {number}"
        calls: list[Any] = []
        for place, name in enumerate(names(turn, number)):
            if turn.custom and not place:
                body: dict[str, Any] = {"name": "act", "input": f"free {number}"}
                calls.append({"id": name, "type": "custom", "custom": body})
            else:
                body = {"name": "act", "arguments": json.dumps({"n": number})}
                calls.append({"id": name, "type": "function", "function": body})
        if calls:
            said["tool_calls"] = calls
        out.append(said)
        for name in in_order(turn, number):
            text: Any = f"result of {name}."
            content = [{"type": "text", "text": text}] if turn.nested else text
            out.append({"role": "tool", "tool_call_id": name, "content": content})
        if turn.after == 2:
            out.append({"role": "developer", "content": f"note {number}"})
        if turn.after:
            out.append({"role": "user", "content": f"you say {number}"})
    return out


def _responses(talk: list[Turn]) -> Messages:
    out: Messages = [{"role": "user", "content": "begin"}]
    for number, turn in enumerate(talk):
        if turn.thinks:
            out.append({"type": "reasoning", "id": f"rs_{number}", "summary": []})
        if turn.serves:
            served = {"type": "web_search_call", "id": f"ws_{number}", "status": "completed"}
            out.append(served)
        if turn.speaks or silent(turn):
            part = {"type": "output_text", "text": f"I say {number}", "annotations": []}
            said = {"type": "message", "role": "assistant", "id": f"msg_{number}"}
            out.append({**said, "status": "completed", "content": [part]})
        for place, name in enumerate(names(turn, number)):
            out.append(_item(turn, number, place, name))
        for name in in_order(turn, number):
            text: Any = f"result of {name}."
            content = [{"type": "input_text", "text": text}] if turn.nested else text
            custom = turn.custom and name == names(turn, number)[0]
            kind = "custom_tool_call_output" if custom else "function_call_output"
            out.append({"type": kind, "call_id": name, "output": content})
        if turn.after:
            out.append({"role": "user", "content": f"you say {number}"})
    return out


def _item(turn: Turn, number: int, place: int, name: str) -> dict[str, Any]:
    head = {"id": f"fc_{number}{place}", "call_id": name, "name": "act", "status": "completed"}
    if turn.custom and not place:
        return {"type": "custom_tool_call", "input": f"free {number}", **head}
    return {"type": "function_call", "arguments": json.dumps({"n": number}), **head}


# ── operations that break them ────────────────────────────────────────────────────────────────

Break = Callable[[Messages, int, int], None]


def _truncate(talk: Messages, one: int, other: int) -> None:
    del talk[one % len(talk) + 1 :]


def _lose(talk: Messages, one: int, other: int) -> None:
    if len(talk) > 1:
        del talk[one % len(talk)]


def _duplicate(talk: Messages, one: int, other: int) -> None:
    talk.insert(other % (len(talk) + 1), deepcopy(talk[one % len(talk)]))


def _duplicate_in_place(talk: Messages, one: int, other: int) -> None:
    talk.insert(one % len(talk), deepcopy(talk[one % len(talk)]))


def _swap(talk: Messages, one: int, other: int) -> None:
    one, other = one % len(talk), other % len(talk)
    talk[one], talk[other] = talk[other], talk[one]


def _insert_user_message(talk: Messages, one: int, other: int) -> None:
    talk.insert(one % (len(talk) + 1), {"role": "user", "content": f"between {other}"})


def _insert_system_message(talk: Messages, one: int, other: int) -> None:
    talk.insert(one % (len(talk) + 1), {"role": "system", "content": f"between {other}"})


def parts(talk: Messages) -> list[list[Any]]:
    """The lists inside the messages: blocks and calls."""
    found = [message.get("content") for message in talk]
    found += [message.get("tool_calls") for message in talk]
    return [part for part in found if isinstance(part, list) and part]


def _lose_part(talk: Messages, one: int, other: int) -> None:
    if found := parts(talk):
        chosen = found[one % len(found)]
        del chosen[other % len(chosen)]


def _duplicate_part(talk: Messages, one: int, other: int) -> None:
    if found := parts(talk):
        chosen = found[one % len(found)]
        chosen.append(deepcopy(chosen[other % len(chosen)]))


def _reverse_part(talk: Messages, one: int, other: int) -> None:
    if found := parts(talk):
        found[one % len(found)].reverse()


def calls(talk: Messages) -> list[dict[str, Any]]:
    blocks = [block for part in parts(talk) for block in part if isinstance(block, dict)]
    found = [block for block in blocks if block.get("type") in ("tool_use", "function", "custom")]
    return found + [item for item in talk if str(item.get("type")).endswith("_call")]


def _break_off(talk: Messages, one: int, other: int) -> None:
    """Cut the arguments of a call, as a broken stream leaves them."""
    found = calls(talk)
    if not found:
        return
    call = found[one % len(found)]
    match call.get("type"):
        case "tool_use" if other % 2:
            call["input"] = '{"n": '
        case "tool_use":
            call.update(input={}, partial_json='{"n": 1', index=other)
        case "function":
            call["function"]["arguments"] = '{"n": '
        case "function_call" | "custom_tool_call":
            call.update(status="in_progress", arguments='{"n": ')
        case _:
            pass


def _reuse_id(talk: Messages, one: int, other: int) -> None:
    """Give two calls one id, as some providers do."""
    found = [call for call in calls(talk) if "act" in json.dumps(call)]
    if found:
        field = "call_id" if "call_id" in found[0] else "id"
        found[one % len(found)][field] = found[other % len(found)][field]


def _drop_id(talk: Messages, one: int, other: int) -> None:
    found = [call for call in calls(talk) if "act" in json.dumps(call)]
    if found:
        call = found[one % len(found)]
        call["call_id" if "call_id" in call else "id"] = ""


def _leave_remnant(talk: Messages, one: int, other: int) -> None:
    spoken = [one for one in talk if one.get("role") == "assistant"]
    if not spoken:
        return
    message = spoken[one % len(spoken)]
    remnants = [
        {"type": "text", "text": ""},
        {"type": "input_json_delta", "partial_json": '{"a'},
        {"type": "thinking", "thinking": "unfin", "signature": ""},
        {"type": "text", "text": "half a sentence "},
    ]
    if "tool_calls" in message or message.get("content") is None:
        message["content"] = None
        message["tool_calls"] = message.get("tool_calls") or []
    elif isinstance(message["content"], list) and "type" not in message:
        message["content"].append(remnants[other % 4])


def _add_other_result(talk: Messages, one: int, other: int) -> None:
    """Add a second result with another text."""
    found = [item for item in talk if item.get("role") == "tool"]
    found += [item for item in talk if str(item.get("type")).endswith("_call_output")]
    if found:
        second = deepcopy(found[one % len(found)])
        second["output" if "output" in second else "content"] = f"result of another {other}."
        talk.insert(other % (len(talk) + 1), second)


BREAK_OFF = _break_off
BREAKS: tuple[Break, ...] = (
    _truncate,
    _lose,
    _duplicate,
    _duplicate_in_place,
    _swap,
    _insert_user_message,
    _insert_system_message,
    _lose_part,
    _duplicate_part,
    _reverse_part,
    _break_off,
    _reuse_id,
    _drop_id,
    _leave_remnant,
    _add_other_result,
)
small = st.integers(0, 15)
damages = st.lists(st.tuples(st.sampled_from(BREAKS), small, small), min_size=1, max_size=5)


def broken(talk: Messages, damage: list[tuple[Break, int, int]]) -> Messages:
    talk = deepcopy(talk)
    for hurt, one, other in damage:
        if talk:
            hurt(talk, one, other)
    return talk

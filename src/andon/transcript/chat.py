"""OpenAI Chat Completions: tool messages directly follow the message with their calls."""

from typing import Any

from andon.transcript.ledger import Call, Done, Ledger, Policy
from andon.transcript.pairs import (
    WHOLE,
    CallSlot,
    Change,
    Fault,
    Given,
    RepairPlan,
    answers,
    pair,
    renamed,
)
from andon.transcript.wire import as_text, parsed, quoted, shown, word

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
SPOKEN = ("content", "refusal", "function_call", "audio")


def faults(messages: list[Any]) -> list[Fault]:
    """Return the faults that the provider refuses, in order."""
    found: list[Fault] = []
    open_: dict[str, int] = {}  # calls of the last assistant message without a result
    asked: dict[str, int] = {}
    home = 0

    def close() -> None:
        where = "a tool message directly behind it"
        for name, place in open_.items():
            found.append(Fault(home, place, f"call {name} without a result", where, name))
        open_.clear()
        asked.clear()

    for number, message in enumerate(messages):
        shape = shape_fault(number, message)
        if shape is not None:
            found.append(shape)
            continue
        if message["role"] == "tool":
            found += _tool(number, message, asked, open_)
            continue
        close()
        if message["role"] == "assistant":
            home = number
            found += _assistant(number, message, asked)
            open_.update(asked)
    close()
    return found


def shape_fault(number: int, message: Any) -> Fault | None:
    if not isinstance(message, dict) or word(message, "role") not in ROLES:
        roles = ", ".join(sorted(ROLES))
        return Fault(number, None, "no message", f"an object with a role of {roles}")
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        return Fault(number, None, "tool_calls that are no list", "a list")
    if not isinstance(message.get("content"), str | list | None):
        return Fault(number, None, "content that is no text", "a text or parts")
    return None


def _assistant(number: int, message: dict[str, Any], asked: dict[str, int]) -> list[Fault]:
    calls = message.get("tool_calls")
    found = []
    if calls == []:
        found.append(Fault(number, None, "an empty list of tool_calls", "no such key"))
    if not calls and all(message.get(name) is None for name in SPOKEN):
        found.append(Fault(number, None, "an assistant message that says nothing", "none"))
    for place, call in enumerate(calls or ()):
        name = _id(call)
        if not name:
            found.append(Fault(number, place, "a call without an id or a name", "both"))
        elif name in asked:
            found.append(Fault(number, place, f"the id {name} twice", "an id for each call", name))
        else:
            asked[name] = place
    return found


def _tool(
    number: int, message: dict[str, Any], asked: dict[str, int], open_: dict[str, int]
) -> list[Fault]:
    name = word(message, "tool_call_id")
    if open_.pop(name, None) is not None:
        return []
    if name in asked:
        return [Fault(number, None, f"a second result of {name}", "one", name)]
    calls = "a call in the assistant message before it"
    return [Fault(number, None, f"a result of {name} without a call", calls, name)]


def _id(call: Any) -> str:
    """Return the id of a call, or an empty string if this is not a call."""
    return word(call, "id") if isinstance(call, dict) and word(_body(call), "name") else ""


def _body(call: dict[str, Any]) -> dict[str, Any]:
    body = call.get("function") or call.get("custom")
    return body if isinstance(body, dict) else {}


def repaired(
    messages: list[Any], ledger: Ledger | None, policy: Policy
) -> tuple[list[Any], RepairPlan]:
    """Return the transcript in a form the provider accepts, and the decisions made."""
    slots, givens, last = _read(messages)
    plan = pair(slots, givens, ledger=ledger, policy=policy, last_unit=last, unique=False)
    return _written(messages, plan), plan


def _read(messages: list[dict[str, Any]]) -> tuple[list[CallSlot], list[Given], int]:
    slots: list[CallSlot] = []
    givens: list[Given] = []
    turn, home, last, speaking = 0, -1, -1, False
    for number, message in enumerate(messages):
        role = message["role"]
        if role == "tool":
            name = word(message, "tool_call_id")
            content = message.get("content")
            givens.append(Given(name, (number, WHOLE), message, content, home))
            speaking = False
            continue
        turn += role == "assistant" and not speaking
        speaking = role == "assistant"
        home = number if speaking else -1
        last = number if speaking else last
        for place, call in enumerate((speaking and message.get("tool_calls")) or ()):
            name = _id(call)
            if not name:
                continue
            body = _body(call)
            arguments, whole = parsed(body.get("arguments", body.get("input", "")))
            whole = whole or "custom" in call
            found = Call(name, body["name"], arguments, number, place)
            slots.append(CallSlot(found, (number, place), turn, number, whole))
    return slots, givens, last


def _written(messages: list[dict[str, Any]], plan: RepairPlan) -> list[Any]:
    slots: dict[int, list[CallSlot]] = {}
    for slot in plan.slots:
        slots.setdefault(slot.at[0], []).append(slot)
    givens = {given.at[0]: given for given in plan.givens}
    out: list[Any] = []
    for number, message in enumerate(messages):
        if message["role"] == "tool":
            if givens[number].quoted:
                out.append(_quote(givens[number]))
        elif message["role"] != "assistant":
            out.append(message)
        elif number not in plan.cut:
            own = slots.get(number, [])
            said = _said(number, message, own, plan)
            out += [] if said is None else [said]
            found = answers(own, plan, field="tool_call_id", where="directly", made=_made)
            out += [result for _, result in found]
    return out


def _said(
    number: int, message: dict[str, Any], slots: list[CallSlot], plan: RepairPlan
) -> dict[str, Any] | None:
    """Return an assistant message with the calls that stay, or None if nothing of it stays."""
    calls = message.get("tool_calls")
    if calls is not None:
        for place in sorted(set(range(len(calls))) - {slot.at[1] for slot in slots}):
            plan.note(Change.REMOVED, (number, place), "a call without an id or a name")
        kept = [renamed(calls[slot.at[1]], "id", slot.id) for slot in slots if slot.kept]
        if kept:
            return message if kept == calls else {**message, "tool_calls": kept}
        message = {name: part for name, part in message.items() if name != "tool_calls"}
    nothing = (None,) if calls is None else (None, "")
    if any(message.get(name) not in nothing for name in SPOKEN):
        return message
    plan.note(Change.REMOVED, (number, WHOLE), "an assistant message that says nothing")
    return None


def _made(name: str, done: Done) -> dict[str, Any]:
    content = shown(done.result, lambda kind: kind == "text")
    return {"role": "tool", "tool_call_id": name, "content": content}


def _quote(given: Given) -> dict[str, Any]:
    return {"role": "user", "content": f"{quoted(given.id)}\n{_flat(given.content)}"}


def _flat(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(
            part["text"] if isinstance(part, dict) and "text" in part else as_text(part)
            for part in content
        )
    return as_text(content)

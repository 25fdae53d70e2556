"""OpenAI Responses: every call has its output later in the input, with any items in between.

A reasoning item is followed by the model's next message or call; both stay or go together.
"""

from typing import Any

from andon.transcript.ledger import STAND_INS, Call, Done, Ledger, Policy
from andon.transcript.pairs import WHOLE, CallSlot, Change, Fault, Given, RepairPlan, pair
from andon.transcript.wire import as_text, parsed, quoted, refuse, shown, word

OUTPUT_OF = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "computer_call": "computer_call_output",
    "tool_search_call": "tool_search_output",
}
CALL_OF = {output: call for call, output in OUTPUT_OF.items()}
PUT_IN = frozenset({*CALL_OF, "mcp_approval_response", "compaction_trigger", "additional_tools"})
# Calls whose output cannot say "unknown": it is a picture, a state, or a list of tools.
UNSPEAKABLE = frozenset({"apply_patch_call", "computer_call", "tool_search_call"})
ROLES = frozenset({"system", "developer", "user", "assistant"})
_CUT_SHORT = frozenset({"in_progress", "incomplete"})


def kind_of(item: dict[str, Any]) -> str:
    return str(item.get("type") or "message")


def is_said(item: dict[str, Any]) -> bool:
    """Whether the model produced the item; kinds not known as input count as the model's."""
    kind = kind_of(item)
    return item.get("role") == "assistant" if kind == "message" else kind not in PUT_IN


def id_of_call(item: dict[str, Any]) -> str | None:
    """Return the id of a call that the client has to answer, or None if it is no such call."""
    kind = kind_of(item)
    if kind == "tool_search_call" and item.get("execution") != "client":
        return None
    return word(item, _field(kind)) or None if kind in OUTPUT_OF else None


def id_of_output(item: dict[str, Any]) -> str | None:
    kind = kind_of(item)
    if kind == "tool_search_output" and item.get("execution") != "client":
        return None
    return word(item, _field(kind)) if kind in CALL_OF else None


def _field(kind: str) -> str:
    """Return the name of the field whose id pairs a call with its output."""
    return "id" if kind.startswith("local_shell_call") else "call_id"


def faults(items: list[Any]) -> list[Fault]:
    """Return the faults that the provider refuses, in order."""
    found: list[Fault] = []
    called: dict[tuple[str, str], int] = {}
    answered: set[tuple[str, str]] = set()
    ids: set[str] = set()
    elsewhere = any(isinstance(item, dict) and kind_of(item) == "item_reference" for item in items)
    for number, item in enumerate(items):
        shape = shape_fault(number, item)
        if shape is not None:
            found.append(shape)
            continue
        found += _reused(number, item, ids)
        found += _alone(number, items)
        kind, name = kind_of(item), id_of_call(item)
        if kind in OUTPUT_OF and name is None and kind != "tool_search_call":
            found.append(Fault(number, None, f"a {kind} without an id", "an id"))
        if name is not None:
            if (kind, name) in called:
                found.append(Fault(number, None, f"the id {name} twice", "one call", name))
            called.setdefault((kind, name), number)
        output = id_of_output(item)
        if output is not None:
            found += _output(number, (CALL_OF[kind], output), called, answered, elsewhere)
    found += [
        Fault(number, None, f"{kind} {name} without an output", f"a {OUTPUT_OF[kind]}", name)
        for (kind, name), number in called.items()
        if (kind, name) not in answered
    ]
    return sorted(found, key=lambda fault: fault.message)


def shape_fault(number: int, item: Any) -> Fault | None:
    if not isinstance(item, dict):
        return Fault(number, None, "no item", "an object")
    if kind_of(item) == "message" and word(item, "role") not in ROLES:
        roles = ", ".join(sorted(ROLES))
        return Fault(number, None, "an item without type or role", roles)
    return None


def _reused(number: int, item: dict[str, Any], ids: set[str]) -> list[Fault]:
    name = item.get("id")
    if not isinstance(name, str) or kind_of(item) in ("local_shell_call_output", "item_reference"):
        return []
    if name in ids:
        return [Fault(number, None, f"item {name} twice", "each item once")]
    ids.add(name)
    return []


def _alone(number: int, items: list[Any]) -> list[Fault]:
    if kind_of(items[number]) != "reasoning":
        return []
    after = items[number + 1] if number + 1 < len(items) else None
    if isinstance(after, dict) and is_said(after):
        return []
    return [Fault(number, None, "reasoning without its following item", "what the model did next")]


def _output(
    number: int,
    key: tuple[str, str],
    called: dict[tuple[str, str], int],
    answered: set[tuple[str, str]],
    elsewhere: bool,
) -> list[Fault]:
    name = key[1]
    if key in answered:
        return [Fault(number, None, f"a second output of {name}", "one", name)]
    answered.add(key)
    if key not in called and not elsewhere:
        answered.discard(key)
        return [Fault(number, None, f"an output of {name} without a call", "a call before", name)]
    return []


def repaired(
    items: list[Any], ledger: Ledger | None, policy: Policy
) -> tuple[list[Any], RepairPlan]:
    """Return the transcript in a form the provider accepts, and the decisions made."""
    slots, givens, turns = _read(items)
    last = max((turn for turn in turns if turn), default=0)
    plan = pair(slots, givens, ledger=ledger, policy=policy, last_unit=last, unique=True)
    gone = _gone(items, turns, plan)
    places = {id(item): number for number, item in enumerate(items)}
    return _without_lone_reasoning(_written(items, gone, plan), places, plan), plan


def _read(items: list[dict[str, Any]]) -> tuple[list[CallSlot], list[Given], list[int]]:
    """Return calls, outputs, and each item's turn: 0 if the model did not produce it."""
    slots: list[CallSlot] = []
    givens: list[Given] = []
    turns: list[int] = []
    turn, speaking = 0, False
    for number, item in enumerate(items):
        said = is_said(item)
        turn += said and not speaking
        speaking = said
        turns.append(turn if said else 0)
        kind, name, output = kind_of(item), id_of_call(item), id_of_output(item)
        if name is not None:
            arguments, whole = _given(item)
            call = Call(name, str(item.get("name") or kind), arguments, number)
            slots.append(CallSlot(call, (number, WHOLE), turn, turn, whole, kind))
        elif output is not None:
            followed = number and kind_of(items[number - 1]) == "reasoning"
            home = -1 if followed else number
            kind = CALL_OF[kind]
            givens.append(Given(output, (number, WHOLE), item, item.get("output"), home, kind))
    if any(kind_of(item) == "item_reference" for item in items):
        names = {slot.call.id for slot in slots}
        givens = [given for given in givens if given.id in names]
    return slots, givens, turns


def _given(item: dict[str, Any]) -> tuple[Any, bool]:
    """Return a call's arguments and whether they are complete."""
    ended = item.get("status") not in _CUT_SHORT
    match kind_of(item):
        case "function_call":
            arguments, whole = parsed(item.get("arguments"))
            return arguments, whole and (ended or bool(item.get("arguments")))
        case "custom_tool_call":
            return item.get("input"), ended
        case _:  # the status is the action's, which may have begun
            return item.get("action", item.get("operation")), True


def _gone(items: list[dict[str, Any]], turns: list[int], plan: RepairPlan) -> set[int]:
    """Return the items to drop: turns taken back, remnants, and copies."""
    gone = {slot.at[0] for slot in plan.slots if not slot.kept}
    gone |= {number for number, turn in enumerate(turns) if turn in plan.cut}
    called = {slot.at[0] for slot in plan.slots}
    seen: dict[str, dict[str, Any]] = {}
    for number, item in enumerate(items):
        kind, name = kind_of(item), item.get("id")
        if kind in OUTPUT_OF and number not in called and kind != "tool_search_call":
            gone.add(number)
            plan.note(Change.REMOVED, (number, WHOLE), "a call without an id")
        if not isinstance(name, str) or number in called or kind in CALL_OF:
            continue
        if seen.setdefault(name, item) is not item and seen[name] == item:
            gone.add(number)
            plan.note(Change.REMOVED, (number, WHOLE), "a second copy of an item")
    return gone


def _written(items: list[dict[str, Any]], gone: set[int], plan: RepairPlan) -> list[Any]:
    slots = {slot.at[0]: slot for slot in plan.slots}
    givens = {given.at[0]: given for given in plan.givens}
    out: list[Any] = []
    owed: list[Any] = []  # outputs and texts held back until the model's turn is over
    stays = [number for number in range(len(items)) if number not in gone]
    stays = [number for number in stays if number not in givens or _in_place(givens[number])]
    moved: dict[int, list[Any]] = {}
    for number, given in givens.items():
        if given.quoted:
            before = max((one for one in stays if one < number), default=-1)
            moved.setdefault(before, []).append(_quote(given))
    for number, slot in slots.items():
        if slot.kept and (found := _owed(slot, items[number], plan)) is not None:
            moved.setdefault(number, []).append(found)
    owed += moved.get(-1, [])
    for at, number in enumerate(stays):
        if number in givens:
            out.append(_renamed(items[number], givens[number].slot))
        else:
            out.append(_renamed(items[number], slots.get(number)))
        owed += moved.get(number, [])
        after = stays[at + 1] if at + 1 < len(stays) else None
        if after is None or not (after in givens or is_said(items[after])):
            out += _outputs_first(owed)
            owed = []
    return out + _outputs_first(owed)


def _outputs_first(owed: list[Any]) -> list[Any]:
    return sorted(owed, key=lambda item: kind_of(item) == "message")


def _in_place(given: Given) -> bool:
    return given.slot is not None and given.slot.at < given.at and given.home >= 0


def _owed(slot: CallSlot, call: dict[str, Any], plan: RepairPlan) -> dict[str, Any] | None:
    """Return the output to insert after the turn of its call."""
    match slot.answer:
        case Given() as given if not _in_place(given):
            plan.note(Change.MOVED, given.at, "an output, to behind its call", slot.id)
            return _renamed(given.payload, slot)
        case Done() as done:
            return _output_item(slot, call, done)
        case _:
            return None


def _output_item(slot: CallSlot, call: dict[str, Any], done: Done) -> dict[str, Any]:
    kind = kind_of(call)
    result = done.result
    if isinstance(result, dict) and result.get("type") == OUTPUT_OF[kind]:
        return _renamed(result, slot)
    if kind in UNSPEAKABLE:
        fault = Fault(slot.at[0], None, f"{kind} {slot.id} without an output", OUTPUT_OF[kind])
        do = (
            "It has no output that says only that the outcome is unknown: let the ledger answer "
            "Done with the whole item, or take the turn back with policy='restart'."
        )
        raise refuse(fault, do)
    head = {"type": OUTPUT_OF[kind], _field(kind): slot.id}
    if kind == "shell_call":
        return {**head, "output": [_ended(done)]}
    if kind == "local_shell_call":
        return {**head, "output": as_text(result)}
    return {**head, "output": shown(result, _is_input)}


def _ended(done: Done) -> dict[str, Any]:
    """Return the output of a command; one in doubt or not begun has no exit code."""
    if done.result in STAND_INS:
        return {"stdout": "", "stderr": done.result, "outcome": {"type": "timeout"}}
    code = {"type": "exit", "exit_code": int(done.error)}
    return {"stdout": as_text(done.result), "stderr": "", "outcome": code}


def _is_input(kind: str) -> bool:
    return kind.startswith("input_")


def _renamed(item: dict[str, Any], slot: CallSlot | None) -> dict[str, Any]:
    if slot is None:
        return item
    field = _field(kind_of(item))
    if item.get(field) == slot.id:
        return item
    kept = {name: part for name, part in item.items() if name != "id"}  # the other keeps it
    return {**kept, field: slot.id}


def _quote(given: Given) -> dict[str, Any]:
    said = shown(given.content if given.content is not None else given.payload, _is_input)
    content: Any = f"{quoted(given.id)}\n{said}"
    if isinstance(said, list):
        content = [{"type": "input_text", "text": quoted(given.id)}, *said]
    return {"type": "message", "role": "user", "content": content}


def _without_lone_reasoning(
    items: list[Any], places: dict[int, int], plan: RepairPlan
) -> list[Any]:
    """Drop lone reasoning items, backwards so that reasoning before a dropped one goes too."""
    kept: list[Any] = []
    for item in reversed(items):
        if kind_of(item) == "reasoning" and not (kept and is_said(kept[-1])):
            at = (places[id(item)], WHOLE)
            plan.note(Change.REMOVED, at, "reasoning without its following item")
        else:
            kept.append(item)
    return kept[::-1]

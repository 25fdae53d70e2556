"""Anthropic Messages: all results of a turn come first in the very next message.

Thinking is signed, so its blocks are kept unchanged, or dropped if they are incomplete.
"""

from dataclasses import dataclass
from typing import Any

from andon.transcript.ledger import Call, Done, Ledger, Policy
from andon.transcript.pairs import WHOLE, CallSlot, Change, Fault, Given, RepairPlan, answers, pair
from andon.transcript.wire import as_text, parsed, quoted, shown, word

ROLES = frozenset({"user", "assistant", "system"})
FIELDS = frozenset({"type", "id", "name", "input", "cache_control", "caller", "toolset_name"})
THINKING = frozenset({"thinking", "redacted_thinking"})
SERVED = frozenset({"server_tool_use", "mcp_tool_use"})  # the provider's own tools
BLOCKS = frozenset({"text", "image", "document", "search_result"})  # in a result
Block = dict[str, Any]


def faults(messages: list[Any]) -> list[Fault]:
    """Return the faults that the provider refuses, in order."""
    found = [shape for n, one in enumerate(messages) if (shape := shape_fault(n, one))]
    if found:
        return found
    before: dict[str, int] = {}  # the calls of the previous message
    used: set[str] = set()
    for number, message in enumerate(messages):
        blocks = _blocks(message)
        found += _results(number, message["role"], blocks, before)
        last = number == len(messages) - 1
        found += _content(number, message, blocks, last)
        before = _calls(number, message, blocks, used, found)
    found += [_unanswered(len(messages) - 1, place, name) for name, place in before.items()]
    found += [
        Fault(number, place, f"{block.get('type')} without its counterpart", "both, or none")
        for number, place, block in _unserved([_blocks(one) for one in messages], messages)
    ]
    return sorted(found, key=lambda fault: (fault.message, fault.block or 0))


def shape_fault(number: int, message: Any) -> Fault | None:
    if not isinstance(message, dict) or word(message, "role") not in ROLES:
        return Fault(number, None, "no message", "role user, assistant or system")
    content = message.get("content")
    if not isinstance(content, str | list):
        return Fault(number, None, "no content", "a text or a list of blocks")
    for place, block in enumerate(content if isinstance(content, list) else ()):
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            return Fault(number, place, "no block", "an object with a type")
        if block["type"] == "tool_use" and message["role"] != "assistant":
            where = f"tool_use in a {message['role']} message"
            return Fault(number, place, where, "tool_use by the assistant")
    return None


def _blocks(message: dict[str, Any]) -> list[Block]:
    content = message["content"]
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _results(number: int, role: str, blocks: list[Block], before: dict[str, int]) -> list[Fault]:
    found, leading, seen = [], True, set()
    for place, block in enumerate(blocks):
        if block["type"] != "tool_result":
            leading = False
            continue
        name = word(block, "tool_use_id")
        if role != "user":
            found.append(Fault(number, place, f"a result in a {role} message", "the user's"))
        elif name not in before:
            calls = "a tool_use in the message before"
            found.append(Fault(number, place, f"a result of {name} without a call", calls))
        elif name in seen:
            found.append(Fault(number, place, f"a second result of {name}", "one", name))
        elif not leading:
            found.append(Fault(number, place, "a result behind something else", "first", name))
        seen.add(name)
    missing = [(name, place) for name, place in before.items() if name not in seen]
    return found + [_unanswered(number - 1, place, name) for name, place in missing]


def _unanswered(number: int, place: int, name: str) -> Fault:
    where = "a tool_result in the next message"
    return Fault(number, place, f"tool_use {name} without a result", where, name)


def _content(number: int, message: dict[str, Any], blocks: list[Block], last: bool) -> list[Fault]:
    final = last and message["role"] == "assistant"
    if message["content"] in ("", []):
        return [] if final else [Fault(number, None, "an empty message", "something in it")]
    found = [
        Fault(number, place, why, "a whole block")
        for place, block in enumerate(blocks)
        if (why := _remnant(block))
    ]
    if message["role"] == "assistant" and blocks[-1]["type"] in THINKING:
        found.append(Fault(number, len(blocks) - 1, "thinking at the end", "what follows it"))
    if final and _padded(blocks[-1]):
        found.append(Fault(number, len(blocks) - 1, "white space at the end", "none"))
    return found


def _padded(block: Block) -> bool:
    text = block.get("text")
    return block["type"] == "text" and isinstance(text, str) and text != text.rstrip()


def _remnant(block: Block) -> str:
    """Return why a block cannot stay, such as the remains of a broken stream."""
    kind = block["type"]
    if kind.endswith("_delta"):
        return f"{kind}, a piece of a stream"
    if kind == "text" and not word(block, "text").strip():
        return "a text block without text"
    if kind == "thinking" and not block.get("signature"):
        return "thinking without its signature"
    if kind == "tool_use" and not (word(block, "id") and word(block, "name")):
        return "tool_use without an id or a name"
    return ""


def _calls(
    number: int, message: dict[str, Any], blocks: list[Block], used: set[str], found: list[Fault]
) -> dict[str, int]:
    calls: dict[str, int] = {}
    for place, block in enumerate(blocks):
        if block["type"] != "tool_use" or _remnant(block):
            continue
        name = block["id"]
        if name in used:
            found.append(Fault(number, place, f"the id {name} twice", "an id for each call", name))
        if not isinstance(block.get("input"), dict) or not block.keys() <= FIELDS:
            found.append(Fault(number, place, "a call as it was streamed", "input: an object"))
        used.add(name)
        calls[name] = place
    return calls


def _unserved(
    talk: list[list[Block]], messages: list[dict[str, Any]]
) -> list[tuple[int, int, Block]]:
    """Return calls of the provider's own tools without a result, and results without a call."""
    waiting: dict[str, tuple[int, int, Block]] = {}
    found: list[tuple[int, int, Block]] = []
    for number, blocks in enumerate(talk):
        if messages[number]["role"] != "assistant":
            if any(block["type"] != "tool_result" for block in blocks):
                found += waiting.values()  # the turn is over, so nothing will answer them
                waiting = {}
            continue
        for place, block in enumerate(blocks):
            kind = block["type"]
            if kind in SERVED:
                waiting[word(block, "id")] = (number, place, block)
            elif kind.endswith("_tool_result") and not waiting.pop(
                word(block, "tool_use_id"), None
            ):
                found.append((number, place, block))
    broken = [one for one in waiting.values() if not isinstance(one[2].get("input"), dict)]
    return found + broken


@dataclass
class _Said:
    """A message being written: its blocks with their original places."""

    number: int
    message: dict[str, Any]
    blocks: list[tuple[int, Block]]

    @property
    def role(self) -> str:
        return str(self.message["role"])


def repaired(
    messages: list[Any], ledger: Ledger | None, policy: Policy
) -> tuple[list[Any], RepairPlan]:
    """Return the transcript in a form the provider accepts, and the decisions made."""
    dropped = RepairPlan([], [])
    talk = [_said(number, message, dropped) for number, message in enumerate(messages)]
    talk = [said for said in talk if said.blocks]
    slots, givens, last = _read(talk)
    plan = pair(slots, givens, ledger=ledger, policy=policy, last_unit=last, unique=True)
    plan.notes[:0] = dropped.notes
    out = _written(talk, plan)
    _drop_unserved(out, plan)
    _trim(out, plan)
    return [_message(said) for said in out if said.blocks], plan


def _said(number: int, message: dict[str, Any], plan: RepairPlan) -> _Said:
    said = _Said(number, message, [])
    for place, block in enumerate(_blocks(message)):
        why = _remnant(block)
        if why:
            plan.note(Change.REMOVED, (number, place), why)
        else:
            said.blocks.append((place, block))
    return said


def _read(talk: list[_Said]) -> tuple[list[CallSlot], list[Given], int]:
    slots: list[CallSlot] = []
    givens: list[Given] = []
    turn, last, before = 0, -1, None
    for said in talk:
        turn += said.role == "assistant" and (before is None or before.role != "assistant")
        last = said.number if said.role == "assistant" else last
        home = before.number if before is not None and said.role == "user" else -1
        for place, block in said.blocks:
            if block["type"] == "tool_use":
                arguments, whole = _input(block)
                call = Call(block["id"], block["name"], arguments, said.number, place)
                slots.append(CallSlot(call, (said.number, place), turn, said.number, whole))
            if block["type"] != "tool_result":
                home = -1
                continue
            name = word(block, "tool_use_id")
            content = block.get("content")
            givens.append(Given(name, (said.number, place), block, content, home))
        before = said
    return slots, givens, last


def _input(block: Block) -> tuple[Any, bool]:
    """Return a call's input and whether it is complete; a stream may have left it as text."""
    given = block.get("input")
    if isinstance(block.get("partial_json"), str) and not given:
        given = block["partial_json"]
    arguments, whole = parsed(given)
    return arguments, whole and isinstance(arguments, dict)


def _written(talk: list[_Said], plan: RepairPlan) -> list[_Said]:
    slots = {slot.at: slot for slot in plan.slots}
    givens = {given.at: given for given in plan.givens}
    out: list[_Said] = []
    owed: list[tuple[int, Block]] = []  # blocks that must come first in the next message
    for said in talk:
        if said.role != "user" and owed:
            out.append(_Said(said.number, {"role": "user", "content": []}, owed))
            owed = []
        kept = [] if said.number in plan.cut else _kept(said, slots, givens)
        if said.role == "user":
            out.append(_Said(said.number, said.message, owed + kept))
            owed = []
            continue
        out.append(_Said(said.number, said.message, kept))
        places = [(said.number, place) for place, _ in said.blocks]
        own = [slots[at] for at in places if at in slots]
        owed = answers(own, plan, field="tool_use_id", where="first", made=_made)
        strays = [givens[at] for at in places if at in givens]
        owed += [(WHOLE, part) for one in strays if one.quoted for part in _quote(one)]
    if owed:
        out.append(_Said(len(talk), {"role": "user", "content": []}, owed))
    return out


def _kept(
    said: _Said, slots: dict[tuple[int, int], CallSlot], givens: dict[tuple[int, int], Given]
) -> list[tuple[int, Block]]:
    found: list[tuple[int, Block]] = []
    for place, block in said.blocks:
        at = (said.number, place)
        if at in slots:
            if slots[at].kept:
                found.append((place, _call(block, slots[at])))
        elif at in givens:
            if givens[at].quoted and said.role == "user":
                found += [(place, part) for part in _quote(givens[at])]
        else:
            found.append((place, block))
    return found


def _call(block: Block, slot: CallSlot) -> Block:
    given = slot.call.arguments
    if not slot.whole:  # the provider's advice for input that is not JSON
        given = {"INVALID_JSON": as_text(given)}
    kept = {name: part for name, part in block.items() if name in FIELDS}
    found = {**kept, "id": slot.id, "input": given}
    return block if found == block else found


def _made(name: str, done: Done) -> Block:
    content = shown(done.result, BLOCKS.__contains__)
    error = {"is_error": True} if done.error else {}
    return {"type": "tool_result", "tool_use_id": name, "content": content, **error}


def _quote(given: Given) -> list[Block]:
    content = shown(given.content if given.content is not None else "", BLOCKS.__contains__)
    if isinstance(content, list):
        whole = [part for part in content if not _remnant(part)]
        return [{"type": "text", "text": quoted(given.id)}, *whole]
    return [{"type": "text", "text": f"{quoted(given.id)}\n{content}"}]


def _drop_unserved(out: list[_Said], plan: RepairPlan) -> None:
    while True:  # a dropped block may leave another one without its half
        talk = [[block for _, block in said.blocks] for said in out]
        found = _unserved(talk, [said.message for said in out])
        for number, place, block in sorted(found, key=lambda one: one[:2], reverse=True):
            said = out[number]
            at = (said.number, said.blocks.pop(place)[0])
            plan.note(Change.REMOVED, at, f"{block['type']} without its counterpart")
        if not found:
            return


def _trim(out: list[_Said], plan: RepairPlan) -> None:
    """Remove endings that the provider refuses: thinking, and white space in the final turn."""
    for said in out:
        while said.role == "assistant" and said.blocks and said.blocks[-1][1]["type"] in THINKING:
            place, _ = said.blocks.pop()
            plan.note(Change.REMOVED, (said.number, place), "thinking that nothing follows")
    final = next((said for said in reversed(out) if said.blocks), None)
    if final is not None and final.role == "assistant" and _padded(final.blocks[-1][1]):
        place, block = final.blocks[-1]
        final.blocks[-1] = (place, {**block, "text": block["text"].rstrip()})
        plan.note(Change.REMOVED, (final.number, place), "white space at the end")


def _message(said: _Said) -> dict[str, Any]:
    blocks = [block for _, block in said.blocks]
    return said.message if blocks == _blocks(said.message) else {**said.message, "content": blocks}

"""Pairs results with calls in any format: pure decisions about ids and places.

A format reads its messages into slots (calls) and givens (results), and `pair` decides. The format
then writes every slot that stays with its answer after it, and every unused given as text.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from andon.transcript.ledger import (
    NOT_STARTED,
    STAND_INS,
    Call,
    CallMove,
    Done,
    Ledger,
    Policy,
    known,
    next_move,
)

Place = tuple[int, int]  # message and block; block -1 means the whole message
WHOLE = -1


@dataclass(frozen=True)
class Fault:
    """Something the provider refuses: where it is, what was found, what was expected."""

    message: int
    block: int | None
    found: str
    expected: str
    call_id: str | None = None

    def __str__(self) -> str:
        return f"{_spot(self)}: found {self.found}; expected {self.expected}"


class Change(StrEnum):
    """The kinds of changes a repair makes."""

    FILLED = "filled"  # the result came from the ledger
    TOLD = "told"  # a stand-in says that the outcome is unknown, or that the call was not executed
    MOVED = "moved"  # a result was in the wrong place
    QUOTED = "quoted"  # a result without a call is kept as text
    RENAMED = "renamed"  # two calls had the same id
    REMOVED = "removed"  # a remnant, a copy, or a turn that begins again


@dataclass(frozen=True)
class Note:
    """One change of a repair, at a place in the given transcript."""

    change: Change
    message: int
    block: int | None
    what: str
    call_id: str | None = None

    def __str__(self) -> str:
        return f"{_spot(self)}: {self.change}: {self.what}"


def _spot(one: Fault | Note) -> str:
    block = "" if one.block is None else f", block {one.block}"
    return f"message {one.message}{block}"


@dataclass
class Given:
    """A result found in the transcript."""

    id: str
    at: Place
    payload: Any  # the block, message or item
    content: Any
    home: int = -1  # the message whose calls it would answer in its present place
    kind: str = ""  # the kind of call it answers, in formats with several kinds
    slot: "CallSlot | None" = None
    quoted: bool = False


@dataclass
class CallSlot:
    """A call, and the decision about it."""

    call: Call
    at: Place
    turn: int
    unit: int  # taken back as a whole: its message, or its turn where calls are items
    whole: bool = True  # its arguments are complete
    kind: str = ""
    id: str = ""  # the call's id in the repaired transcript
    answer: Given | Done | None = None
    kept: bool = True

    def __post_init__(self) -> None:
        self.id = self.call.id


@dataclass
class RepairPlan:
    """All decisions about one transcript."""

    slots: list[CallSlot]
    givens: list[Given]
    same: dict[tuple[str, str], list[CallSlot]] = field(default_factory=dict)  # by kind and id
    notes: list[Note] = field(default_factory=list)
    to_run: list[Call] = field(default_factory=list)
    cut: set[int] = field(default_factory=set)  # units to take back

    def note(self, change: Change, at: Place, what: str, call_id: str | None = None) -> None:
        self.notes.append(Note(change, at[0], _block(at), what, call_id))


def pair(
    slots: list[CallSlot],
    givens: list[Given],
    *,
    ledger: Ledger | None,
    policy: Policy,
    last_unit: int,
    unique: bool,
) -> RepairPlan:
    """Decide about every call and result. `unique`: an id may occur only once in the transcript."""
    plan = RepairPlan(slots, givens)
    for slot in slots:
        plan.same.setdefault((slot.kind, slot.call.id), []).append(slot)
    _match(plan)
    _drop_copies(plan)
    _drop_remnants(plan, ledger)
    _rename(plan, unique)
    _answer(plan, ledger, policy, last_unit)
    return plan


def _match(plan: RepairPlan) -> None:
    left = [given for given in plan.givens if not _take(given, _before(plan, given))]
    for given in left:
        same = plan.same.get((given.kind, given.id), [])
        if _take(given, same) or _replaces_stand_in(plan, given, same):
            continue
        _leave_over(plan, given, same)


def _before(plan: RepairPlan, given: Given) -> list[CallSlot]:
    """Return the calls it may answer: the open ones of the nearest turn before it, in order."""
    same = plan.same.get((given.kind, given.id), [])
    found = [slot for slot in same if slot.at < given.at and slot.answer is None]
    return [slot for slot in found if slot.turn == found[-1].turn]


def _take(given: Given, slots: Iterable[CallSlot]) -> bool:
    for slot in slots:
        if slot.answer is None:
            slot.answer, given.slot = given, slot
            return True
    return False


def _replaces_stand_in(plan: RepairPlan, given: Given, slots: list[CallSlot]) -> bool:
    for slot in slots:
        shown = slot.answer
        if isinstance(shown, Given) and text_of(shown.content) in STAND_INS:
            if text_of(given.content) in STAND_INS:
                return False
            slot.answer, given.slot, shown.slot = given, slot, None
            plan.note(Change.REMOVED, shown.at, "a stand-in whose result is there", shown.id)
            return True
    return False


def _leave_over(plan: RepairPlan, given: Given, slots: list[CallSlot]) -> None:
    shown = [slot.answer.content for slot in slots if isinstance(slot.answer, Given)]
    if given.content in shown or (shown and text_of(given.content) in STAND_INS):
        plan.note(Change.REMOVED, given.at, "a second copy of a result", given.id)
        return
    given.quoted = True
    why = "a second, different result" if slots else "a result without a call"
    plan.note(Change.QUOTED, given.at, why + ", kept as text", given.id)


def _drop_copies(plan: RepairPlan) -> None:
    """Drop a call stored twice: the same call in one turn, unless both were answered."""
    for slot in plan.slots:
        same = (slot.turn, slot.call.name, slot.call.arguments)
        twins = [
            one
            for one in plan.same[slot.kind, slot.call.id]
            if one is not slot
            and one.kept
            and (one.turn, one.call.name, one.call.arguments) == same
        ]
        if slot.answer is None and any(one.answer or one.at < slot.at for one in twins):
            slot.kept = False
            plan.note(Change.REMOVED, slot.at, "a second copy of a call", slot.call.id)


def _drop_remnants(plan: RepairPlan, ledger: Ledger | None) -> None:
    """Drop calls whose stream broke off: they were not executed, unless the ledger knows them."""
    for slot in plan.slots:
        if slot.whole or not slot.kept or slot.answer is not None:
            continue
        if known(ledger, slot.call) in (None, NOT_STARTED):
            slot.kept = False
            plan.note(Change.REMOVED, slot.at, "a call that broke off", slot.call.id)


def _rename(plan: RepairPlan, unique: bool) -> None:
    """Give each call its own id, so that a result from the ledger cannot go to the wrong one."""
    taken = {slot.call.id for slot in plan.slots}
    for slot in plan.slots:
        same = [other for other in plan.same[slot.kind, slot.call.id] if other.kept]
        rivals = [other for other in same if unique or other.at[0] == slot.at[0]]
        first = next((other for other in rivals if other.answer), None)
        if slot.kept and len(same) > 1 and (slot.answer is None or slot is not (first or slot)):
            slot.id = _fresh(slot.call.id, taken)
            plan.note(Change.RENAMED, slot.at, f"its id is another call's; now {slot.id}", slot.id)


def _fresh(name: str, taken: set[str]) -> str:
    number = 2
    while f"{name}_{number}" in taken:
        number += 1
    taken.add(f"{name}_{number}")
    return f"{name}_{number}"


def _answer(plan: RepairPlan, ledger: Ledger | None, policy: Policy, last_unit: int) -> None:
    cut: set[int] = set()
    for slot in plan.slots:
        if not slot.kept or slot.answer is not None:
            continue
        call = Call(slot.id, slot.call.name, slot.call.arguments, slot.at[0], _block(slot.at))
        state = known(ledger, call)
        last = slot.unit == last_unit
        match next_move(state, policy, asked=ledger is not None, last=last):
            case Done() as done:
                slot.answer = done
                told = done.result in STAND_INS if isinstance(done.result, str) else False
                plan.note(Change.TOLD if told else Change.FILLED, slot.at, _what(done), slot.id)
            case CallMove.RUN:
                plan.to_run.append(call)
            case CallMove.CUT:
                slot.kept = False
                cut.add(slot.unit)
                plan.note(Change.REMOVED, slot.at, "a call that is asked for again", slot.id)
    plan.cut = cut - {slot.unit for slot in plan.slots if slot.kept}


def _block(at: Place) -> int | None:
    return None if at[1] == WHOLE else at[1]


def _what(done: Done) -> str:
    text = done.result if isinstance(done.result, str) else ""
    return text.partition(":")[0].lower() if text in STAND_INS else "the result from the ledger"


def answers(
    slots: list[CallSlot],
    plan: RepairPlan,
    *,
    field: str,
    where: str,
    made: Callable[[str, Done], dict[str, Any]],
) -> list[tuple[int, dict[str, Any]]]:
    """Return the results of these calls with their places: those found, in order, and those made.

    `field` names the call in a result, and `where` is the place of a result behind its call.
    """
    kept = [slot for slot in slots if slot.kept]
    found = [(slot, slot.answer) for slot in kept if isinstance(slot.answer, Given)]
    out = []
    for slot, given in sorted(found, key=lambda pair: pair[1].at):
        if given.home != slot.at[0]:
            plan.note(Change.MOVED, given.at, f"a result, to {where} behind its call", slot.id)
        out.append((given.at[1], renamed(given.payload, field, slot.id)))
    return out + [
        (WHOLE, made(slot.id, slot.answer)) for slot in kept if isinstance(slot.answer, Done)
    ]


def renamed(payload: dict[str, Any], field: str, name: str) -> dict[str, Any]:
    """Return a call or a result under this id; the same object if it has that id already."""
    return payload if payload.get(field) == name else {**payload, field: name}


def text_of(content: Any) -> str:
    """Return the text of a result that is only text."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        return str(content[0].get("text", ""))
    return ""

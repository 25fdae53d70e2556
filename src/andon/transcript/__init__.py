"""Repairs transcripts: finds tool calls that have lost their results, so that a run can resume.

It supports Anthropic Messages, OpenAI Chat Completions and OpenAI Responses. It executes nothing
and never changes a given transcript. It needs only the standard library, so that an adapter, a test
or another program can use it without andon's runtime.

    found = transcript.repair(messages, ledger={"toolu_1": transcript.Done("charged")})
    found.messages   a transcript the provider accepts; the same object if it needed no repair
    found.to_run     calls that have certainly not started: run them, and repair again
    found.notes      each change, and where it was made
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from andon.errors import BadInput, Unrepairable
from andon.transcript import chat, responses
from andon.transcript import messages as anthropic
from andon.transcript.answers import calls, results, text, turn
from andon.transcript.ledger import (
    IN_DOUBT,
    NOT_EXECUTED,
    NOT_STARTED,
    UNKNOWN,
    Call,
    Done,
    Ledger,
    Open,
    Policy,
    State,
)
from andon.transcript.pairs import Change, Fault, Note
from andon.transcript.window import shortened, too_long
from andon.transcript.wire import one_of, plain, refuse, word

__all__ = [
    "IN_DOUBT",
    "NOT_EXECUTED",
    "NOT_STARTED",
    "UNKNOWN",
    "Call",
    "Change",
    "Done",
    "Fault",
    "Format",
    "Ledger",
    "Note",
    "Open",
    "Policy",
    "Repaired",
    "State",
    "Unrepairable",
    "calls",
    "check",
    "detect",
    "repair",
    "results",
    "shorten",
    "text",
    "too_long",
    "turn",
]


class Format(StrEnum):
    """The wire formats of the providers."""

    ANTHROPIC = "anthropic"
    CHAT = "chat"
    RESPONSES = "responses"


@dataclass(frozen=True)
class Repaired:
    """A repaired transcript. If it has calls `to_run`, it is complete once they have results."""

    messages: Sequence[Any]
    notes: tuple[Note, ...] = ()
    to_run: tuple[Call, ...] = ()


_BY_FORMAT: dict[Format, Any] = {
    Format.ANTHROPIC: anthropic,
    Format.CHAT: chat,
    Format.RESPONSES: responses,
}


def check(messages: Sequence[Any], format: str | None = None) -> list[Fault]:  # noqa: A002
    """Return the faults the provider would refuse, in order; empty if it accepts the transcript."""
    return _faults(plain(messages), _format(messages, format))


def repair(
    messages: Sequence[Any],
    *,
    format: str | None = None,  # noqa: A002 (the word everybody types)
    ledger: Ledger | None = None,
    policy: str = Policy.JOURNAL,
) -> Repaired:
    """Return a transcript that the provider accepts.

    Raises Unrepairable, naming the place, if that is impossible.

    `ledger` returns `Done(result)`, `NOT_STARTED` or `IN_DOUBT` for a call without a result. A
    call it does not know is in doubt. A call in `to_run` stays open in `messages` until it has run.
    """
    chosen = one_of(Policy, policy, "policy")
    kind = _format(messages, format)
    given = plain(messages)
    before = _faults(given, kind)
    if not before:
        return Repaired(messages)
    for number, message in enumerate(given):
        shape = _BY_FORMAT[kind].shape_fault(number, message)
        if shape is not None:
            raise refuse(shape, "Remove it, or insert what is missing.")
    out, plan = _BY_FORMAT[kind].repaired(given, ledger, chosen)
    if not out:
        nothing = Fault(0, None, "nothing that could stay", "at least one message")
        raise refuse(nothing, "Begin the conversation again.")
    pending = {call.id for call in plan.to_run}
    left = [fault for fault in _faults(out, kind) if fault.call_id not in pending]
    if left:
        # Name the fault where it stands in the given transcript, not in the repaired one.
        fault = next((one for one in before if one.found == left[0].found), left[0])
        raise refuse(fault, "Repair that part of the transcript, or continue from before it.")
    return Repaired(out, tuple(plan.notes), tuple(plan.to_run))


def shorten(messages: Sequence[Any], keep: int, *, format: str | None = None) -> Sequence[Any]:  # noqa: A002
    """Return the transcript's beginning and its last `keep` messages or fewer, in valid form.

    The beginning is everything before the model's first turn. If nothing has to go, the same
    object is returned. Use it for a full context window: the stored transcript stays complete.
    """
    kind = _format(messages, format)
    given = plain(messages)
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 0:
        raise BadInput(f"keep={keep!r}: expected how many messages, 0 or more")
    broken = _faults(given, kind)
    if broken:
        raise BadInput(f"expected a whole transcript, found: {broken[0]}. Repair it first.")
    kept = shortened(given, keep, lambda some: _faults(some, kind))
    return messages if len(kept) == len(given) else [messages[n] for n in kept]


def detect(messages: Sequence[Any]) -> Format:
    """Return the format that a transcript shows signs of. Raises BadInput unless it is one."""
    found: dict[Format, int] = {}
    for number, message in enumerate(plain(messages)):
        for kind in _signs(message):
            found.setdefault(kind, number)
    if len(found) == 1:
        return next(iter(found))
    seen = ", ".join(f"{kind} in message {number}" for kind, number in found.items())
    raise BadInput(
        f"expected the signs of one wire format, found {seen or 'neither tool calls nor results'}; "
        f"give format= one of {', '.join(Format)}"
    )


def _faults(given: Any, kind: Format) -> list[Fault]:
    if not given:
        return [Fault(0, None, "an empty transcript", "at least one message")]
    found: list[Fault] = _BY_FORMAT[kind].faults(given)
    return found


def _format(messages: Sequence[Any], given: str | None) -> Format:
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        kind = type(messages).__name__
        raise BadInput(f"expected a list of messages, found {kind}; pass the messages themselves")
    if given is None:
        return detect(messages)
    return one_of(Format, given, "format")


_ANTHROPIC = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking"})
_ANTHROPIC |= anthropic.SERVED | {"input_json_delta"}
_RESPONSES = frozenset({"input_text", "output_text", "input_image", "input_file"})


def _signs(message: Any) -> set[Format]:
    if not isinstance(message, dict):
        return set()
    found = set()
    if "role" in message and (
        "tool_calls" in message or word(message, "role") in ("tool", "function")
    ):
        found.add(Format.CHAT)
    if isinstance(message.get("type"), str):
        found.add(Format.RESPONSES)
    content = message.get("content")
    for block in content if isinstance(content, list) else ():
        kind = word(block, "type") if isinstance(block, dict) else ""
        if kind in _ANTHROPIC:
            found.add(Format.ANTHROPIC)
        elif kind in _RESPONSES:
            found.add(Format.RESPONSES)
    return found

"""Conversations that ended in a call: their repair, and the form of tool results in the ledger."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic_ai import messages as wire

from andon.transcript import NOT_EXECUTED, UNKNOWN, Call, Done, Ledger, Policy
from andon.transcript.ledger import CallMove, known, next_move
from andon.transcript.wire import one_of

# Tool results are stored in the ledger as they are; anything else goes under this name.
OTHER = "pydantic_ai"


def is_other(stored: Any) -> bool:
    return isinstance(stored, dict) and stored.keys() == {OTHER}


def repair(
    messages: Sequence[wire.ModelMessage],
    *,
    ledger: Ledger | None = None,
    policy: str = Policy.INTERRUPTED,
) -> Sequence[wire.ModelMessage]:
    """Return a history for `message_history=` in which every call has a result.

    It works like `andon.transcript.repair`; a complete history is returned as it is. Under the
    policy `journal`, calls of the last turn that have certainly not started stay open:
    `agent.run(message_history=…)` without a prompt makes them.
    """
    chosen, out, asked = one_of(Policy, policy, "policy"), list(messages), ledger is not None
    last = max((n for n, one in enumerate(out) if one.kind == "response"), default=-1)
    for number in range(last, -1, -1):  # from the end, so that earlier positions stay valid
        moves = {}
        for part in _orphans(out, number):
            call = Call(part.tool_call_id, part.tool_name, part.args_as_dict(), number)
            state = known(ledger, call)
            moves[call.id] = next_move(state, chosen, asked=asked, last=number == last)
        if moves:
            _answer(out, number, out[number], moves)
    return messages if out == list(messages) else out


def _orphans(out: list[wire.ModelMessage], number: int) -> list[wire.ToolCallPart]:
    """Return the calls of a message that have no result before the model's next message."""
    after = itertools.takewhile(lambda one: one.kind == "request", out[number + 1 :])
    answered = {getattr(part, "tool_call_id", None) for one in after for part in one.parts}
    calls = [part for part in out[number].parts if isinstance(part, wire.ToolCallPart)]
    return [part for part in calls if part.tool_call_id not in answered]


def _answer(out: list[Any], number: int, said: Any, moves: dict[str, Any]) -> None:
    kept = [p for p in said.parts if moves.get(getattr(p, "tool_call_id", "")) is not CallMove.CUT]
    spoken = any(part.part_kind in ("text", "tool-call") for part in kept) or kept == said.parts
    out[number : number + 1] = [replace(said, parts=kept)] if spoken else []
    ends = [(part, moves.get(part.tool_call_id)) for part in said.tool_calls]
    results = [_result(part, done) for part, done in ends if isinstance(done, Done)]
    place = number + spoken
    if results and place < len(out) and isinstance(out[place], wire.ModelRequest):
        out[place] = replace(out[place], parts=[*results, *out[place].parts])
    elif results:
        out.insert(place, wire.ModelRequest(parts=results))


def _result(part: wire.ToolCallPart, done: Done) -> wire.ToolReturnPart:
    result, outcome = done.result, "failed" if done.error else "success"
    if result in (UNKNOWN, NOT_EXECUTED):
        outcome = "interrupted"
    elif is_other(result):  # the tool reported something other than a result
        result, outcome = result[OTHER].get("message", NOT_EXECUTED), "failed"
    return wire.ToolReturnPart(part.tool_name, result, part.tool_call_id, outcome=outcome)  # type: ignore[arg-type]

"""More than ten thousand transcripts: each is repaired and accepted, or refused with its place."""

import json
import re
from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.transcript import talks
from tests.transcript.judge import refusal

from andon import transcript
from andon.errors import BadInput
from andon.transcript import IN_DOUBT, NOT_EXECUTED, NOT_STARTED, UNKNOWN, Done, Unrepairable

EXAMPLES = 2_000  # each is a valid and a broken transcript in three formats
LEAST = 10_000
seen: Counter[str] = Counter()

states = st.sampled_from([Done, NOT_STARTED, IN_DOUBT, None])
ledgers = st.one_of(st.none(), st.lists(states, min_size=1, max_size=4))
policies = st.sampled_from(list(transcript.Policy))


class RecordingLedger:
    """A ledger that knows some calls, and records its answers."""

    def __init__(self, drawn: list[Any]) -> None:
        self.drawn = drawn
        self.said: dict[str, Any] = {}

    def __call__(self, call: transcript.Call) -> transcript.State | None:
        state = self.drawn[sum(call.id.encode()) % len(self.drawn)]
        self.said[call.id] = Done(f"ledger's {call.id}.") if state is Done else state
        found: transcript.State | None = self.said[call.id]
        return found


def results(talk: Any, form: str) -> dict[str, list[str]]:
    """Every tool result, as text, by the id of its call."""
    found: dict[str, list[str]] = {}
    for message in talk:
        blocks = message.get("content") if form == "anthropic" else [message]
        for block in blocks if isinstance(blocks, list) else []:
            name = block.get("tool_use_id") or block.get("tool_call_id") or block.get("call_id")
            kind = block.get("type") or block.get("role")
            if kind in ("tool_result", "tool") or str(kind).endswith("_call_output"):
                shown = block.get("content", block.get("output"))
                text = shown if isinstance(shown, str) else shown[0]["text"] if shown else ""
                found.setdefault(str(name), []).append(text)
    return found


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
@given(talks.talks, talks.damages, ledgers, policies)
def every_transcript_is_repaired_or_refused(
    talk: list[talks.Turn], damage: Any, drawn: Any, policy: str
) -> None:
    for form in talks.FORMATS:
        valid = talks.written(talk, form)
        assert not refusal(valid, form)
        judge(valid, form, drawn, policy)
        judge(talks.broken(valid, damage), form, drawn, policy)


def judge(talk: talks.Messages, form: str, drawn: Any, policy: str) -> None:
    seen[form] += 1
    before = json.dumps(talk)
    why = refusal(talk, form)
    faults = transcript.check(talk, form)
    assert bool(faults) == bool(why), (faults, why)
    book = None if drawn is None else RecordingLedger(drawn)
    try:
        found = transcript.repair(talk, format=form, ledger=book, policy=policy)
    except Unrepairable as refused:
        seen["refused"] += 1
        assert re.match(r"message \d+(, block \d+)?: found .*; expected ", str(refused))
        assert 0 <= refused.message <= len(talk)
        return
    finally:
        assert json.dumps(talk) == before, "the given transcript was modified"
    if not faults:
        assert found.messages is talk
        return
    seen["repaired"] += 1
    said = {} if book is None else book.said
    out = whole(found, form, said)
    assert refusal(out, form) == ""
    assert transcript.repair(out, format=form, ledger=book, policy=policy).messages is out
    nothing_is_lost(talk, out, form)
    nothing_is_claimed(talk, out, form, said)
    thinking_is_untouched(talk, out, form)


def whole(found: transcript.Repaired, form: str, said: dict[str, Any]) -> Any:
    """Run the calls that are to be run, and repair again with their results."""
    again = transcript.repair(found.messages, format=form, ledger=said) if found.to_run else found
    assert again.to_run == () or again.messages == found.messages, "a repair of a repair changes"
    done = {call.id: Done(f"ran {call.id}.") for call in found.to_run}
    said.update(done)
    if not done:
        return found.messages
    last = transcript.repair(found.messages, format=form, ledger=done)
    assert not last.to_run
    return last.messages


def nothing_is_lost(talk: Any, out: Any, form: str) -> None:
    kept = json.dumps(out)
    for texts in results(talk, form).values():
        for text in texts:
            assert text in kept


def nothing_is_claimed(talk: Any, out: Any, form: str, said: dict[str, Any]) -> None:
    there = {text for texts in results(talk, form).values() for text in texts}
    for name, texts in results(out, form).items():
        for text in texts:
            if text in there:
                continue
            state = said.get(name)
            known = state.result if isinstance(state, Done) else None
            assert text in (known, NOT_EXECUTED if state is NOT_STARTED else UNKNOWN)


def thinking_is_untouched(talk: Any, out: Any, form: str) -> None:
    if form != "anthropic":
        return
    thoughts = [
        [block for block in message["content"] if block["type"] == "thinking"]
        for message in talk
        if isinstance(message["content"], list)
    ]
    signed = [block for blocks in thoughts for block in blocks]
    for message in out:
        blocks = message["content"]
        for block in blocks if isinstance(blocks, list) else []:
            assert block["type"] != "thinking" or block in signed


def test_every_transcript_is_repaired_or_refused() -> None:
    every_transcript_is_repaired_or_refused()
    assert sum(seen[form] for form in talks.FORMATS) >= LEAST
    assert all(seen[form] >= LEAST // 4 for form in talks.FORMATS)
    assert seen["repaired"] >= LEAST // 4
    assert seen["refused"] <= seen["repaired"] // 20


JUNK: tuple[Any, ...] = (None, 7, "", "x", [], {}, [[]], {"type": "text"}, {"type": []})


def spoil(value: Any, chance: Random) -> Any:
    """Replace a random part of it with a value of another type."""
    if isinstance(value, list | dict) and value and chance.random() < 0.85:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = chance.choice(list(keys))
        value[key] = spoil(value[key], chance)
        return value
    return chance.choice(JUNK)


@pytest.mark.parametrize("form", talks.FORMATS)
def test_a_value_that_is_no_transcript_is_refused_without_side_effects(form: str) -> None:
    chance = Random(7)
    whole = [talks.Turn(True, True, 2, True, True, False, True, 2)] * 2
    for _ in range(1_000):
        talk = spoil(talks.written(whole, form), chance)
        before = json.dumps(talk)
        with suppress(BadInput, Unrepairable):
            found = transcript.repair(talk, format=form)
            assert transcript.check(found.messages, form) == []
        assert json.dumps(talk) == before

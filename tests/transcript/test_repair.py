"""Rules of all three formats: policies, the ledger, the format, and the untouched parts."""

import copy
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.transcript import talks
from tests.transcript.judge import refusal

from andon import transcript
from andon.errors import BadInput
from andon.testing import FakeModel, call
from andon.transcript import (
    IN_DOUBT,
    NOT_EXECUTED,
    NOT_STARTED,
    UNKNOWN,
    Call,
    Change,
    Done,
    Policy,
    State,
)
from andon.transcript.ledger import CallMove, next_move

# One turn: "call_0a" is answered, "call_0b" and "call_0c" are not.
OPEN = [talks.Turn(True, True, 3, False, False, False, False, 0)]
every_format = pytest.mark.parametrize("form", talks.FORMATS)


def cut_in_the_middle(form: str) -> list[Any]:
    talk = copy.deepcopy(talks.written(OPEN, form))
    if form == "anthropic":
        del talk[-1]["content"][1:]
    else:
        del talk[-2:]
    return talk


def untouched(form: str) -> list[Any]:
    """The same transcript, in which no call was answered."""
    talk = cut_in_the_middle(form)
    del talk[-1]
    return talk


# ── the decision ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("state", "policy", "last", "move"),
    [
        (Done("paid"), Policy.JOURNAL, True, Done("paid")),
        (Done("paid"), Policy.RESTART, True, Done("paid")),
        (Done("paid"), Policy.INTERRUPTED, True, Done("paid")),
        (NOT_STARTED, Policy.JOURNAL, True, CallMove.RUN),
        (NOT_STARTED, Policy.JOURNAL, False, Done(NOT_EXECUTED)),
        (NOT_STARTED, Policy.RESTART, True, CallMove.CUT),
        (NOT_STARTED, Policy.RESTART, False, Done(NOT_EXECUTED)),
        (NOT_STARTED, Policy.INTERRUPTED, True, Done(NOT_EXECUTED)),
        (IN_DOUBT, Policy.JOURNAL, True, Done(UNKNOWN)),
        (IN_DOUBT, Policy.RESTART, True, Done(UNKNOWN)),
        (IN_DOUBT, Policy.INTERRUPTED, True, Done(UNKNOWN)),
        (None, Policy.JOURNAL, True, Done(UNKNOWN)),
        (None, Policy.RESTART, True, Done(UNKNOWN)),
    ],
)
def test_the_next_move_follows_from_the_state_in_the_ledger_and_the_policy(
    state: State | None, policy: Policy, last: bool, move: Done | CallMove
) -> None:
    assert next_move(state, policy, asked=True, last=last) == move


def test_without_a_ledger_the_outcome_of_a_call_is_unknown() -> None:
    found = [next_move(None, policy, asked=False, last=True) for policy in Policy]
    assert found == [Done(UNKNOWN), CallMove.CUT, Done(UNKNOWN)]


@every_format
def test_a_call_that_broke_off_is_not_run(form: str) -> None:
    """Even if the ledger says of every unknown call that it has not begun."""
    whole = untouched(form)
    broken = talks.broken(whole, [(talks.BREAK_OFF, 0, 1)])
    found = transcript.repair(broken, format=form, ledger=lambda call: NOT_STARTED)
    assert [one.id for one in found.to_run] == ["call_0b", "call_0c"]


def test_the_text_for_an_unknown_outcome_claims_nothing() -> None:
    for word in ("fail", "reject", "error", "denied", "success"):
        assert word not in UNKNOWN.lower()
    assert "Check first" in UNKNOWN


# ── policies ──────────────────────────────────────────────────────────────────────────────────


@every_format
def test_the_ledger_decides_whether_a_call_is_run_filled_in_or_in_doubt(form: str) -> None:
    talk = cut_in_the_middle(form)
    found = transcript.repair(talk, ledger={"call_0b": NOT_STARTED, "call_0c": Done("paid")})
    assert [one.id for one in found.to_run] == ["call_0b"]
    assert [note.change for note in found.notes] == [Change.FILLED]
    assert "call_0b" in refusal(found.messages, form)
    again = transcript.repair(found.messages, ledger={"call_0b": Done("mailed")})
    assert again.to_run == ()
    assert refusal(again.messages, form) == ""
    kept = json.dumps(again.messages)
    assert all(text in kept for text in ("result of call_0a.", "paid", "mailed"))


@every_format
def test_a_ledger_may_be_a_function_of_the_call(form: str) -> None:
    asked: list[Call] = []

    def ledger(call: Call) -> State | None:
        asked.append(call)
        return IN_DOUBT

    transcript.repair(cut_in_the_middle(form), format=form, ledger=ledger)
    assert [(one.id, one.name, one.arguments) for one in asked] == [
        ("call_0b", "act", {"n": 0}),
        ("call_0c", "act", {"n": 0}),
    ]


@every_format
def test_restart_removes_the_turn_and_keeps_later_messages_of_people(form: str) -> None:
    new = {"role": "user", "content": "a new word"}
    talk = [*untouched(form), new]
    found = transcript.repair(talk, format=form, policy="restart").messages
    begun = talks.written([], form)
    assert list(found) == [*begun, new]


@every_format
def test_restart_keeps_the_calls_that_were_answered(form: str) -> None:
    found = transcript.repair(cut_in_the_middle(form), policy="restart").messages
    assert refusal(found, form) == ""
    kept = json.dumps(found)
    assert "result of call_0a." in kept
    assert "call_0b" not in kept


@every_format
def test_restart_keeps_calls_that_may_have_happened(form: str) -> None:
    ledger = {"call_0a": NOT_STARTED, "call_0b": IN_DOUBT, "call_0c": NOT_STARTED}
    found = transcript.repair(untouched(form), format=form, ledger=ledger, policy="restart")
    kept = json.dumps(found.messages)
    assert ("call_0a" in kept, "call_0b" in kept, "call_0c" in kept) == (False, True, False)
    assert UNKNOWN in kept


@every_format
def test_interrupted_answers_every_call(form: str) -> None:
    found = transcript.repair(
        cut_in_the_middle(form), ledger={"call_0b": NOT_STARTED}, policy="interrupted"
    )
    assert found.to_run == ()
    assert refusal(found.messages, form) == ""
    kept = json.dumps(found.messages)
    assert (kept.count(UNKNOWN), kept.count(NOT_EXECUTED)) == (1, 1)


# ── the format ────────────────────────────────────────────────────────────────────────────────


@every_format
def test_the_format_of_a_transcript_is_detected(form: str) -> None:
    assert transcript.detect(cut_in_the_middle(form)) == form


@pytest.mark.parametrize(
    ("talk", "found"),
    [
        ([{"role": "user", "content": "hi"}], "neither tool calls nor results"),
        (
            [
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]},
                {"role": "tool", "tool_call_id": "a"},
            ],
            "anthropic in message 0, chat in message 1",
        ),
    ],
)
def test_an_ambiguous_format_must_be_given(talk: list[Any], found: str) -> None:
    with pytest.raises(BadInput, match=found):
        transcript.repair(talk)


def test_an_unknown_format_or_policy_is_refused() -> None:
    talk = [{"role": "user", "content": "hi"}]
    with pytest.raises(BadInput, match="one of anthropic, chat, responses"):
        transcript.check(talk, "gemini")
    with pytest.raises(BadInput, match="one of journal, restart, interrupted"):
        transcript.repair(talk, format="chat", policy="hope")
    for wrong in ("hello", {"messages": talk}, None):
        with pytest.raises(BadInput, match="expected a list of messages"):
            transcript.repair(wrong, format="chat")  # type: ignore[arg-type]
    with pytest.raises(transcript.Unrepairable, match="at least one message"):
        transcript.repair([], format="chat")


@every_format
def test_faults_say_where_and_what(form: str) -> None:
    talk = cut_in_the_middle(form)
    faults = transcript.check(talk)
    assert [fault.call_id for fault in faults] == ["call_0b", "call_0c"]
    assert "call_0b without" in str(faults[0])
    number = faults[0].message
    assert "call_0b" in json.dumps(talk[number])


# ── untouched parts ───────────────────────────────────────────────────────────────────────────


@every_format
def test_a_valid_transcript_is_returned_as_the_same_object(form: str) -> None:
    talk = talks.written(OPEN, form)
    assert transcript.check(talk, form) == []
    for policy in Policy:
        assert transcript.repair(talk, format=form, policy=policy).messages is talk


@every_format
def test_the_given_transcript_is_not_modified(form: str) -> None:
    talk = cut_in_the_middle(form)
    found = transcript.repair(talk, format=form).messages
    assert json.dumps(talk) == json.dumps(cut_in_the_middle(form))
    assert json.dumps(found[:2]) == json.dumps(talk[:2])


def test_transcript_needs_only_the_standard_library() -> None:
    code = "import sys, andon.transcript; print(*{one.partition('.')[0] for one in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    plain = subprocess.run(
        [sys.executable, "-c", code.replace(", andon.transcript", "")],
        check=True,
        capture_output=True,
        text=True,
    )
    loaded = set(done.stdout.split()) - set(plain.stdout.split())
    assert loaded - sys.stdlib_module_names == {"andon"}


# ── with the providers' own clients ───────────────────────────────────────────────────────────


@pytest.fixture
def model() -> Iterator[FakeModel]:
    with FakeModel([call("charge", amount=1)]) as found:
        yield found


def ask(client: Any, form: str, talk: Any) -> None:
    match form:
        case "anthropic":
            client.messages.create(model="m", max_tokens=9, messages=talk)
        case "chat":
            client.chat.completions.create(model="m", messages=talk)
        case _:
            client.responses.create(model="m", input=talk)


def client_of(form: str, url: str) -> Any:
    if form == "anthropic":
        anthropic = pytest.importorskip("anthropic")
        return anthropic.Anthropic(base_url=url, api_key="fake", max_retries=0)
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=f"{url}/v1", api_key="fake", max_retries=0)


@every_format
def test_a_repaired_transcript_is_accepted_over_http(form: str, model: FakeModel) -> None:
    chance = random.Random(6)
    repaired = 0
    with client_of(form, model.url) as client:
        for _ in range(60):
            talk = talks.written(OPEN * chance.randint(1, 3), form)
            hurt = [
                (chance.choice(talks.BREAKS), chance.randrange(16), chance.randrange(16))
                for _ in range(2)
            ]
            broken = talks.broken(talk, hurt)
            try:
                found = transcript.repair(broken, format=form)
            except transcript.Unrepairable:
                continue
            repaired += found.messages is not broken
            ask(client, form, found.messages)
    assert repaired > 20
    assert {request.status for request in model.requests} == {200}


@every_format
def test_a_transcript_may_contain_the_answer_objects_of_the_clients(
    form: str, model: FakeModel
) -> None:
    """A loop appends the client's answers as they are: objects, not dictionaries."""
    asked: list[Any] = [{"role": "user", "content": "go"}]
    with client_of(form, model.url) as client:
        match form:
            case "anthropic":
                message = client.messages.create(model="m", max_tokens=9, messages=asked)
                talk = [*asked, {"role": "assistant", "content": message.content}]
            case "chat":
                chosen = client.chat.completions.create(model="m", messages=asked).choices[0]
                talk = [*asked, chosen.message]
            case _:
                talk = [*asked, *client.responses.create(model="m", input=asked).output]
        assert len(transcript.check(talk, form)) == 1
        found = transcript.repair(talk, format=form)
        ask(client, form, found.messages)
    assert UNKNOWN in json.dumps(found.messages)
    assert model.requests[-1].status == 200

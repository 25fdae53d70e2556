"""Replay answers a run from its journal or refuses; it never gives a wrong answer."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from andon.core.effect import EffectState
from andon.core.journal import Entry, EntryKind, Mark, Record, Replay, settled, split
from andon.errors import Diverged

BACK = (
    "Nothing was executed. Give changed code a new version. To continue with the original code: "
    "andon resume."
)


class Journal:
    """Writes entries as the runtime does."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def write(self, place: str, state: str = Mark.DONE, /, **fields: Any) -> "Journal":
        fields = {"kind": EntryKind.STEP, "name": "look", "digest": "d0", **fields}
        self.entries.append(Entry(seq=len(self.entries), state=state, place=place, **fields))
        return self

    def replay(self) -> Replay:
        return Replay(self.entries, run_id="r-1")


def find(replay: Replay, place: str = "", **fields: Any) -> Record | None:
    asked = {"kind": EntryKind.STEP, "name": "look", "key": None, "digest": "d0", **fields}
    return replay.find(place=place, **asked)


def found(replay: Replay, place: str = "", **fields: Any) -> Record:
    record = find(replay, place, **fields)
    assert record is not None
    return record


# ── one branch ────────────────────────────────────────────────────────────────────────────────────


def test_recorded_operations_are_answered_in_turn_and_the_next_is_new() -> None:
    replay = Journal().write(":0", body="1").write(":1", body="2").replay()
    assert [found(replay, place).body for place in (":0", ":1")] == ["1", "2"]
    assert find(replay, ":2") is None
    replay.check_end(2)
    replay.check_end(3)


def test_an_empty_journal_answers_nothing_and_refuses_nothing() -> None:
    replay = Replay([], run_id="r-1")
    assert find(replay, ":0") is None
    assert find(replay, "@step/look/k", key="k") is None
    assert replay.records() == []
    replay.check_end(0)


def test_the_start_and_the_end_of_a_run_are_not_operations() -> None:
    journal = Journal().write("", kind=EntryKind.START).write(":0", body="1")
    replay = journal.write("", kind=EntryKind.END).replay()
    assert [record.body for record in replay.records()] == ["1"]


@pytest.mark.parametrize("state", [*Mark, *EffectState])
def test_only_an_outcome_settles_an_operation(state: str) -> None:
    outcome = state in {"done", "failed", "cancelled", "confirmed"}
    assert settled(found(Journal().write(":0", state).replay(), ":0")) == outcome


@pytest.mark.parametrize(
    ("changed", "asked"),
    [
        ({"name": "pay"}, "step 'pay' with arguments d0"),
        ({"kind": EntryKind.EFFECT}, "effect 'look' with arguments d0"),
        ({"digest": "d9"}, "step 'look' with arguments d9"),
        ({"digest": ""}, "step 'look' with arguments -"),
    ],
)
def test_changed_code_is_refused_with_both_sides_shown(changed: dict[str, str], asked: str) -> None:
    replay = Journal().write(":0").replay()
    with pytest.raises(Diverged) as refused:
        find(replay, ":0", **changed)
    assert str(refused.value) == (
        "run r-1: the journal has step 'look' with arguments d0 at place :0, "
        f"the code asks for {asked}. {BACK}"
    )


def test_an_operation_without_arguments_shows_a_dash_for_them() -> None:
    replay = Journal().write(":0", kind=EntryKind.VALUE, name="now", digest="").replay()
    with pytest.raises(Diverged, match=r"value 'now' with arguments - at place :0"):
        find(replay, ":0")


def test_a_gap_in_the_journal_is_refused() -> None:
    replay = Journal().write(":1").replay()
    with pytest.raises(Diverged) as refused:
        find(replay, ":0")
    assert str(refused.value) == (
        "run r-1: the code asks for step 'look' at place :0, where the journal has nothing "
        f"although it has later entries. {BACK}"
    )


def test_code_that_returns_too_early_is_refused() -> None:
    replay = Journal().write(":0").write(":1", kind=EntryKind.EFFECT, name="pay").replay()
    for number in (0, 1):
        with pytest.raises(Diverged) as refused:
            replay.check_end(number)
        assert str(refused.value) == (
            "run r-1: the code returned, but the journal goes on with effect 'pay' at place :1. "
            f"{BACK}"
        )
    replay.check_end(2)


def test_replaying_lasts_until_the_last_recorded_operation_of_the_branch() -> None:
    replay = Journal().write(":0").write(":1").write(".0:0").replay()
    assert [replay.replaying("", number) for number in range(3)] == [True, True, False]
    assert [replay.replaying(".0", number) for number in range(2)] == [True, False]
    assert not replay.replaying(".1", 0)


def test_the_end_of_a_branch_does_not_depend_on_the_order_of_its_entries() -> None:
    replay = Journal().write(":1").write(":0").replay()
    assert replay.replaying("", 1)


@pytest.mark.parametrize(
    ("place", "parts"), [(":0", ("", 0)), (".0.2:17", (".0.2", 17)), ("41.1:3", ("41.1", 3))]
)
def test_a_place_is_a_branch_and_a_number(place: str, parts: tuple[str, int]) -> None:
    assert split(place) == parts


# ── folding ───────────────────────────────────────────────────────────────────────────────────────


def test_a_step_that_was_only_begun_is_not_answered() -> None:
    record = found(Journal().write(":0", Mark.BEGUN).replay(), ":0")
    assert record.state == Mark.BEGUN
    assert not settled(record)


def test_retries_are_counted_and_their_last_error_is_kept() -> None:
    journal = Journal().write(":0", Mark.BEGUN).write(":0", Mark.RETRYING, body="first")
    journal.write(":0", Mark.BEGUN).write(":0", Mark.RETRYING, body="second")
    record = found(journal.replay(), ":0")
    assert (record.state, record.failures, record.body) == (Mark.RETRYING, 2, "second")
    record = found(journal.write(":0", Mark.BEGUN).replay(), ":0")
    assert (record.state, record.failures, record.body) == (Mark.BEGUN, 2, "second")
    record = found(journal.write(":0", Mark.DONE, body="ok").replay(), ":0")
    assert (record.state, record.failures, record.body) == (Mark.DONE, 2, "ok")


def test_a_wait_becomes_its_outcome() -> None:
    journal = Journal().write(":0", Mark.WAITING, kind=EntryKind.EVENT, body="99.0")
    journal.write(":0", Mark.DONE, kind=EntryKind.EVENT, body='"came"')
    [record] = journal.replay().records()
    assert (record.state, record.body) == (Mark.DONE, '"came"')


def test_a_large_body_is_kept_by_its_address() -> None:
    journal = Journal().write(":0", Mark.RETRYING, body="small").write(":0", blob="sha")
    record = found(journal.replay(), ":0")
    assert (record.body, record.blob) == (None, "sha")


PAY: dict[str, Any] = {"kind": EntryKind.EFFECT, "name": "pay"}


def cancelled_effect() -> Journal:
    journal = Journal().write(":0", EffectState.STARTED, **PAY, body="intent")
    return journal.write(":0", Mark.CANCELLED, **PAY)


def test_an_effect_that_the_code_cancelled_stays_cancelled_when_it_is_confirmed_later() -> None:
    journal = cancelled_effect().write(":0", EffectState.CONFIRMED, **PAY, body="paid")
    record = found(journal.replay(), ":0", **PAY)
    assert (record.state, record.later, record.body) == (Mark.CANCELLED, "confirmed", "paid")
    assert settled(record)


def test_a_step_with_an_outcome_after_its_cancellation_is_not_cancelled() -> None:
    journal = Journal().write(":0", Mark.CANCELLED).write(":0", body="1")
    record = found(journal.replay(), ":0")
    assert (record.state, record.body) == (Mark.DONE, "1")


@pytest.mark.parametrize("end", [Mark.DONE, Mark.FAILED])
def test_a_wait_that_was_cancelled_while_its_end_was_written_is_waited_for_again(end: str) -> None:
    nap = {"kind": EntryKind.SLEEP, "name": "sleep"}
    journal = Journal().write(":0", Mark.WAITING, **nap, body="99.5").write(":0", end, **nap)
    assert found(journal.replay(), ":0", **nap).body is None
    record = found(journal.write(":0", Mark.CANCELLED, **nap).replay(), ":0", **nap)
    assert (record.state, record.body) == (Mark.CANCELLED, "99.5")


def test_an_event_that_was_taken_and_given_back_has_no_deadline() -> None:
    go = {"kind": EntryKind.EVENT, "name": "go"}
    journal = Journal().write(":0", **go, body='"went"').write(":0", Mark.CANCELLED, **go)
    assert found(journal.replay(), ":0", **go).body is None


def test_an_operation_that_the_code_cancelled_twice_is_cancelled() -> None:
    journal = cancelled_effect().write(":0", Mark.CANCELLED, **PAY)
    record = found(journal.replay(), ":0", **PAY)
    assert (record.state, record.later) == (Mark.CANCELLED, None)


def test_an_effect_belongs_to_the_claim_that_started_it_not_to_one_that_asked_about_it() -> None:
    journal = Journal().write(":0", EffectState.PLANNED, **PAY, fence=1)
    journal.write(":0", EffectState.STARTED, **PAY, fence=2)
    journal.write(":0", EffectState.IN_DOUBT, **PAY, fence=3)
    assert found(journal.replay(), ":0", **PAY).fence == 2
    journal.write(":0", EffectState.STARTED, **PAY, fence=4)
    assert found(journal.replay(), ":0", **PAY).fence == 4


def test_a_retried_agent_retries_the_step_that_failed_it() -> None:
    journal = Journal().write(":0", body="kept").write(":1", Mark.RETRYING, body="e")
    journal.write(":1", Mark.FAILED, body="e")
    journal.write(":1", Mark.REOPENED, kind=EntryKind.RETRY, name="", digest="")
    replay = journal.replay()
    record = found(replay, ":1")
    assert (record.state, record.failures) == (Mark.REOPENED, 0)
    assert not settled(record)
    assert found(replay, ":0").state == Mark.DONE
    replay.add(Entry(seq=9, kind="step", state="done", place=":1", name="look", digest="d0"))
    assert found(replay, ":1").state == Mark.DONE


def test_a_retry_reopens_only_the_operation_that_failed_at_its_place() -> None:
    journal = Journal().write(":0", Mark.FAILED).write(":1").write(":2", Mark.FAILED)
    journal.write(":1", Mark.REOPENED, kind=EntryKind.RETRY)
    states = [record.state for record in journal.replay().records()]
    assert states == [Mark.FAILED, Mark.DONE, Mark.FAILED]


def test_a_failed_operation_with_a_key_is_reopened_too() -> None:
    journal = Journal().write("@step/look/k", Mark.FAILED, key="k")
    journal.write("@step/look/k", Mark.REOPENED, kind=EntryKind.RETRY)
    assert found(journal.replay(), "@step/look/k", key="k").state == Mark.REOPENED


def test_operations_cancelled_because_of_the_failure_are_reopened_with_it() -> None:
    """E.g. the other branches of a TaskGroup: nothing would cancel them when the step succeeds."""
    journal = Journal().write(".0:0", Mark.CANCELLED).write(".1:0", Mark.FAILED)
    journal.write(".2:0", Mark.CANCELLED).write("@step/look/k", Mark.CANCELLED, key="k")
    journal.write(".1:0", Mark.REOPENED, kind=EntryKind.RETRY)
    states = {record.place: record.state for record in journal.replay().records()}
    assert states == {
        ".0:0": Mark.CANCELLED,  # before: by a timeout of the code's own
        ".1:0": Mark.REOPENED,
        ".2:0": Mark.REOPENED,
        "@step/look/k": Mark.REOPENED,
    }


def test_an_operation_cancelled_before_the_first_of_several_failures_stays_cancelled() -> None:
    journal = Journal().write("@step/look/k", Mark.FAILED, key="k").write(":0", Mark.CANCELLED)
    journal.write("@step/look/k", Mark.REOPENED, kind=EntryKind.RETRY)
    assert {record.state for record in journal.replay().records()} == {Mark.REOPENED}


@pytest.mark.parametrize(
    ("later", "again"),
    [
        (None, EffectState.IN_DOUBT),
        (EffectState.STARTED, EffectState.IN_DOUBT),
        (EffectState.IN_DOUBT, EffectState.IN_DOUBT),
        (EffectState.CONFIRMED, EffectState.CONFIRMED),
        (EffectState.COMPENSATED, EffectState.COMPENSATED),
        (EffectState.PLANNED, Mark.REOPENED),
        (EffectState.FAILED, Mark.REOPENED),
    ],
)
def test_a_cancelled_effect_is_reopened_only_if_it_certainly_did_not_happen(
    later: str | None, again: str
) -> None:
    journal = Journal().write(":0", Mark.FAILED).write(".0:0", EffectState.STARTED, **PAY)
    journal.write(".0:0", Mark.CANCELLED, **PAY)
    if later is not None:
        journal.write(".0:0", later, **PAY)
    journal.write(":0", Mark.REOPENED, kind=EntryKind.RETRY)
    assert found(journal.replay(), ".0:0", **PAY).state == again


def test_a_reopened_effect_that_was_found_to_have_happened_is_not_repeated() -> None:
    journal = Journal().write(":0", Mark.FAILED).write(".0:0", Mark.CANCELLED, **PAY)
    journal.write(".0:0", EffectState.CONFIRMED, **PAY, body="paid")
    journal.write(":0", Mark.REOPENED, kind=EntryKind.RETRY)
    record = found(journal.replay(), ".0:0", **PAY)
    assert (record.state, record.body) == (EffectState.CONFIRMED, "paid")


def test_an_effect_that_was_confirmed_while_it_was_being_cancelled_is_not_repeated() -> None:
    journal = Journal().write(":0", Mark.FAILED).write(".0:0", EffectState.STARTED, **PAY)
    journal.write(".0:0", EffectState.CONFIRMED, **PAY, body="paid")
    journal.write(".0:0", Mark.CANCELLED, **PAY)
    record = found(journal.replay(), ".0:0", **PAY)
    assert (record.state, record.later, record.body) == (Mark.CANCELLED, "confirmed", "paid")
    journal.write(":0", Mark.REOPENED, kind=EntryKind.RETRY)
    record = found(journal.replay(), ".0:0", **PAY)
    assert (record.state, record.body) == (EffectState.CONFIRMED, "paid")


def test_an_agent_that_failed_by_itself_reopens_what_it_cancelled_after_its_last_answer() -> None:
    journal = Journal().write("", kind=EntryKind.START).write(".0:0", Mark.CANCELLED)
    journal.write(":0").write(".1:0", Mark.CANCELLED)
    journal.write("", Mark.REOPENED, kind=EntryKind.RETRY)
    states = [record.state for record in journal.replay().records()]
    assert states == [Mark.CANCELLED, Mark.DONE, Mark.REOPENED]


def test_an_agent_that_was_never_answered_reopens_everything_it_cancelled() -> None:
    journal = Journal().write("", kind=EntryKind.START).write(":0", Mark.CANCELLED)
    journal.write("", Mark.REOPENED, kind=EntryKind.RETRY)
    assert [record.state for record in journal.replay().records()] == [Mark.REOPENED]


def test_the_answers_are_listed_in_the_order_in_which_the_code_saw_them() -> None:
    journal = Journal().write("", kind=EntryKind.START).write(":0", Mark.BEGUN)
    journal.write(".1:0", EffectState.STARTED, **PAY).write(".0:0", Mark.FAILED)
    journal.write(".2:0", Mark.CANCELLED).write(":1", kind=EntryKind.VALUE)
    journal.write(".1:0", EffectState.CONFIRMED, **PAY).write("@step/look/k", key="k")
    journal.write(":0").write(":2", Mark.WAITING)
    assert journal.replay().answers() == [3, 6, 7, 8]


# ── keys ──────────────────────────────────────────────────────────────────────────────────────────


@given(st.permutations(range(5)))
def test_an_operation_with_a_key_is_found_in_any_order(order: list[int]) -> None:
    journal = Journal()
    for n in range(5):
        journal.write(f"@step/look/{n}", key=str(n), body=str(n))
    replay = journal.replay()
    assert [found(replay, key=str(n)).body for n in order] == [str(n) for n in order]
    assert find(replay, key="new") is None
    assert not replay.replaying("", 0)
    replay.check_end(0)


def test_a_key_belongs_to_a_name_and_a_kind() -> None:
    replay = Journal().write("@step/look/k", key="k").replay()
    assert find(replay, key="k", name="other") is None
    assert find(replay, key="k", kind=EntryKind.EFFECT) is None


def test_the_same_key_with_other_arguments_is_refused_by_key() -> None:
    replay = Journal().write("@step/look/k", key="k").replay()
    with pytest.raises(Diverged, match=r"with arguments d0 at key 'k', the code asks .* d9"):
        find(replay, key="k", digest="d9")


def test_all_records_are_listed_with_and_without_key() -> None:
    replay = Journal().write("@step/look/k", key="k").write(":0").replay()
    assert {record.place for record in replay.records()} == {"@step/look/k", ":0"}


# ── snapshots ─────────────────────────────────────────────────────────────────────────────────────


def after_a_snapshot() -> Replay:
    journal = Journal().write(":0").write(".0:0").write("@step/look/k", key="k")
    journal.write("", kind=EntryKind.SNAPSHOT, body='{"n": 3}')
    return journal.write("3:0", body="after").replay()


def test_a_snapshot_drops_the_earlier_entries_and_restarts_the_count() -> None:
    replay = after_a_snapshot()
    assert replay.snapshot is not None
    assert (replay.root, replay.snapshot.body) == ("3", '{"n": 3}')
    assert [record.place for record in replay.records()] == ["3:0"]
    assert find(replay, "@step/look/k", key="k") is None
    assert not replay.replaying("", 0)
    assert not replay.replaying(".0", 0)
    assert [replay.replaying("3", number) for number in (0, 1)] == [True, False]


def test_after_a_snapshot_code_that_returns_too_early_is_refused() -> None:
    replay = after_a_snapshot()
    replay.check_end(1)
    with pytest.raises(Diverged, match=r"step 'look' at place 3:0") as refused:
        replay.check_end(0)
    assert "must continue from ctx.restored. Give changed code" in str(refused.value)


def test_without_a_snapshot_no_snapshot_is_offered_to_the_code() -> None:
    replay = Journal().write(":0").replay()
    assert replay.snapshot is None
    with pytest.raises(Diverged) as refused:
        replay.check_end(0)
    assert "snapshot" not in str(refused.value)


# ── many branches: a random program, in random order, journaled up to a random moment ─────────────

# A branch is a list: a number is an operation without, a text one with a key, and a list of
# branches is a gather, which ends when all of them have.
Program = list[Any]


def programs(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Program]:
    branch = st.lists(leaves, max_size=4)
    gathers = st.recursive(
        branch,
        lambda inner: st.lists(leaves | st.lists(inner, min_size=1, max_size=3), max_size=4),
        max_leaves=12,
    )
    return gathers.map(_numbered)


def _numbered(program: Program) -> Program:
    """Give every operation a name of its own, so that no answer can be mistaken."""
    count = iter(range(10_000))

    def number(branch: Program) -> Program:
        return [
            [number(inner) for inner in item]
            if isinstance(item, list)
            else (next(count) if item else f"k{next(count)}")
            for item in branch
        ]

    return number(program)


class Branch:
    """A chain of awaits: numbers its operations, and the branches it starts."""

    def __init__(self, path: str, program: Program, parent: "Branch | None" = None) -> None:
        self.path, self.parent = path, parent
        self.items = iter(program)
        self.number = self.children = self.waits_for = 0
        self.calling: tuple[str, Any] | None = None

    def start(self, program: Program) -> "Branch":
        branch = Branch(f"{self.path}.{self.children}", program, self)
        self.children += 1
        self.waits_for += 1
        return branch

    def place(self, item: Any) -> str:
        if isinstance(item, str):
            return f"@step/look/{item}"
        self.number += 1
        return f"{self.path}:{self.number - 1}"


OnTurn = Callable[[str, Any], None]


def execute(program: Program, chance: Random, called: OnTurn, returned: OnTurn) -> Branch:
    """Run a program; chance decides which branch goes on. Every call takes two turns."""
    root = Branch("", program)
    living = [root]
    while living:
        branch = chance.choice([one for one in living if not one.waits_for])
        if branch.calling is not None:
            returned(*branch.calling)
            branch.calling = None
            continue
        item = next(branch.items, None)
        if item is None:
            living.remove(branch)
            if branch.parent is not None:
                branch.parent.waits_for -= 1
        elif isinstance(item, list):
            living += [branch.start(inner) for inner in item]
        else:
            branch.calling = branch.place(item), item
            called(*branch.calling)
    return root


def identity(item: Any) -> dict[str, Any]:
    if isinstance(item, str):
        return {"name": "look", "key": item, "digest": item}
    return {"name": f"op{item}", "key": None, "digest": str(item)}


@given(programs(st.booleans()), st.randoms(), st.randoms(), st.data())
def test_any_prefix_of_a_journal_is_answered_at_the_right_places_and_the_rest_is_new(
    program: Program, once: Random, again: Random, data: st.DataObject
) -> None:
    journal = Journal()
    execute(
        program,
        once,
        lambda place, item: void(journal.write(place, Mark.BEGUN, **identity(item))),
        lambda place, item: void(journal.write(place, body=f"result {item}", **identity(item))),
    )
    del journal.entries[data.draw(st.integers(0, len(journal.entries))) :]
    written = {(entry.digest, entry.state) for entry in journal.entries}
    replay = journal.replay()

    def called(place: str, item: Any) -> None:
        asked = identity(item)
        if not isinstance(item, str):
            recorded = (str(item), Mark.BEGUN) in written
            assert replay.replaying(*split(place)) == recorded
        record = find(replay, place, **asked)
        if (asked["digest"], Mark.DONE) in written:
            assert record is not None
            assert settled(record)
            assert record.body == f"result {item}"
        elif (asked["digest"], Mark.BEGUN) in written:
            assert record is not None
            assert not settled(record)
        else:
            assert record is None

    root = execute(program, again, called, lambda place, item: None)
    replay.check_end(root.number)


def void(_: object) -> None:
    """For a lambda that is called for its side effect."""


@given(programs(st.just(value=True)), st.randoms(), st.data())
def test_a_program_that_changed_anywhere_in_the_recorded_part_is_refused(
    program: Program, once: Random, data: st.DataObject
) -> None:
    journal = Journal()
    execute(
        program,
        once,
        lambda place, item: None,
        lambda place, item: void(journal.write(place, **identity(item))),
    )
    if not journal.entries:
        return
    replay = journal.replay()
    entry = data.draw(st.sampled_from(journal.entries))
    changed = data.draw(st.sampled_from(["name", "kind", "digest"]))
    asked = {field: getattr(entry, field) for field in ("kind", "name", "key", "digest")}
    asked[changed] += "!"
    with pytest.raises(Diverged) as refused:
        replay.find(place=entry.place, **asked)
    assert repr(entry.name) in str(refused.value)
    assert repr(asked["name"]) in str(refused.value)


# ── compensation ──────────────────────────────────────────────────────────────────────────────────


def effect(journal: Journal, state: str, **fields: Any) -> Journal:
    return journal.write(":0", state, kind=EntryKind.EFFECT, name="pay", **fields)


@pytest.mark.parametrize("after", [[], ["compensated"], ["undoing", "compensated"], ["confirmed"]])
def test_rehearsed_code_sees_its_undone_effects_as_it_first_saw_them(
    after: list[str],
) -> None:
    journal = effect(Journal(), "started")
    effect(journal, "confirmed", body="7")
    for state in ("undoing", *after):
        effect(journal, state, body="{}")
    record = found(journal.replay(), ":0", kind=EntryKind.EFFECT, name="pay")
    assert (record.state, record.body, record.undone) == ("confirmed", "7", True)


def test_an_undone_effect_in_doubt_was_never_confirmed() -> None:
    journal = effect(effect(Journal(), "started"), "in_doubt")
    effect(effect(journal, "undoing"), "compensated")
    record = found(journal.replay(), ":0", kind=EntryKind.EFFECT, name="pay")
    assert (record.state, record.undone) == ("in_doubt", True)


def test_a_journal_says_that_its_run_goes_no_further() -> None:
    journal = Journal().write(":0")
    assert journal.replay().compensation is None
    journal.write("", Mark.BEGUN, kind=EntryKind.COMPENSATE, name="agent", body="{}")
    replay = journal.replay()
    assert replay.compensation is journal.entries[-1]
    assert found(replay, ":0").state == Mark.DONE


def test_a_replay_knows_which_operations_have_a_key() -> None:
    entry = Entry(seq=1, kind="effect", state="planned", place="@x", name="pay", key="k")
    found = Replay([entry], run_id="r")
    assert found.knows("effect", "pay", "k")
    assert not found.knows("effect", "pay", "other")

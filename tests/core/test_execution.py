"""The journal says how many times a step was executed."""

import pytest

from andon.core.execution import counts, place_before
from andon.core.journal import Entry, EntryKind


def step(*states: tuple[int, str]) -> list[Entry]:
    return [
        Entry(seq=seq, kind=EntryKind.STEP, state=state, name="s", place="0:1", fence=fence)
        for seq, (fence, state) in enumerate(states)
    ]


@pytest.mark.parametrize(
    ("states", "attempts", "expected"),
    [
        ([(1, "done")], [(1, "succeeded")], (1, 1)),
        ([(1, "retrying"), (1, "failed")], [(1, "failed")], (2, 2)),
        ([(2, "begun"), (2, "done")], [(1, "interrupted"), (2, "succeeded")], (1, 2)),
        ([(2, "begun"), (3, "begun"), (3, "done")], [(2, "interrupted"), (3, None)], (2, 2)),
        ([(2, "done")], [(1, "suspended"), (2, "succeeded")], (1, 1)),
        ([(1, "done")], [(1, "interrupted"), (2, "interrupted"), (3, None)], (1, 1)),
        ([(1, "retrying")], [(1, "interrupted"), (2, None)], (1, 3)),
        ([(1, "retrying"), (2, "done")], [(1, "returned"), (2, "succeeded")], (2, 2)),
        ([(1, "cancelled")], [(1, "succeeded")], (1, 1)),
        ([(1, "retrying"), (1, "cancelled")], [(1, "succeeded")], (1, 1)),
    ],
)
def test_a_step_is_counted_as_often_as_its_journal_can_know(
    states: list[tuple[int, str]],
    attempts: list[tuple[int, str | None]],
    expected: tuple[int, int],
) -> None:
    assert counts(step(*states), 0, attempts) == expected


def test_an_attempt_that_ended_before_the_previous_place_cannot_have_executed_the_step() -> None:
    lost = [(1, "interrupted"), (2, "interrupted"), (3, "succeeded")]
    assert counts(step((3, "done")), 1, lost) == (1, 3)
    assert counts(step((3, "done")), 2, lost) == (1, 2)
    assert counts(step((3, "done")), 3, lost) == (1, 1)


def test_the_previous_place_is_in_the_same_branch() -> None:
    assert place_before("0:4") == "0:3"
    assert place_before("0:1/2:1") == "0:1/2:0"


def test_an_operation_with_a_key_has_no_previous_place() -> None:
    for place in ("@step/send/a:5", "@step/send/mail", ""):
        assert place_before(place) == ""

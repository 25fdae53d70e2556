"""Hostile shapes against every order: nothing acts once the stop is proved."""

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.hostile import shapes
from tests.hostile.cells import ORDERS, OWNERS, SHAPES, Verdict, cell

# Some of each way to find processes; `make chaos` has all.
SAMPLE = (
    ("worker-zombie-leader", "kill", "work"),
    ("worker-zombie-leader", "pause", "work"),
    ("worker-zombie-leader", "kill", "up"),
    ("worker-zombie-leader", "halt", "up"),
    ("worker-traced", "kill", "up"),
    ("worker-vfork", "kill", "up"),
    ("disguised", "halt", "up"),
    ("detached", "kill", "work"),
    ("detached", "pause", "work"),
    ("detached", "cancel", "up"),
    ("double-fork", "kill", "up"),
    ("fork-storm", "kill", "work"),
    ("handed-over", "kill", "work"),
    ("left-timer", "pause", "work"),
    ("left-task-of-a-thread", "cancel", "up"),
    ("native-of-one-that-waits", "kill", "work"),
    ("left-apart", "pause", "work"),
)
NEED_ROOT = {"namespaced", "traced", "worker-traced"}
# Of all shapes; from the order, the start of its interpreter included, to the last act.
ENDED_SHARE, ENDED_SECONDS = 0.9, 1.0
# A stranger starts it, and it inherits nothing of the run: its owner cannot be known. Such a
# process belongs to no run, and docs/limits.md says so.
NOBODYS = "handed-over-bare"
ATTRIBUTED = [one for one in SHAPES if one != NOBODYS]


def possible(shape: str) -> None:
    if shape in NEED_ROOT and os.geteuid() != 0:
        pytest.skip("to trace a stranger and to make a pid namespace takes root")


@pytest.mark.parametrize(("shape", "order", "owner"), SAMPLE)
def test_a_hostile_process_is_ended_and_the_end_is_proved(
    tmp_path: Path, sqlite_url: str, shape: str, order: str, owner: str
) -> None:
    possible(shape)
    found = cell(tmp_path, sqlite_url, shape, order, owner)
    assert found.proved, found
    assert found.ended, found


Judge = Callable[[str, str, str], Verdict]
_judged: dict[tuple[str, ...], Verdict] = {}


@pytest.fixture(params=["sqlite", "postgres"])
def judge(request: pytest.FixtureRequest) -> Judge:
    """Each cell once, for both tests below, in a store of its own: a halt is for a whole store."""
    kind = str(request.param)
    databases = request.getfixturevalue("databases") if kind == "postgres" else None

    def judged(shape: str, order: str, owner: str) -> Verdict:
        name = (kind, shape, order, owner)
        if name not in _judged:
            with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                url = f"sqlite:///{folder}/andon.db" if databases is None else databases.take()
                try:
                    _judged[name] = cell(Path(folder), url, shape, order, owner)
                finally:
                    if databases is not None:
                        databases.give_back(url)
        return _judged[name]

    return judged


@pytest.mark.chaos
@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", ATTRIBUTED)
def test_nothing_acts_after_it_was_proved_that_nothing_does(
    judge: Judge, shape: str, order: str, owner: str
) -> None:
    possible(shape)
    found = judge(shape, order, owner)
    assert found.honest, found


@pytest.mark.chaos
@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("shape", ["detached", shapes.NATIVE])
def test_the_receipt_of_a_kill_names_each_acting_process(
    judge: Judge, shape: str, owner: str
) -> None:
    found = judge(shape, "kill", owner)
    assert found.named, found


@pytest.mark.chaos
@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("order", ORDERS)
def test_nine_of_ten_shapes_have_ended_within_a_second(
    judge: Judge, order: str, owner: str
) -> None:
    possible_here = [one for one in ATTRIBUTED if one not in NEED_ROOT or os.geteuid() == 0]
    found = {one: judge(one, order, owner) for one in possible_here}
    late = {
        shape: verdict
        for shape, verdict in found.items()
        if not verdict.ended or verdict.ended_seconds > ENDED_SECONDS
    }
    assert len(late) <= (1 - ENDED_SHARE) * len(possible_here), late

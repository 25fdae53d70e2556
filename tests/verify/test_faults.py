"""Layers of faults, scaled down: green for the product, and red for a product with a bug.

`make verify` runs the full layers; tests/chaos covers most of their process faults too.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.chaos.fleet import Forker
from tests.verify.planted import found

from andon.points import POINTS
from verify import calls, fuzz, harness, mutation, points, power, syscalls, writers
from verify.disk import KINDS, Disk
from verify.layer import Effort, Outcome

SMALL = Effort("ci", 0.0)

# A part of each layer, for the product that is on the path; prints every violation.
START = "from verify import harness\nfrom verify.layer import Effort\nsmall = Effort('ci', 0.0)\n"
POWER = f"""{START}
from verify import power_cuts, power
power_cuts.CUTS = 0
power_cuts.refuse = lambda _: "not in this test"
print(*power.check(small, str).violations, sep="\\n")
"""
FLIPS = f"""{START}
from verify import flips
flips.KINDS, flips.LEAST = ({{kind!r}},), 30
tables = flips.tables
flips.tables = lambda path: {{{{"andon_journal": tables(path)["andon_journal"]}}}}
print(*flips.check(small, str).violations, sep="\\n")
"""
SYSCALLS = f"""{START}
from verify import syscalls
with harness.scratch("planted") as folder:
    preload = {{"LD_PRELOAD": str(harness.shim(folder))}}
    with harness.forker(preload) as forker:
        harness.HANG_SECONDS = 5
        for number in range(5, 11):
            print(*syscalls.befall(forker, folder / str(number), f"fsync@{{number}}+1").wrong)
"""
BRAINS = f"""{START}
from verify import brains
with harness.scratch("planted") as folder, harness.forker() as forker:
    class Server:
        start = staticmethod(lambda: None)
    played = brains.Brains(forker, Server(), folder, small)
    played.freeze_in_effect("sqlite", "probeable")
    print(*played.wrong, sep="\\n")
"""
POINTS_TRIAL = f"""{START}
from verify import points
task = points.Task(("effect:executed",), "sqlite", lambda site: points.Tour()._try(
    site, "effect:executed=kill@3"))
with harness.scratch("planted") as folder, harness.forker() as forker:
    print(*points.carry_out(None, folder / "it", forker, task).wrong)
"""
CHAOS = f"""{START}
from verify import chaos
with harness.scratch("planted") as folder, harness.forker() as forker:
    with harness.sited(forker, f"sqlite:///{{folder}}/andon.db", folder / "world") as site:
        # One worker, which is killed in the middle of a run that takes two seconds.
        chaos.KINDS, chaos.WORKERS, chaos.EVERY_SECONDS = {{"kill": 1}}, 1, 1.2
        chaos.STEP_SECONDS = (0.1,)
        print(*chaos.roll(site, 3, 1)[0].broken, sep="\\n")
"""
FUZZ = f"""{START}
from verify import fuzz
print(*fuzz.check(small, str).violations, sep="\\n")
"""
HAPPENED = ("core/effect.py", "HAPPENED: EffectMove.RECORD", "HAPPENED: EffectMove.EXECUTE")


@pytest.mark.parametrize(
    ("code", "bug", "words"),
    [
        pytest.param(
            POWER,
            ("store/sqlite/store.py", "synchronous = FULL", "synchronous = OFF"),
            "was acknowledged and is lost",
            id="power: nothing waits for the disk",
        ),
        pytest.param(
            FLIPS.format(kind="bit in the database"),
            ("core/journal.py", "chain(head, entry) != entry.hash", "entry.hash is None"),
            "silent difference: ",
            id="flips: the chain is not checked",
        ),
        pytest.param(
            FLIPS.format(kind="bit in the WAL"),
            ("store/sqlite/wal.py", "if chained == 2:", "if chained < 0:"),
            "silent difference: ",
            id="flips: a log's lost end is believed",
        ),
        pytest.param(
            SYSCALLS,
            (
                "store/sqlite/store.py",
                "raise translate(error, self.path) from error\n        return",
                "return [None] * len(batch)\n        return",
            ),
            "run",
            id="syscalls: a failed commit is taken for a success",
        ),
        pytest.param(
            BRAINS,
            ("core/effect.py", "Kind.IRREVERSIBLE or not quiet", "Kind.IRREVERSIBLE"),
            "happened twice",
            id="brains: a silent worker is taken for dead",
        ),
        pytest.param(
            POINTS_TRIAL, HAPPENED, "happened twice", id="points: a probe is not believed"
        ),
        pytest.param(
            CHAOS,
            ("core/effect.py", "({EffectState.CONFIRMED, EffectState.FAILED})", "()"),
            "happened twice",
            id="chaos: a confirmed effect is not settled",
        ),
        pytest.param(
            FUZZ,
            ("settings.py", "except (ValueError, RecursionError)", "except KeyError"),
            "settings file, seed 0",
            id="fuzz: a broken file is not expected",
        ),
    ],
)
def test_a_bug_turns_its_layer_red(
    tmp_path: Path, code: str, bug: tuple[str, str, str], words: str
) -> None:
    assert words in found(tmp_path, code, *bug)


# ── the product itself, scaled down ───────────────────────────────────────────────────────────────


@contextmanager
def shimmed(folder: Path) -> Iterator[Forker]:
    try:
        preload = {"LD_PRELOAD": str(harness.shim(folder))}
    except harness.Missing as missing:
        pytest.skip(str(missing))
    with harness.forker(preload) as forker:
        yield forker


def test_a_system_call_that_fails_loses_and_doubles_nothing(tmp_path: Path) -> None:
    with shimmed(tmp_path) as forker:
        for fault in ("kill@60+1", "torn@80+1", "short@90+1", "fsync@7+3", "eio@99+1"):
            trial = syscalls.befall(forker, tmp_path / fault, fault)
            assert (trial.fired, trial.wrong) == (True, []), fault


def test_synced_data_survives_every_cut_and_other_data_some(tmp_path: Path) -> None:
    disk = Disk()
    for call in (
        calls.Call("create", "a", 0, b""),
        calls.Call("write", "a", 0, b"x" * 1024),
        calls.Call("sync", "a", 0, b""),
        calls.Call("write", "a", 512, b"y" * 1024),
        calls.Call("create", "b", 0, b""),
    ):
        disk.take(call)
    chance = random.Random(0)
    images = [disk.after_a_cut(kind, chance) for kind in KINDS for _ in range(20)]
    assert all(bytes(image["a"][:512]) == b"x" * 512 for image in images)
    assert {bytes(image["a"][512:513]) for image in images} == {b"x", b"y"}
    assert {"b" in image for image in images} == {True, False}
    torn = [Disk.after_a_cut(disk, "torn", chance)["a"] for _ in range(40)]
    assert any(found[512:1024] != found[1024:] and len(found) == 1536 for found in torn)


def test_a_strict_disk_knows_a_name_when_its_folder_was_synced() -> None:
    for strict, synced in ((False, "f/a"), (True, "f")):
        disk = Disk({"f/old": b"there"}, strict=strict)
        for call in (
            calls.Call("create", "f/a", 0, b""),
            calls.Call("write", "f/a", 0, b"x"),
            calls.Call("rename", "f/old", 0, b"f/new"),
            calls.Call("unlink", "f/new", 0, b""),
        ):
            disk.take(call)
        if strict:
            disk.take(calls.Call("sync", "f/a", 0, b""))
            assert disk.after_a_cut("dropped", random.Random(0)) == {"f/old": b"there"}
        disk.take(calls.Call("sync", synced, 0, b""))
        assert disk.after_a_cut("dropped", random.Random(0)) == {"f/a": b"x"}


def test_a_power_cut_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    with shimmed(tmp_path) as forker:
        images = power.Images(forker, tmp_path, SMALL)
        images.record()
        outcome = Outcome("power", "", 0, 0)
        images.judge(outcome, print)
    assert (outcome.violations, outcome.guards) == ([], [])
    assert outcome.faults >= 60


def test_parsers_accept_or_refuse_every_input(tmp_path: Path) -> None:
    outcome = fuzz.check(SMALL, print)
    assert (outcome.violations, outcome.guards) == ([], [])


def test_a_mutation_is_the_same_for_the_same_seed() -> None:
    def some() -> list[bytes]:
        chance = random.Random(5)
        return [mutation.mutated(b'{"a": 1}', [b"x"], chance) for _ in range(50)]

    assert some() == some()
    assert len(set(some())) > 25


def test_a_step_repeated_by_a_later_attempt_was_forgotten(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("step r/step-0 1\nstep r/step-1 1\nstep r/step-0 2\n")
    assert harness.forgotten(tmp_path, "r") == [
        "r/step-0 was done again in attempt 2, after what follows it"
    ]


def test_a_step_that_an_earlier_attempt_does_late_was_not_forgotten(tmp_path: Path) -> None:
    """It was frozen before it began, and others have resumed the run meanwhile."""
    (tmp_path / "log").write_text("step r/step-0 1\nstep r/step-1 2\nstep r/step-0 1\n")
    assert harness.forgotten(tmp_path, "r") == []


@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_every_declared_point_has_a_trial(scale: float) -> None:
    tasks = points.tasks(Effort("any", scale))
    assert {name for task in tasks for name in task.points} == set(POINTS)
    assert {task.database for task in tasks} == {"sqlite", "postgres"}


# ── the writer alone ──────────────────────────────────────────────────────────────────────────────


def test_a_writer_gives_each_caller_the_outcome_of_its_own_message() -> None:
    outcome = writers.check(SMALL, lambda _: None)
    assert not outcome.violations
    assert not outcome.guards
    assert outcome.runs == writers.FEWEST


def test_a_writer_that_acknowledges_a_skipped_message_is_found(tmp_path: Path) -> None:
    code = f"""{START}
from verify import writers
print(*writers.check(small, str).violations, sep="\\n")
"""
    right = "                del items[place], outcomes[place]\n"
    assert "gets the outcome of None" in found(
        tmp_path, code, "store/writer/sender.py", right, "                pass\n"
    )

"""`andon reauthorize`: shows the stops it lifts, needs a name and a reason, and starts nothing."""

import json
import os
import pty
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.terminal import LIMIT_SECONDS, Terminal
from tests.control.stop_scenario import StopScenario
from tests.store.parts import do, new_run

from andon.control.stop import reauthorization
from andon.control.stop.target import StopTarget
from andon.errors import Conflict
from andon.host.latch import Latch
from andon.store import open_store
from andon.store.messages.stops import WorkerGone
from andon.store.store import Start

FLEET = StopTarget(scope="fleet")
SAID = ("--why", "found the cause", "--yes")


@pytest.fixture
def seeded(store_url: str) -> Iterator[StopScenario]:
    store = open_store(store_url)
    yield StopScenario(store)
    store.close()


@pytest.fixture
def small(sqlite_url: str) -> Iterator[StopScenario]:
    store = open_store(sqlite_url)
    yield StopScenario(store)
    store.close()


@pytest.fixture
def latch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Latch:
    """Of the home that the test's terminal has too."""
    monkeypatch.setenv("ANDON_HOME", str(tmp_path / "home"))
    found = Latch(str(tmp_path / "home"))
    found.init()
    return found


def states(seeded: StopScenario, *runs: str) -> list[str]:
    return [row.state for run in runs if (row := seeded.store.run(run)) is not None]


def test_reauthorize_lifts_both_latches_and_restarts_nothing(
    andon: Terminal, seeded: StopScenario, latch: Latch
) -> None:
    held = seeded.begin()
    seeded.effect(held, "started")
    seeded.start("q")
    seeded.order("halt")
    latch.pull(by="bo", why="fire", order="rcp_haltfleet")
    do(seeded.store, WorkerGone(worker_id="w", evidence="killed"))
    text = andon("reauthorize", *SAID)
    assert "by bo: fire: halt of everything, epoch 1  (rcp_haltfleet)" in text
    assert f"the latch of this host, {latch.home}" in text
    assert "2 runs stopped until resumed: agent 2" in text
    assert "in doubt  effect pay k of run r" in text
    assert "lifted by tester: receipt rcp_haltfleet, the latch of this host" in text
    assert not latch.read().pulled
    assert states(seeded, "r", "q") == ["killed", "killed"]
    do(seeded.store, Start(run=new_run("new")))
    assert states(seeded, "new") == ["queued"]
    assert andon("resume", "--all") == "resumed: 2 runs\n"


@pytest.mark.parametrize("words", [(), ("--why", " "), ("--why", "x", "--by", " "), ("--why", "x")])
def test_reauthorize_needs_a_name_a_reason_and_a_confirmation(
    local: Terminal, small: StopScenario, words: tuple[str, ...]
) -> None:
    small.order("halt")
    done = local.run("reauthorize", *words, code=2)
    assert "Nothing was lifted" in done.stderr
    assert "halt of everything" in done.stdout
    assert len(small.store.latches()) == 1


def typed(local: Terminal, answers: str, *words: str, code: int) -> str:
    """`andon reauthorize` at a terminal with typed answers; returns its stderr."""
    main, side = pty.openpty()
    with subprocess.Popen(
        local._command("reauthorize", *words),
        cwd=local.folder,
        env=local.environment,
        stdin=side,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        os.write(main, answers.encode())
        assert process.stderr is not None
        said = process.stderr.read().decode()
        assert process.wait(LIMIT_SECONDS) == code
    os.close(main)
    os.close(side)
    return said


def test_a_person_at_a_terminal_is_asked(local: Terminal, small: StopScenario) -> None:
    for answer, code, left in (("n", 1, 1), ("", 1, 1), ("y", 0, 0)):
        small.order("kill", id="rcp_1")
        said = typed(local, f"{answer}\n", "--why", "found the cause", code=code)
        assert "Reauthorize? [y/N]" in said
        assert len(small.store.latches()) == left


def test_the_advice_works_when_it_is_pasted_into_a_terminal(
    local: Terminal, small: StopScenario
) -> None:
    do(small.store, Start(run=new_run("q", labels='{"team": "a b"}')))
    small.order("kill", scope="label", name="team", value="a b")
    verb, *words = shlex.split(json.loads(local("show", "q", "--json"))["lifted_with"])[1:]
    assert verb == "reauthorize"
    said = typed(local, "  \nfound the cause\ny\n", *words, code=0)
    assert said.count("Reason: ") == 2  # a blank one is not a reason
    assert small.store.latches() == []
    [row] = small.store.stops(1)
    assert row.lifted_why == "found the cause"


def test_resume_is_advised_only_if_a_run_can_be_resumed(
    local: Terminal, small: StopScenario, latch: Latch
) -> None:
    small.order("halt")
    said = local.run("reauthorize", *SAID).stderr
    assert "Nothing waits to be resumed" in said
    assert "andon resume" not in said
    small.start("q")
    small.order("halt", id="rcp_2")
    assert "next: andon resume --agent agent" in local.run("reauthorize", *SAID).stderr
    latch.pull(why="fire")
    away = {"ANDON_STORE": "postgresql://nobody@127.0.0.1:9/none"}
    assert "andon resume" not in local.run("reauthorize", *SAID, env=away).stderr


def test_a_newer_pull_is_not_lifted_with_the_older(
    local: Terminal, small: StopScenario, latch: Latch
) -> None:
    small.order("kill")
    pulled = latch.pull()
    seen = reauthorization.look(small.store, FLEET)
    small.order("halt")
    with pytest.raises(Conflict, match="stopped again"):
        reauthorization.lift(small.store, seen, by="bo", why="x")
    assert len(small.store.latches()) == 2
    assert latch.read() == pulled
    assert "you saw stop 1" in local.run("reauthorize", *SAID, "--epoch", "1", code=1).stderr
    local("reauthorize", *SAID, "--epoch", "2")
    assert small.store.latches() == []


def test_a_newer_pull_of_this_host_is_not_lifted_either(small: StopScenario, latch: Latch) -> None:
    latch.pull(by="bo")
    seen = reauthorization.look(small.store, FLEET)
    latch.pull(by="ann")
    with pytest.raises(Conflict, match="pulled again"):
        reauthorization.lift(small.store, seen, by="bo", why="x")
    assert latch.read().pulled


def test_with_the_store_away_only_this_host_is_lifted(
    local: Terminal, tmp_path: Path, latch: Latch
) -> None:
    latch.pull(why="fire")
    away = {"ANDON_STORE": "postgresql://nobody@127.0.0.1:9/none"}
    text = local("reauthorize", *SAID, env=away)
    assert "Stops in the store stay in force" in text
    assert "only this host" in text
    assert not latch.read().pulled
    assert "is not pulled" in local.error("reauthorize", *SAID, env=away, code=4)
    latch.pull()
    local.error("reauthorize", "--agent", "a", *SAID, env=away, code=1)
    assert latch.read().pulled


def test_one_scope_is_lifted_and_no_other(
    andon: Terminal, seeded: StopScenario, latch: Latch
) -> None:
    seeded.worker("w")
    seeded.start("r")
    seeded.order("kill", "agent", "agent")
    seeded.order("kill", "label", "team", value="a b")
    latch.pull()
    text = andon("reauthorize", "--agent", "agent", *SAID)
    assert "held      label team=a b is stopped by a kill" in text
    assert [one.scope for one in seeded.store.latches()] == ["label"]
    assert latch.read().pulled
    refused = andon.error("reauthorize", "--agent", "agent", *SAID, code=4)
    assert "andon reauthorize --label 'team=a b'" in refused
    found = andon.json("reauthorize", "--label", "team=a b", *SAID)
    assert (found["lifted"], found["by"]) == (["rcp_killlabelteam"], "tester")

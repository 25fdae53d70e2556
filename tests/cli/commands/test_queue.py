"""Queues, limits, dead runs and versions, at a terminal."""

import signal

import pytest
from tests.cli.terminal import Terminal, until

LATER = """
import os
import andon


def work():
    if not os.path.exists("mended"):
        raise ValueError("not mended")
    return "mended"


@andon.agent(retries=andon.Retry(1, first_seconds=0.001), queue="repairs", at_most=5)
async def repair(ctx):
    return await ctx.step(work)
"""

VERSIONED = """
import andon


@andon.agent(version="{version}")
async def told(ctx):
    return "{version}"


@andon.agent(version="{version}")
async def waits(ctx):
    return await ctx.event("go")
"""


@pytest.fixture
def repairs(andon: Terminal) -> Terminal:
    (andon.folder / "repairs.py").write_text(LATER)
    return andon


@pytest.fixture
def versions(andon: Terminal) -> Terminal:
    for version in ("1", "2"):
        (andon.folder / f"v{version}.py").write_text(VERSIONED.format(version=version))
    return andon


def die(terminal: Terminal, run_id: str, *more: str) -> None:
    terminal.start("repair", "--id", run_id, *more)
    terminal.run("wait", run_id, "--timeout", "30", code=1)
    assert terminal.state(run_id) == "dead"


# ── limits and queues ─────────────────────────────────────────────────────────────────────────


def test_limits_are_set_listed_and_removed(local: Terminal) -> None:
    said = local("limit", "queue:emails", "--at-most", "5", "--rate", "100/1h")
    assert said == "queue:emails: at most 5 at once, rate 100/1h (by tester)\n"
    local("limit", "label:tenant", "--at-most", "2", "--by", "ana")
    tenant, emails = local.json("limit")
    assert (tenant["limit"], tenant["at_most"], tenant["rate"], tenant["set_by"]) == (
        "label:tenant",
        2,
        None,
        "ana",
    )
    assert emails["used"] == [
        {"value": None, "running": 0, "may_begin": 100, "next_in_seconds": 0.0}
    ]
    assert "0 of 5 running, 100 may begin" in local("limit")
    assert local("limit", "queue:emails", "--off") == "queue:emails: no limit\n"
    assert "there is no limit" in local.error("limit", "queue:emails", "--off", code=4)
    assert local.json("limit", "label:tenant", "--at-most", "3")["at_most"] == 3


def test_an_invalid_limit_is_refused(local: Terminal) -> None:
    local("limit", "queue:a", "--at-most", "1")
    for words in (
        ("queue:a", "--at-most", "0"),
        ("queue:a", "--rate", "fast"),
        ("queue:a", "--off", "--at-most", "1"),
        ("queue:a",),
        ("planet:a", "--at-most", "1"),
        ("queue:", "--at-most", "1"),
        ("--at-most", "1"),
    ):
        local.error("limit", *words, code=2)
    for name in ("queue:no such", "queue:a\nb", f"label:{'x' * 201}"):
        assert "expected" in local.error("limit", name, "--at-most", "1", code=2)
    assert [row["at_most"] for row in local.json("limit")] == [1]


@pytest.mark.parametrize("name", ["", "no such"])
def test_a_worker_refuses_an_invalid_queue_name(local: Terminal, name: str) -> None:
    assert "expected letters" in local.error("work", "agents.py", "--queue", name, code=2)


def test_a_limit_holds_back_runs_that_a_worker_would_claim(andon: Terminal) -> None:
    andon("limit", "label:tenant", "--at-most", "1")
    with andon.worker():
        marker = andon.folder / "marker"
        andon.start("stuck", f"marker={marker}", "--label", "tenant=x")
        until(marker.exists, "the step")
        held = andon.start("greet", "--label", "tenant=x")
        free = andon.start("greet", "--label", "tenant=y")
        assert andon("wait", free, "--timeout", "30") == '"hello world"\n'
        assert andon.state(held) == "queued"
        [row] = andon.json("limit")
        assert row["used"][0] == {
            "value": "x",
            "running": 1,
            "may_begin": None,
            "next_in_seconds": None,
        }
        assert "x: 1 of 1 running" in andon("limit")
        andon("limit", "label:tenant", "--off")
        assert andon("wait", held, "--timeout", "30") == '"hello world"\n'


def test_queues_show_waiting_runs_and_a_worker_serves_only_named_queues(andon: Terminal) -> None:
    with andon.worker("agents.py", "--queue", "emails", "--queue", "other"):
        mine = andon.start("greet", "--queue", "emails")
        andon("wait", mine, "--timeout", "30")
        run_id = andon.start("greet", "--queue", "reports", "--id", "q-1")
        andon("limit", "queue:reports", "--at-most", "3")
        found = {row["queue"]: row for row in andon.json("queues")}
        assert found["reports"]["waiting"] == 1
        assert found["reports"]["returned"] == 0
        assert found["reports"]["at_most"] == 3
        assert found["reports"]["oldest_seconds"] >= 0
        assert found["default"]["waiting"] == 0
        assert "at most 3 at once" in andon("queues")
        until(lambda: andon.state(run_id) == "stranded", "the allowance for a restart")
        words = "no running worker serves greet (version 1) from queue reports"
        assert words in andon("ps", "--state", "stranded")


# ── dead runs ─────────────────────────────────────────────────────────────────────────────────


def test_dead_runs_are_listed_redriven_and_dropped(repairs: Terminal) -> None:
    with repairs.worker("repairs.py"):
        for run_id in ("d-1", "d-2", "d-3"):
            die(repairs, run_id)
        listed = repairs.json("dead", "list")
        assert [row["id"] for row in listed] == ["d-3", "d-2", "d-1"]
        assert (listed[0]["attempts"], listed[0]["obligations"]) == (2, 0)
        assert listed[0]["error"]["type"] == "ValueError"
        assert "ValueError: work: not mended" in repairs("dead", "list", "--agent", "repair")
        assert "andon dead redrive" in repairs.run("dead", "list").stderr
        (repairs.folder / "mended").touch()
        assert repairs("dead", "redrive", "d-1") == "redriven: d-1\n"
        assert repairs("wait", "d-1", "--timeout", "30") == '"mended"\n'
        assert repairs("dead", "drop", "d-2") == "dropped: d-2\n"
        assert repairs.state("d-2") == "failed"
        again = repairs.json("dead", "redrive", "--all", "--agent", "repair")
        assert again == {"redriven": ["d-3"], "refused": []}
        assert repairs("wait", "d-3", "--timeout", "30") == '"mended"\n'
    assert "no dead runs" in repairs.run("dead", "drop", "--all").stderr
    assert "while failed" in repairs.error("dead", "redrive", "d-2", code=1)
    repairs.error("dead", "redrive", "nothing", code=4)
    for words in (("redrive",), ("drop", "d-1", "--all"), ("drop", "d-1", "--agent", "x")):
        repairs.error("dead", *words, code=2)
    refused = repairs.json("dead", "drop", "d-1", "d-2", code=1)
    assert [one["run"] for one in refused["refused"]] == ["d-1", "d-2"]
    assert repairs("verify").startswith("verified")


# ── versions ──────────────────────────────────────────────────────────────────────────────────


def version_of(terminal: Terminal) -> str:
    run_id = terminal.start("told")
    return str(terminal.json("wait", run_id, "--timeout", "30")["result"])


def test_a_rollout_with_two_versions_at_once_and_a_rollback(versions: Terminal) -> None:
    with versions.worker("v1.py"):
        versions.start("waits", "--id", "old")
        until(lambda: versions.state("old") == "suspended", "the wait")
        with versions.worker("v2.py", "--no-promote"):
            assert version_of(versions) == "1"
            rows = {row["version"]: row for row in versions.json("versions", "told")}
            assert (rows["1"]["promoted"], rows["2"]["promoted"]) == (True, False)
            assert (len(rows["1"]["workers"]), len(rows["2"]["workers"])) == (1, 1)
            assert versions("promote", "2") == "promoted: told 2\npromoted: waits 2\n"
            assert version_of(versions) == "2"
            versions("send", "old", "go", "fine")
            assert versions("wait", "old", "--timeout", "30") == '"fine"\n'
            with versions.worker("v1.py"):
                assert version_of(versions) == "2", "a restart of the old one demotes nobody"
            with versions.worker("v1.py", "--promote"):
                assert version_of(versions) == "1"
            assert versions.json("promote", "2", "--agent", "told") == {
                "version": "2",
                "agents": ["told"],
            }
            assert version_of(versions) == "2"
    assert "andon versions" in versions.error("promote", "3", code=4)
    versions.error("versions", "nobody", code=4)


def test_runs_of_a_version_without_a_worker_are_stranded_until_one_carries_it(
    versions: Terminal,
) -> None:
    with versions.worker("v1.py") as first:
        versions.start("waits", "--id", "old")
        until(lambda: versions.state("old") == "suspended", "the wait")
        versions("send", "old", "stranger")
        first.signal(signal.SIGTERM)
        assert first.ends() == 0
    with versions.worker("v2.py"):
        versions("send", "old", "go")
        until(lambda: versions.state("old") == "stranded", "the allowance for a restart")
        assert "no running worker serves waits (version 1)" in versions("show", "old")
        assert "version 1" in versions.run("show", "old").stderr, "what to do"
        assert "no running worker serves waits (version 1)" in versions("versions", "waits")
        with versions.process("wait", "old") as waiting:
            waiting.says("is stranded: no running worker serves waits (version 1)")
            with versions.worker("v1.py"):
                assert waiting.ends() == 0
    assert waiting.text.count("stranded") == 1

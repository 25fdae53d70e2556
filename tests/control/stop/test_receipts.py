"""Receipts: the sender of an order, its proof, and effects that landed after the request."""

import json
from collections.abc import Iterator

import pytest
from tests.cli.terminal import Terminal
from tests.control.stop_scenario import StopScenario
from tests.store.parts import do

from andon.control.stop import receipts
from andon.store import open_store
from andon.store.messages.stops import TargetReport, WorkerGone


@pytest.fixture
def seeded(store_url: str) -> Iterator[StopScenario]:
    store = open_store(store_url)
    yield StopScenario(store)
    store.close()


def late_effects(seeded: StopScenario, receipt: str) -> dict[str, str]:
    found = receipts.receipt(seeded.store, receipt)
    return {one["key"]: one["state"] for one in found["effects"]}


def test_effects_that_landed_after_the_request_are_listed(
    andon: Terminal, seeded: StopScenario
) -> None:
    held = seeded.begin()
    before, after = seeded.store.now() - 60, seeded.store.now() + 60
    seeded.effect(held, "confirmed", key="before", at=before)
    seeded.order("cancel", "run", "r")
    seeded.effect(held, "confirmed", key="after", at=after)
    seeded.effect(held, "started", key="unknown", at=before)
    seeded.effect(held, "started", key="known", at=before)
    seeded.effect(held, "failed", key="known", at=after)
    assert late_effects(seeded, "rcp_cancelrunr") == {"after": "confirmed", "unknown": "in doubt"}
    page = andon("show", "rcp_cancelrunr")
    assert "effects   since the request: 1 confirmed" in page
    assert "in doubt: pay unknown of run r" in page


def test_effects_of_a_resumed_run_are_not_listed_under_the_stop(seeded: StopScenario) -> None:
    held = seeded.begin()
    seeded.order("pause", "run", "r")
    seeded.back(held)
    seeded.move("r", "paused", "queued")
    [again] = seeded.take("w", "r")
    seeded.effect(again, "confirmed", key="later", at=seeded.store.now() + 60)
    assert late_effects(seeded, "rcp_pauserunr") == {}


def test_the_worst_row_is_the_headline_and_comes_first(
    andon: Terminal, seeded: StopScenario
) -> None:
    seeded.begin("a", "w1"), seeded.begin("b", "w2")
    seeded.order("kill")
    do(seeded.store, WorkerGone(worker_id="w1", evidence="its process is gone", ordered=True))
    seeded.worker("other")
    seeded.kill_silently("w2", "other")
    page = andon("show", "rcp_killfleet")
    assert page.index("NOT PROVED run b") < page.index("proved    run a")
    assert "NOT PROVED  kill of everything" in page.splitlines()[0]
    assert "nothing starts. To lift it: andon reauthorize" in page
    [line] = andon.json("receipts")
    assert (line["verdict"], line["stages"]) == ("unproved", {"verified": 1, "unproved": 1})


def test_a_receipt_has_the_measurements_of_supervisors(
    andon: Terminal, seeded: StopScenario
) -> None:
    seeded.supervisor("s")
    seeded.order("halt")
    body = json.dumps({"s": {"killed_ms": 3.5, "processes": 12, "children": [{"pid": 1}]}})
    report = TargetReport(
        stop_id="rcp_haltfleet", target="supervisor:s", stage="verified", evidence="ok", body=body
    )
    do(seeded.store, report)
    page = andon("show", "rcp_halt")
    assert "STOPPED, proved  halt of everything" in page
    assert "measured  supervisor s: killed ms 3.5, processes 12" in page
    assert andon.json("show", "rcp_halt")["measured"]["s"]["children"] == [{"pid": 1}]


def test_a_lifted_latch_says_by_whom_and_why(andon: Terminal, seeded: StopScenario) -> None:
    seeded.worker("w")
    seeded.order("pause", "agent", "agent")
    assert "nothing of agent agent starts. To lift it: andon resume" in andon("show", "rcp_pause")
    andon("resume", "--agent", "agent", "--by", "ann", "--why", "it was fine")
    assert "by ann: it was fine" in andon("show", "rcp_pauseagentagent")
    assert "lifted by ann" in andon("receipts")


def test_a_missing_receipt_is_not_found(andon: Terminal, seeded: StopScenario) -> None:
    assert "no receipts" in andon.run("receipts").stderr
    seeded.order("pause", "agent", "a")
    seeded.order("pause", "agent", "b")
    assert "there is no receipt 'rcp_nobody'" in andon.error("show", "rcp_nobody", code=4)
    assert "ambiguous id; matches" in andon.error("show", "rcp_p", code=4)
    assert len(andon.json("receipts", "-n", "1", "--old")) == 1


def test_an_order_without_name_or_reason_is_valid(andon: Terminal, seeded: StopScenario) -> None:
    seeded.worker("w")
    seeded.start("r")
    seeded.order("kill", "run", "r", by="", why="")
    assert "by an unnamed person" in andon("show", "rcp_killrunr")
    assert "killed by an unnamed person (rcp_killrunr)" in andon("ps")

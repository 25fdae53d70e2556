"""Receipts: who ordered what, how far it is proved, and what landed after the request."""

import json
from collections.abc import Iterator

import pytest
from tests.cli.terminal import Terminal
from tests.control.precinct import Precinct
from tests.store.parts import do

from andon.control.stop import receipts
from andon.store import open_store
from andon.store.messages.stops import TargetReport, WorkerGone


@pytest.fixture
def yard(store_url: str) -> Iterator[Precinct]:
    store = open_store(store_url)
    yield Precinct(store)
    store.close()


def late_effects(yard: Precinct, receipt: str) -> dict[str, str]:
    found = receipts.receipt(yard.store, receipt)
    return {one["key"]: one["state"] for one in found["effects"]}


def test_effects_that_landed_after_the_request_are_told(andon: Terminal, yard: Precinct) -> None:
    held = yard.begin()
    before, after = yard.store.now() - 60, yard.store.now() + 60
    yard.effect(held, "confirmed", key="before", at=before)
    yard.order("cancel", "run", "r")
    yard.effect(held, "confirmed", key="after", at=after)
    yard.effect(held, "started", key="unknown", at=before)
    yard.effect(held, "started", key="known", at=before)
    yard.effect(held, "failed", key="known", at=after)
    assert late_effects(yard, "rcp_cancelrunr") == {"after": "confirmed", "unknown": "in doubt"}
    page = andon("show", "rcp_cancelrunr")
    assert "effects   since the request: 1 confirmed" in page
    assert "in doubt: pay unknown of run r" in page


def test_what_a_resumed_run_does_is_not_told_of_the_stop_before(yard: Precinct) -> None:
    held = yard.begin()
    yard.order("pause", "run", "r")
    yard.back(held)
    yard.move("r", "paused", "queued")
    [again] = yard.take("w", "r")
    yard.effect(again, "confirmed", key="later", at=yard.store.now() + 60)
    assert late_effects(yard, "rcp_pauserunr") == {}


def test_the_worst_row_is_the_headline_and_comes_first(andon: Terminal, yard: Precinct) -> None:
    yard.begin("a", "w1"), yard.begin("b", "w2")
    yard.order("kill")
    do(yard.store, WorkerGone(worker_id="w1", evidence="its process is gone", ordered=True))
    yard.worker("other")
    yard.kill_silently("w2", "other")
    page = andon("show", "rcp_killfleet")
    assert page.index("NOT PROVED run b") < page.index("proved    run a")
    assert "NOT PROVED  kill of everything" in page.splitlines()[0]
    assert "nothing starts. To lift it: andon reauthorize" in page
    [line] = andon.json("receipts")
    assert (line["verdict"], line["stages"]) == ("unproved", {"verified": 1, "unproved": 1})


def test_a_receipt_has_what_supervisors_measured(andon: Terminal, yard: Precinct) -> None:
    yard.supervisor("s")
    yard.order("halt")
    body = json.dumps({"s": {"killed_ms": 3.5, "processes": 12, "children": [{"pid": 1}]}})
    report = TargetReport(
        stop_id="rcp_haltfleet", target="supervisor:s", stage="verified", evidence="ok", body=body
    )
    do(yard.store, report)
    page = andon("show", "rcp_halt")
    assert "STOPPED, proved  halt of everything" in page
    assert "measured  supervisor s: killed ms 3.5, processes 12" in page
    assert andon.json("show", "rcp_halt")["measured"]["s"]["children"] == [{"pid": 1}]


def test_a_latch_that_was_lifted_says_by_whom_and_why(andon: Terminal, yard: Precinct) -> None:
    yard.worker("w")
    yard.order("pause", "agent", "agent")
    assert "nothing of agent agent starts. To lift it: andon resume" in andon("show", "rcp_pause")
    andon("resume", "--agent", "agent", "--by", "ann", "--why", "it was fine")
    assert "by ann: it was fine" in andon("show", "rcp_pauseagentagent")
    assert "lifted by ann" in andon("receipts")


def test_a_receipt_that_is_not_there_is_not_found(andon: Terminal, yard: Precinct) -> None:
    assert "no receipts" in andon.run("receipts").stderr
    yard.order("pause", "agent", "a")
    yard.order("pause", "agent", "b")
    assert "there is no receipt 'rcp_nobody'" in andon.error("show", "rcp_nobody", code=4)
    assert "ambiguous id; matches" in andon.error("show", "rcp_p", code=4)
    assert len(andon.json("receipts", "-n", "1", "--old")) == 1


def test_an_order_by_nobody_for_no_reason_is_a_good_order(andon: Terminal, yard: Precinct) -> None:
    yard.worker("w")
    yard.start("r")
    yard.order("kill", "run", "r", by="", why="")
    assert "by an unnamed person" in andon("show", "rcp_killrunr")
    assert "killed by an unnamed person (rcp_killrunr)" in andon("ps")

"""`andon events` and `andon ps --obligations`."""

import ast
import json
import re
import subprocess
from collections.abc import Iterator

import pytest
from tests import pages
from tests.cli.terminal import Terminal
from tests.control.seeded_store import SeededStore
from tests.store.parts import do

from andon.control import events, obligations
from andon.core.stop import StopKind
from andon.store import open_store
from andon.store.messages.rows import Obligation
from andon.store.store import NoteEvent

KIND = re.compile(r"(worker|version|run|limit)\.[a-z_]+")


@pytest.fixture
def seeded(store_url: str) -> Iterator[SeededStore]:
    store = open_store(store_url)
    yield SeededStore(store)
    store.close()


def test_events_are_listed_in_order(andon: Terminal, seeded: SeededStore) -> None:
    assert "no events in the last" in andon.run("events").stderr
    seeded.worker("w1")
    seeded.ask("w1")
    seeded.drain("w1")
    seeded.leave("w1")
    found = andon.json("events")
    kinds = ["worker.started", "worker.asked", "worker.draining", "worker.ended"]
    assert [event["kind"] for event in found] == kinds
    assert {event["worker"] for event in found} == {"w1"}
    assert found[1]["about"] == {"by": "ann"}
    text = andon("events", "--since", "2h")
    assert re.search(r"worker\.draining +w1  why SIGTERM, grace seconds 25", text)
    assert "expected 10s" in andon.error("events", "--since", "-1h", code=2)


def test_only_events_after_the_given_moment_are_listed(seeded: SeededStore) -> None:
    seeded.worker("w1")
    assert events.recent(seeded.store, seeded.store.now() + 1) == []
    assert len(events.recent(seeded.store, seeded.store.now() - 60)) == 1


def test_events_are_followed_one_document_per_line(andon: Terminal, seeded: SeededStore) -> None:
    seeded.worker("w1")
    with andon.process("events", "-f", "--json", stdout=subprocess.PIPE) as process:
        assert process.process.stdout is not None
        first = json.loads(process.process.stdout.readline())
        seeded.ask("w1")
        second = json.loads(process.process.stdout.readline())
    assert (first["kind"], second["kind"]) == ("worker.started", "worker.asked")


def test_an_event_cannot_act_on_the_terminal(local: Terminal) -> None:
    store = open_store(local.url)
    do(store, NoteEvent(kind="run.odd", body=json.dumps({"why": "\x1b[2J"}), run_id="\x1b[31mr"))
    store.close()
    text = local("events")
    assert "\x1b" not in text
    assert "run.odd" in text


def test_an_event_with_a_body_of_any_shape_is_listed() -> None:
    event = {"run": None, "worker": None, "about": [1]}
    assert events.describe(event) == "[1]"
    assert events.describe(event | {"about": {}}) == ""
    assert events.describe(event | {"about": {"held": 2, "by": ""}}) == "held 2"


def test_every_kind_of_event_has_a_row_and_every_row_is_a_kind() -> None:
    written = set()
    for path in sorted((pages.ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                written |= {node.value} if KIND.fullmatch(node.value) else set()
    page = (pages.ROOT / "docs/reference/events.md").read_text("utf-8")
    rows = set(re.findall(r"^\| `([a-z_.]+)` \|", page, re.MULTILINE))
    assert written == {row for row in rows if KIND.fullmatch(row)}
    assert written, "no kinds were found"


def test_every_order_and_its_end_have_a_row() -> None:
    page = pages.entries(pages.ROOT / "docs/reference/events.md")
    ends = {"overran", "proved", "unproved", "resumed", "reauthorized"}
    named = {f"stop.{word}" for word in {*StopKind, *ends}} | {
        "supervisor.started",
        "supervisor.ended",
    }
    assert not named - page


# ── obligations ───────────────────────────────────────────────────────────────────────────────


def test_an_effect_to_be_undone_is_listed_with_its_deadline(
    andon: Terminal, seeded: SeededStore
) -> None:
    assert "no effect would have to be undone" in andon.run("ps", "--obligations").stderr
    seeded.worker("w")
    seeded.start("held", "back", "done")
    held, back, done = seeded.take("w", "held", "back", "done")
    for one in (held, back, done):
        seeded.effect(one, "confirmed", undo="shop:refund", undo_within=7200.0)
    seeded.back(back)
    seeded.end(done)
    found = {one["run"]: one for one in andon.json("ps", "--obligations")}
    assert set(found) == {"held", "back"}
    assert found["held"]["undone"] == "when it fails"
    assert re.fullmatch(r"in (2 h 0|1 h 59) min unless it is resumed", found["back"]["undone"])
    assert found["back"]["undo"] == "shop:refund"
    assert found["back"]["key"] == "k"
    text = andon("ps", "--obligations")
    assert "shop:refund" in text
    assert "unless it is resumed" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state": "undoing"}, "now"),
        ({"undo_at": 90.0}, "now"),
        ({"undo_at": 7180.0}, "in 1 h 58 min unless it is resumed"),
        ({"run_state": "running"}, "when it fails"),
        ({"run_state": "suspended"}, "when it fails"),
        ({"run_state": "failed"}, "on request: andon compensate r"),
    ],
)
def test_the_time_of_an_undo_is_shown(changes: dict[str, object], words: str) -> None:
    plain = {
        "run_id": "r",
        "agent": "a",
        "version": "1",
        "run_state": "queued",
        "name": "pay",
        "key": "k",
        "state": "confirmed",
        "seq": 1,
        "undo": "shop:refund",
        "undo_within": 7200.0,
        "undo_at": None,
    }
    one = Obligation(**plain | changes)  # type: ignore[arg-type]
    assert obligations.when(one, 100.0) == words

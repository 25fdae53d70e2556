"""`andon top`: the fleet on a screen, on real terminals."""

import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.screenshot import CODES, screen
from tests.cli.terminal import Terminal, until

from andon.cli.table import width
from andon.cli.top import frame, terminal
from andon.cli.top import screen as top

KEYS = {
    b"j": "j",
    b"q": "q",
    b"\r": terminal.ENTER,
    b"\x1b[A": terminal.UP,
    b"\x1bOB": terminal.DOWN,
    b"\x1b[6~": terminal.PAGE_DOWN,
    b"\x1b[1;5C": None,  # a key without a meaning here
}


@given(st.lists(st.sampled_from(list(KEYS))), st.data())
def test_keys_are_the_same_however_their_bytes_are_split(
    pressed: list[bytes], data: st.DataObject
) -> None:
    stream, keys = b"".join(pressed), terminal.Keys()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)))))
    found: list[str] = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += keys.read(stream[begin:end])
    assert found == [KEYS[one] for one in pressed if KEYS[one]]
    assert not keys.waits


def test_escape_alone_is_escape_once_nothing_follows() -> None:
    keys = terminal.Keys()
    assert keys.read(b"\x1b") == []
    assert keys.waits
    assert keys.read(b"", whole=True) == [terminal.ESCAPE]


WORDS = st.text(st.characters(codec="utf-8"), max_size=60)
ROWS: st.SearchStrategy[dict[str, object]] = st.builds(
    dict,
    id=st.uuids().map(str),
    parent_id=st.none(),
    agent=WORDS,
    state=st.sampled_from(["running", "queued", "stopping", "dead"]),
    attempt=st.integers(0, 10**6),
    age_seconds=st.floats(0, 1e7),
    doing=WORDS,
    asks=st.just([]),
)


@given(
    st.lists(ROWS, max_size=30, unique_by=lambda row: row["id"]),
    st.integers(40, 200),
    st.integers(5, 40),
    WORDS,
    st.data(),
)
def test_a_frame_fits_every_screen_and_shows_the_selected_run(
    rows: list[dict[str, object]], columns: int, high: int, why: str, data: st.DataObject
) -> None:
    halted = {"kind": "halt", "by": "ada", "why": why, "at": 0.0, "lift": "andon reauthorize"}
    found = {
        "at": 100.0,
        "halted": data.draw(st.sampled_from([None, halted])),
        "runs": {"running": len(rows)},
        "asked": 0,
        "workers": {"serving": 2, "draining": 1},
        "listed": len(rows),
        "rows": rows,
    }
    chosen = str(data.draw(st.sampled_from(rows))["id"]) if rows else ""
    size = frame.Size(columns=columns, rows=high)
    shown = frame.frame(found, size, selected=chosen, away=data.draw(st.sampled_from(["", why])))
    assert len(shown) == high
    assert all(width(CODES.sub("", line)) <= columns for line in shown)
    if rows and high >= 20:
        assert any(line.startswith(("▸", ">")) for line in shown)


def test_the_screen_follows_the_fleet_and_q_restores_the_terminal(local: Terminal) -> None:
    with local.worker("agents.py"):
        local.start("refunds", "orders=[2]", "--id", "asks")
        until(lambda: local.state("asks") == "suspended", "the ask")
        with screen(local, "top") as seen:
            before = seen.attributes()
            seen.shows("1 waiting for a person", "1 live worker", "asks: Refund this much?")
            assert seen.attributes() != before, "keys would be echoed"
            local.start("greet", "--id", "newer")
            seen.shows("newer", "✓ succeeded")
            local("pause", "--all", "--why", "look", code=0)
            seen.shows("PAUSED", "look", "andon resume --all")
            seen.press("j")
            seen.shows("▸  newer")
            seen.press("k\r")
            seen.shows("run asks", "andon answer asks DECISION", "Enter or q: back")
            seen.press("\x1b")
            seen.shows("PAUSED")
            seen.press("q")
            assert seen.ends() == 0
            assert seen.attributes() == before
            assert seen.raw.rstrip().endswith("\x1b[?25h\x1b[?1049l")


@pytest.mark.parametrize(("way", "code"), [("\x03", 130), (signal.SIGTERM, 143)])
def test_every_exit_restores_the_terminal(
    local: Terminal, way: str | signal.Signals, code: int
) -> None:
    with local.worker("agents.py"):
        pass
    with screen(local, "top") as seen:
        before = seen.attributes()
        seen.shows("IDLE: no unfinished runs; no live worker")
        if isinstance(way, str):
            seen.press(way)
        else:
            seen.process.send_signal(way)
        assert seen.ends() == code
        assert seen.attributes() == before
        assert seen.raw.rstrip().endswith("\x1b[?25h\x1b[?1049l")


def test_the_frame_follows_the_size_of_the_terminal(local: Terminal) -> None:
    with local.worker("agents.py"):
        local.start("greet", "name=" + "long " * 30, "--id", "x" * 60)
        until(lambda: local.state("x" * 60) == "succeeded", "the end")
    with screen(local, "top", columns=120) as seen:
        seen.shows("ATTEMPT")
        seen.resize(50, 10)
        seen.shows("RUN", without="ATTEMPT")
        assert len(seen.lines) == 10
        assert all(width(line) <= 50 for line in seen.lines)


def test_a_store_that_goes_away_is_shown_as_not_live_until_it_is_back(local: Terminal) -> None:
    with local.worker("agents.py"):
        local.start("greet", "--id", "one")
        until(lambda: local.state("one") == "succeeded", "the end")
    store = Path(local.url.removeprefix("sqlite:///"))
    with screen(local, "top") as seen:
        seen.shows("one", without="NOT LIVE")
        away = store.with_suffix(".away")
        store.rename(away)
        seen.shows("! NOT LIVE: this is", "old;", "one")
        away.rename(store)
        seen.shows("one", without="NOT LIVE")


def test_a_change_is_drawn_at_once(andon: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    with andon.worker("agents.py"):
        pass
    monkeypatch.setattr(top, "REFRESH_SECONDS", 10_000.0)
    reader = top.Reader(andon.url, {}, lambda: None)
    reader.start()
    try:
        seen = reader.answers.get(timeout=60)
        assert seen.fleet is not None
        assert seen.fleet["listed"] == 0
        andon.start("greet", "--id", "one")
        while not seen.fleet or not seen.fleet["listed"]:
            seen = reader.answers.get(timeout=60)
        assert seen.fleet["rows"][0]["id"] == "one"
    finally:
        reader.close()


def test_without_a_terminal_top_prints_one_frame_or_one_document(local: Terminal) -> None:
    with local.worker("agents.py"):
        local.start("refunds", "orders=[2]", "--id", "asks")
        until(lambda: local.state("asks") == "suspended", "the ask")
        said = local("top")
        assert said.startswith("? ASKING: 1 waiting for a person; 1 live worker\n")
        assert "\x1b" not in said
        found = local.json("top", "--agent", "refunds")
        assert (found["asked"], found["workers"]) == (1, {"serving": 1})
        assert found["rows"][0]["asks"][0]["question"] == "Refund this much?"
        assert local("ps", "--watch").startswith("? ASKING")
        assert "no other filter" in local.error("ps", "--watch", "--old", code=2)
        dumb = screen(local, "top", TERM="dumb")
        with dumb as seen:
            assert seen.ends() == 0
            assert "\x1b" not in seen.raw


def test_children_are_distinguishable_in_a_narrow_terminal(local: Terminal) -> None:
    with local.worker("agents.py"):
        local.start("parent", "--id", "a-parent-with-a-long-name")
        until(lambda: len(local.json("top")["rows"]) > 1, "the child")
        [child] = [row for row in local.json("top")["rows"] if row["parent_id"]]
    found: dict[str, object] = {
        "at": 0.0,
        "halted": None,
        "runs": {},
        "asked": 0,
        "workers": {},
        "listed": 2,
    }
    rows = [{**child, "id": f"{child['parent_id']}~@child/kid/check-{n}"} for n in range(2)]
    shown = frame.frame({**found, "rows": rows}, frame.Size(columns=50, rows=24), selected="")
    assert ["└ kid/check-0" in "".join(shown), "└ kid/check-1" in "".join(shown)] == [True, True]


def test_a_missing_store_is_an_error_and_draws_no_screen(local: Terminal) -> None:
    with screen(local, "top") as seen:
        assert seen.ends() == 1
        assert "there is no database. Start a worker or a run first" in seen.raw
        assert "\x1b[?1049h" not in seen.raw

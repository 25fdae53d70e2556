"""Tables fit the terminal, and text copied from them is complete."""

import io
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.terminal import Terminal, until

from andon.cli import colour, output
from andon.cli.table import column, cut, lines, room, width, wrapped
from andon.core.text import clean

RUNS = (
    column("ID", whole=True),
    column("AGENT", 2, least=8),
    column("STATE"),
    column("DOING", 1, least=10),
)
TEXT = st.text(
    st.one_of(st.characters(), st.sampled_from("日本👩\u200d👩e\u0301❤\ufe0f\u05d0"))
).map(clean)
CODES = r"\x1b\[[0-9;]*m"


@given(st.lists(st.tuples(TEXT, TEXT, TEXT, TEXT), min_size=1), st.integers(8, 200))
def test_no_line_is_wider_than_the_terminal_but_for_an_id(
    rows: list[tuple[str, str, str, str]], most: int
) -> None:
    ids = [row[0] for row in rows]
    shown = lines(RUNS, rows, most)
    assert all(width(line) <= most or line in ids for line in shown)
    text = "\n".join(shown)
    assert all(one.rstrip() in text for one in ids), "an id was cut"


@given(st.lists(st.tuples(TEXT, TEXT, TEXT, TEXT), min_size=1))
def test_without_a_terminal_nothing_is_cut(rows: list[tuple[str, str, str, str]]) -> None:
    text = "\n".join(lines(RUNS, rows))
    assert all(cell.rstrip() in text for row in rows for cell in row)


@given(TEXT, st.integers(1, 40))
def test_cut_text_fits_and_is_marked_as_cut(text: str, most: int) -> None:
    found = cut(text, most)
    assert width(found) <= most
    assert found == text or found.endswith("…")


@given(TEXT, st.integers(1, 40))
def test_wrapped_text_is_whole_and_fits_but_for_long_words(text: str, most: int) -> None:
    found = wrapped(text, most)
    assert " ".join(found) == text
    assert all(width(line) <= most or " " not in line for line in found)


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("abc", 3),
        ("日本", 4),
        ("e\u0301", 1),
        ("❤\ufe0f", 2),
        ("👩\u200d👩", 4),
        ("한", 2),
        ("\u05d0\u05d1", 2),
    ],
)
def test_characters_are_measured_as_terminals_show_them(text: str, columns: int) -> None:
    assert width(text) == columns


def test_a_grapheme_is_never_cut_in_two() -> None:
    assert cut("👩\u200d👩x", 4) == "…"
    assert cut("e\u0301e\u0301e\u0301", 2) == "e\u0301…"


def test_wide_characters_keep_the_columns_in_line() -> None:
    rows = [("日本", "x"), ("e\u0301", "y"), ("abcd", "z")]
    found = lines((column("A"), column("B")), rows)
    assert found == ["A     B", "日本  x", "e\u0301     y", "abcd  z"]


def test_the_least_important_column_goes_first_and_the_id_last() -> None:
    rows = [("run-1", "refunds", "running", "pay 17"), ("run-2", "refunds", "queued", "waits")]
    assert lines(RUNS, rows, 40)[1] == "run-1  refunds  running  pay 17"
    assert lines(RUNS, rows, 24)[1] == "run-1  running  pay 17"
    assert lines(RUNS, rows, 20)[1] == "run-1  running"
    assert lines(RUNS, rows, 9)[2:4] == ["run-1", "  running"]


def test_an_overlong_id_has_its_own_line_and_narrows_no_column() -> None:
    rows = [("a" * 60, "refunds", "running", "pay"), ("run-2", "refunds", "queued", "waits")]
    assert lines(RUNS, rows, 40) == [
        "ID     AGENT    STATE    DOING",
        "a" * 60,
        "       refunds  running  pay",
        "run-2  refunds  queued   waits",
    ]


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "on_terminal", "elsewhere"),
    [
        ({}, True, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"NO_COLOR": ""}, True, False),
        ({"TERM": "dumb"}, False, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": "0"}, True, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True, True),
    ],
)
def test_colour_is_for_terminals_and_for_users_who_ask_for_it(
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    on_terminal: bool,
    elsewhere: bool,
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert colour.shown_on(Screen()) is on_terminal
    assert colour.shown_on(io.StringIO()) is elsewhere


def test_every_state_has_a_colour_and_red_means_failure() -> None:
    assert set(output.SYMBOLS) <= set(colour.TINTS)
    red = {word for word, tint in colour.TINTS.items() if tint == "wrong"}
    wrong = {"failed", "dead", "stranded", "stalled", "unproved", "died", "silent", "fail"}
    assert red == wrong


def test_the_width_is_that_of_the_terminal_unless_set_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    main, other = pty.openpty()
    with open(main, "rb", closefd=True), open(other, "w", closefd=True) as screen:
        ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 61, 0, 0))
        assert room(screen) == 61
        monkeypatch.setenv("COLUMNS", "44")
        assert room(screen) == 44
        monkeypatch.setenv("COLUMNS", "nonsense")
        assert room(screen) == 61
    assert room(io.StringIO()) is None


# ── real commands on real terminals ───────────────────────────────────────────────────────────


def on_terminal(andon: Terminal, columns: int, *arguments: str, **environment: str) -> str:
    """The output of a command on a terminal with this many columns."""
    main, other = pty.openpty()
    ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    without = ("COLUMNS", "NO_COLOR", "FORCE_COLOR")
    settings = {k: v for k, v in andon.environment.items() if k not in without}
    with subprocess.Popen(
        andon._command(*arguments),
        cwd=andon.folder,
        env=settings | {"TERM": "xterm-256color"} | environment,
        stdin=other,
        stdout=other,
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(other)
        shown = b"".join(read(main))
        assert process.wait() in (0, 1)
    return shown.decode().replace("\r\n", "\n")


def read(main: int) -> Iterator[bytes]:
    with open(main, "rb", buffering=0) as screen:
        while True:
            try:
                found = screen.read(4096)
            except OSError:  # the last writer has closed it
                return
            if not found:
                return
            yield found


@pytest.fixture
def filled(local: Terminal, tmp_path: Path) -> tuple[Terminal, list[str]]:
    """A store with runs of all sorts, whose worker has gone."""
    ids = ["short", "x" * 70, "日本-" * 9]
    with local.worker("agents.py"):
        for one in ids:
            local.start("greet", f"name={'long ' * 30}", "--id", one)
        local.start("refunds", "orders=[2]", "--id", "asks")
        local.start("fails", "--id", "fails")
        until(lambda: local.state("asks") == "suspended", "the ask")
        until(lambda: local.state("fails") == "failed", "the failure")
        until(lambda: all(local.state(one) == "succeeded" for one in ids), "the ends")
    local("pause", "--all", "--why", "a long reason " * 5)
    return local, ids


VIEWS = (
    ("ps", "--old"),
    ("show", "short"),
    ("show", "asks"),
    ("receipts",),
    ("workers", "--old"),
    ("deploys",),
    ("queues",),
    ("limit",),
    ("versions",),
    ("dead", "list"),
    ("ps", "--obligations"),
)


def test_every_table_fits_every_terminal(filled: tuple[Terminal, list[str]]) -> None:
    andon, ids = filled
    for columns in (40, 50, 80, 200):
        for view in VIEWS:
            shown = re.sub(CODES, "", on_terminal(andon, columns, *view)).replace("\u200e", "")
            for line in shown.split("\n"):
                words = line.split()
                fits = width(line) <= columns or len(words) <= 1 or "andon " in line
                assert fits, f"{view} at {columns}: {line}"
        page = on_terminal(andon, columns, "ps", "--old")
        assert all(one in page for one in ids)


def test_states_have_colours_on_a_terminal_and_nowhere_else(
    filled: tuple[Terminal, list[str]],
) -> None:
    andon, _ = filled
    shown = on_terminal(andon, 120, "ps", "--old")
    assert "\x1b[32m✓ succeeded\x1b[0m" in shown
    assert "\x1b[31m✗ failed\x1b[0m" in shown
    assert "\x1b" not in on_terminal(andon, 120, "ps", "--old", NO_COLOR="1")
    assert "\x1b" not in on_terminal(andon, 120, "ps", "--old", TERM="dumb")
    assert "\x1b" not in on_terminal(andon, 120, "ps", "--old", "--json")
    assert "\x1b" not in andon("ps", "--old")
    assert "\x1b[31m✗ failed" in andon("ps", "--old", env={"FORCE_COLOR": "1"})
    assert "\x1b" not in andon("ps", "--old", "--json", env={"FORCE_COLOR": "1"})

"""The progress line of commands that wait: on a terminal, and nowhere else."""

import io

import pytest
from tests.cli.screenshot import CODES, screen
from tests.cli.terminal import Terminal, until

from andon.cli import output, progress


class Stream(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal_for(monkeypatch: pytest.MonkeyPatch) -> Stream:
    found = Stream()
    monkeypatch.setattr("sys.stderr", found)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(progress, "LEAST_SECONDS", 0.0)
    return found


def test_the_line_fits_is_redrawn_in_place_and_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = terminal_for(monkeypatch)
    with progress.line() as line:
        line.show("kills, the last one somewhere far away", 3, 1200)
        line.note("killed at x: it happened twice")
        line.show("kills", 4, 1200)
    drawn = stream.getvalue()
    assert "3 of 1,200  kills" in drawn
    assert "\r\x1b[Kkilled at x: it happened twice\n" in drawn
    assert all(len(CODES.sub("", one)) < 40 for one in drawn.replace("\n", "\r").split("\r"))
    assert drawn.endswith("\r\x1b[K")


def test_without_a_terminal_or_with_json_no_progress_is_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = terminal_for(monkeypatch)
    with progress.line(json=True) as line:
        line.show("kills", 3, 12)
    assert stream.getvalue() == ""
    monkeypatch.setattr("sys.stderr", pipe := io.StringIO())
    with progress.line() as line:
        line.show("kills", 3, 12)
        line.note("it stays")
        line.above(output.note)("this too")
    assert pipe.getvalue() == "it stays\nthis too\n"


def test_wait_drain_verify_drill_and_crashtest_show_their_progress(local: Terminal) -> None:
    marker = str(local.folder / "there")
    with local.worker("agents.py") as worker:
        local.start("stuck", f"marker={marker}", "--id", "long")
        until(lambda: local.state("long") == "running", "the start")
        with screen(local, "wait", "long") as seen:
            seen.draws("run long is running")
            seen.press("\x03")
            assert seen.ends() == 130
        with screen(local, "drain", "--all", "--timeout", "60s") as seen:
            seen.draws("0 of 1  workers ended")
            assert seen.ends() == 0
        assert worker.ends() == 0
    with screen(local, "verify") as seen:
        assert seen.ends() == 0
        assert "of 1  runs checked" in seen.raw
    with screen(local, "drill", "--agents", "1") as seen:
        seen.draws("starting 1 agents that resist stopping")
        assert seen.ends() == 0
    with screen(local, "crashtest", "agents.py:greet") as seen:
        seen.draws("kills; the last one at")
        assert seen.ends() == 0
    for words in (("wait", "long", "--timeout", "0.1s"), ("verify",)):
        said = local.run(*words, code=3 if words[0] == "wait" else 0)
        assert "\r" not in said.stderr
        assert "\x1b" not in said.stderr

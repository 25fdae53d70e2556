"""Text that agents wrote cannot act on the terminal that shows it."""

import io
import json
import os
import shlex
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.terminal import Terminal, until

from andon.cli import output
from andon.core.text import age, clean, command, failure, length, sentence
from andon.host.home import without_password

HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202egnp.exe\u2066\r\nfake\x00\x7f\U000e0041\ud800"

HARMFUL = st.text(alphabet=st.one_of(st.characters(), st.sampled_from(HOSTILE)))


@given(HARMFUL)
def test_cleaned_text_is_one_line_of_visible_characters(text: str) -> None:
    found = clean(text).replace("\u200c", "").replace("\u200d", "")
    assert found.isprintable()


@given(HARMFUL)
def test_json_is_visible_and_means_the_same(text: str) -> None:
    found = output.as_json({"text": text})
    assert found.isprintable()
    assert json.loads(found) == {"text": text}


@given(st.lists(HARMFUL, min_size=1))
def test_a_suggested_command_is_only_a_command(words: list[str]) -> None:
    visible = [clean(word) for word in words]
    found = command("show", *words)
    options = ["--"] if any(word.startswith("-") for word in words) else []
    assert shlex.split(found) == ["andon", "show", *options, *visible]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///a.db", "sqlite:///a.db"),
        ("postgresql://ann:secret@host:1/db", "postgresql://ann@host:1/db"),
        ("postgresql://host/db?password=secret&user=ann", "postgresql://host/db?user=ann"),
        ("postgresql://ann@host/db?password=secret", "postgresql://ann@host/db"),
        ("postgresql://host/db", "postgresql://host/db"),
        ("postgresql://ann:secret@[host/db", "postgresql:…"),
    ],
)
def test_a_password_is_not_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_the_error_of_a_killed_run_is_shown_without_its_type() -> None:
    stopped = {"type": "Killed", "message": "killed by ana: it hangs (rcp_1)"}
    assert failure(stopped) == "killed by ana: it hangs (rcp_1)"
    assert failure({"type": "ValueError", "message": "bad"}) == "ValueError: bad"


def test_a_sentence_can_be_followed_by_another() -> None:
    assert sentence("Run: pip install 'andon[x]'") == "Run: pip install 'andon[x]'."
    assert sentence("It is away.") == "It is away."


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-1, "0 s"), (59, "59 s"), (180, "3 m"), (7200, "2 h"), (864_000, "10 d")],
)
def test_an_age_is_printed_in_its_largest_unit(seconds: float, words: str) -> None:
    assert age(seconds) == words


def test_a_time_outside_the_calendar_is_still_shown() -> None:
    assert output.clock(None) == "-"
    assert output.clock(1e300).startswith("1000")


def test_symbols_are_replaced_where_the_terminal_lacks_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert output.state("running") in ("● running", "* running")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    assert output.state("running") == "* running"
    assert output.state("succeeded") == "+ succeeded"
    assert output.as_json("é") == '"\\u00e9"'


HOSTILE_AGENT = """
import andon
TEXT = "\\x1b[2J\\x1b]0;owned\\x07\\x9b31m\\u202egnp.exe\\r\\nfake\\x7f"


async def shout():
    return TEXT


@andon.agent
async def hostile(ctx, **given):
    ctx.log(TEXT, level="\\x1b[1m")
    await ctx.step(lambda: TEXT, name=TEXT, key=TEXT)
    await ctx.effect(shout, key=TEXT)
    await ctx.ask(TEXT, {TEXT: TEXT})
    raise RuntimeError(TEXT)
"""


def test_no_control_character_of_an_agent_reaches_the_terminal(andon: Terminal) -> None:
    (andon.folder / "hostile.py").write_text(HOSTILE_AGENT)
    text = "\x1b[2J\u202e\x9b"
    with andon.worker("hostile.py", "-v") as worker:
        run_id = andon.start("hostile", f"x={text}", "--label", f"{text}={text}")
        until(lambda: andon.json("show", run_id)["asks"], "the ask")
        until(lambda: andon.state(run_id) == "suspended", "the suspension")
        shown = [*looked_at(andon, run_id)]
        andon("answer", run_id, "reject", "--by", text)
        failed = andon.run("wait", run_id, "--timeout", "30", code=1)
        shown += [failed.stdout, failed.stderr, *looked_at(andon, run_id), worker.text]
    for page in shown:
        assert "\\x1b" in page or "\\u001b" in page or "is ready" in page or not page
        for line in page.split("\n"):
            assert line.isprintable(), repr(line)


def looked_at(andon: Terminal, run_id: str) -> list[str]:
    pages = []
    for words in (("ps",), ("show", run_id), ("logs", run_id)):
        for options in ((), ("--json",)):
            done = andon.run(*words, *options)
            pages += [done.stdout, done.stderr]
    return [page for page in pages if "\\x" in page or "\\u" in page]


def test_a_terminal_without_unicode_can_show_every_run(local: Terminal) -> None:
    with local.worker():
        run_id = local.start("greet", "name=日本 ☠ é")
        local("wait", run_id, "--timeout", "30")
    plain = {"PYTHONIOENCODING": "ascii"}
    assert "+ succeeded" in local("ps", env=plain)
    assert "\\u65e5" in local("show", run_id, env=plain)
    assert "\\u65e5" in local("logs", run_id, env=plain)
    assert local.json("wait", run_id, env=plain)["result"] == "hello 日本 ☠ é"
    assert "日本" in local("wait", run_id, env={"PYTHONIOENCODING": "utf-8"})


def test_a_reader_that_closes_the_pipe_early_is_no_error(local: Terminal) -> None:
    with local.worker():
        run_id = local(
            "start", "echo", "--input", "-", input=json.dumps({"x": "y" * 500_000})
        ).strip()
        local("wait", run_id, "--timeout", "30")
    script = f"{shlex.join(local._command('show', run_id, '--json'))} | head -c 10"
    shell = ["/bin/sh", "-c", script]
    done = subprocess.run(shell, env=local.environment, capture_output=True, check=True)
    assert len(done.stdout) == 10
    assert done.stderr == b""


@pytest.mark.parametrize("command", ["ps", "init", "versions", "--help"])
def test_the_exit_code_shows_that_the_reader_of_a_pipe_has_gone(
    local: Terminal, command: str
) -> None:
    with local.worker():
        local.start("greet")
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        local._command(command),
        env=local.environment,
        cwd=local.folder,
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, b"Traceback" in done.stderr) == (141, False)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-1, "0 ms"),
        (0.0034, "3 ms"),
        (6.12, "6.1 s"),
        (21.4, "21 s"),
        (131, "2 min 11 s"),
        (3599.9, "1 h 0 min"),
        (7080, "1 h 58 min"),
    ],
)
def test_a_duration_is_printed_with_enough_precision(seconds: float, words: str) -> None:
    assert length(seconds) == words

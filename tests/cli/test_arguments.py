"""Typed arguments: read for their parameters, and refused before a run exists."""

import json

import pytest
from tests.cli.terminal import Terminal

DESK = """
import andon
from typing import Literal


@andon.agent
async def desk(ctx, topic: str, items: int = 1, tags: list[str] = (),
               mode: Literal["a", "b"] = "a", loose=None, either: int | str = 0):
    return [topic, items, list(tags), mode, loose, either]
"""


@pytest.fixture
def desk(andon: Terminal) -> Terminal:
    (andon.folder / "desk.py").write_text(DESK)
    with andon.worker("desk.py"):
        pass  # its agents are registered; `andon start` has no code at hand
    return andon


COMMANDS = [("start", "desk"), ("run", "desk.py:desk"), ("crashtest", "desk.py:desk")]
REFUSED = [
    ("items=abc", "argument items: expected int, found 'abc'"),
    ("items=[1,", "argument 'items': expected int, found '[1,', which is not JSON"),
    ("items=1.5", "argument items: expected int, found 1.5"),
    ("items=true", "argument items: expected int, found True"),
    ("tags=abc", "argument tags: expected list[str], found 'abc'"),
    ('tags=["a",1]', "argument tags[1]: expected str, found 1"),
    ('tags={"a":', "argument 'tags': expected list[str], found '{\"a\":', which is not JSON"),
    ("mode=c", "argument mode: expected one of 'a', 'b', found 'c'"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_argument_that_does_not_fit_is_refused_with_code_2(
    desk: Terminal, command: tuple[str, str]
) -> None:
    for word, why in REFUSED[: 2 if command[0] == "crashtest" else None]:
        assert why in desk.error(*command, "topic=x", word, code=2)
    assert desk.json("ps") == []


def test_a_json_document_is_checked_like_words(desk: Terminal) -> None:
    document = '{"topic": "x", "items": "1"}'
    said = desk.error("start", "desk", "--input", "-", code=2, input=document)
    assert "argument items: expected int, found '1'" in said
    assert "argument topic: expected str, found 7" in desk.error(
        "start", "desk", "--input", "-", code=2, input='{"topic": 7}'
    )


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["topic=123"], ["123", 1, [], "a", None, 0]),
        (["topic=null"], ["null", 1, [], "a", None, 0]),
        (['topic={"a":'], ['{"a":', 1, [], "a", None, 0]),
        (['topic="quoted"'], ["quoted", 1, [], "a", None, 0]),
        (["topic=x", "either=5"], ["x", 1, [], "a", None, 5]),
        (["topic=x", "either=[5"], ["x", 1, [], "a", None, "[5"]),
        (["topic=x", "loose=5", 'tags=["1"]', "mode=b"], ["x", 1, ["1"], "b", 5, 0]),
    ],
)
def test_words_are_read_by_the_type_of_their_parameter(
    local: Terminal, words: list[str], found: list[object]
) -> None:
    (local.folder / "desk.py").write_text(DESK)
    done = local.run("run", "desk.py:desk", *words, "--json")
    assert json.loads(done.stdout)["result"] == found
    assert "begins like JSON" not in done.stderr


def test_broken_json_for_an_untyped_parameter_is_reported(desk: Terminal) -> None:
    done = desk.run("start", "desk", "topic=x", "loose=[1,")
    assert "argument 'loose' looks like JSON, but is not valid and is taken as text" in done.stderr
    assert desk.json("show", done.stdout.strip())["input"]["loose"] == "[1,"


def test_arguments_without_a_parameter_are_checked_by_the_kwargs_annotation(
    local: Terminal,
) -> None:
    (local.folder / "extra.py").write_text(
        "import andon\n\n"
        "@andon.agent\nasync def extra(ctx, plain, **counts: int):\n    return counts\n"
    )
    said = local.error("run", "extra.py", "plain=x", "a=many", code=2)
    assert "argument a: expected int, found 'many'" in said
    assert json.loads(local("run", "extra.py", "plain=x", "a=1")) == {"a": 1}


def test_dates_and_pairs_are_checked_before_a_run_exists(local: Terminal) -> None:
    (local.folder / "dated.py").write_text(
        "import datetime, andon\n\n@andon.agent\n"
        "async def dated(ctx, day: datetime.date, pair: tuple[int, str] = (1, 'a')):\n"
        "    return day.year\n"
    )
    said = local.error("run", "dated.py", "day=soon", code=2)
    assert "argument day: expected date, like 2026-01-31, found 'soon'" in said
    assert "expected tuple[int, str]" in local.error(
        "run", "dated.py", "day=2026-01-31", "pair=[1]", code=2
    )
    assert local("run", "dated.py", "day=2026-01-31", 'pair=[2, "b"]').strip() == "2026"
    assert sorted(one.name for one in local.folder.glob("*.py")) == ["agents.py", "dated.py"]

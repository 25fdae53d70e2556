"""The arguments of the stop commands: two parsers, and one meaning."""

from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from andon.cli import stop_options
from andon.cli.app import GlobalOptions, cli

PIECES = [
    "r-1",
    "other",
    "--",
    "",
    "-x",
    "--help",
    "--jso",
    "--json",
    "--json=1",
    "--all",
    "--no-wait",
]
PIECES += [
    "--agent",
    "--agent=a",
    "--label",
    "--label=k=v",
    "--within",
    "--within=3",
    "--within=-1",
]
PIECES += [
    "--wait",
    "--wait=nan",
    "--wait=0.5",
    "--why",
    "--why=",
    "--by=ann",
    "--store=sqlite:///x",
    "5",
]


def long_way(verb: str, line: list[str]) -> dict[str, Any]:
    """The arguments as click parses them."""
    with cli.make_context("andon", [verb, *line]) as group:
        command = cli.get_command(group, verb)
        assert command is not None
        with command.make_context(verb, line, parent=group) as ctx:
            told = ctx.ensure_object(GlobalOptions)
            return {**ctx.params, "store": told.store, "json": told.json}


@given(
    verb=st.sampled_from(sorted(stop_options.VERBS)),
    line=st.lists(st.sampled_from(PIECES), max_size=5),
)
def test_the_fast_parser_agrees_with_click_or_declines(verb: str, line: list[str]) -> None:
    said = stop_options.read(verb, line)
    if said is not None:
        assert said == long_way(verb, line)


@pytest.mark.parametrize("verb", sorted(stop_options.VERBS))
@pytest.mark.parametrize(
    "line",
    [
        [],
        ["r-1"],
        ["r-1", "--why", "it loops", "--by=ann", "--json"],
        ["--agent", "crawl", "--no-wait"],
        ["--label=tenant=acme", "--wait", "2", "--store", "sqlite:///x.db"],
        ["--all"],
    ],
)
def test_a_plain_command_line_takes_the_fast_parser(verb: str, line: list[str]) -> None:
    assert stop_options.read(verb, line) is not None


@pytest.mark.parametrize(
    "line",
    [["--help"], ["a", "b"], ["a", "--all"], ["--wait", "soon"], ["--wait"], ["--why", "-x"]],
)
def test_a_mistake_goes_to_click_which_explains_it(line: list[str]) -> None:
    assert stop_options.read("kill", line) is None


def test_a_name_in_the_environment_is_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANDON_BY", "maria")
    for line in ([], ["--by", "ann"]):
        said = stop_options.read("kill", line)
        assert said == long_way("kill", line)
    monkeypatch.setenv("ANDON_BY", "")
    assert stop_options.read("kill", []) == long_way("kill", [])


def test_every_word_is_in_the_help() -> None:
    for verb, options in stop_options.VERBS.items():
        command = cli.every_command()[verb]
        text = command.get_help(click.Context(command))
        assert all(option.name in text and option.help[:20] in text for option in options)

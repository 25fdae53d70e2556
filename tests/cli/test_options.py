"""The command line is one language: the same word for the same thing on every command."""

import re
import subprocess
from collections.abc import Iterator

import click
import pytest
from tests.cli.terminal import Terminal

from andon.cli import stop_options
from andon.cli.app import cli
from andon.cli.options import Duration, Spelled
from andon.supervisor.halt import command as panic

ACTS = {"cancel", "kill", "pause", "resume", "drain", "dead redrive", "dead drop"}
LOOKS = {"ps", "receipts", "workers"}


def every_command(path: str = "", group: click.Group = cli) -> Iterator[tuple[str, click.Command]]:
    found = cli.every_command() if group is cli else group.commands
    for name, command in found.items():
        yield f"{path}{name}", command
        if isinstance(command, click.Group):
            yield from every_command(f"{path}{name} ", command)


COMMANDS = dict(every_command())


def options(name: str) -> dict[str, click.Option]:
    """The options in a command's help, by their long spelling."""
    return {
        spelling: one
        for one in COMMANDS[name].params
        if isinstance(one, click.Option) and not one.hidden
        for spelling in one.opts
        if spelling.startswith("--") and spelling not in getattr(one, "old", ())
    }


def uses(option: str) -> dict[str, click.Option]:
    return {name: options(name)[option] for name in COMMANDS if option in options(name)}


def test_all_is_for_commands_that_act_and_old_for_those_that_list() -> None:
    assert uses("--all").keys() == ACTS
    assert uses("--old").keys() == LOOKS


@pytest.mark.parametrize(
    ("option", "metavar"),
    [
        ("--timeout", "TIME"),
        ("--within", "TIME"),
        ("--grace", "TIME"),
        ("--lease", "TIME"),
        ("--settle", "TIME"),
        ("--since", "TIME"),
        ("--limit", "N"),
        ("--agent", "NAME"),
        ("--label", "K=V"),
        ("--by", "NAME"),
        ("--why", "TEXT"),
        ("--input", "FILE"),
        ("--id", "ID"),
    ],
)
def test_an_option_takes_the_same_everywhere(option: str, metavar: str) -> None:
    found = uses(option)
    assert found
    assert {one.metavar for one in found.values()} == {metavar}
    if metavar == "TIME":
        without = {name for name, one in found.items() if not isinstance(one.type, Duration)}
        assert without <= {"halt"}, "which is understood by hand, and takes the same"


@pytest.mark.parametrize("option", ["--by", "--why", "--input", "--since", "--old", "--grace"])
def test_an_option_says_the_same_everywhere(option: str) -> None:
    texts = {one.help for name, one in uses(option).items() if name != "k8s render"}
    assert len(texts) == 1, texts


def test_no_other_option_takes_seconds_or_another_word_for_a_limit() -> None:
    other = re.compile(r"--(.*seconds|wait|most|max.*|count|for-seconds)$")
    assert not [(name, one) for name in COMMANDS for one in options(name) if other.match(one)]


def test_short_spellings_mean_one_thing() -> None:
    meanings: dict[str, set[str]] = {}
    for command in COMMANDS.values():
        for one in command.params:
            short = [word for word in one.opts if re.fullmatch("-[a-zA-Z]", word)]
            long = [word for word in one.opts if word.startswith("--")]
            for word in short:
                meanings.setdefault(word, set()).add(long[0])
    assert all(len(found) == 1 for found in meanings.values()), meanings


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_fits_80_columns_and_hides_old_words(name: str) -> None:
    command = COMMANDS[name]
    with click.Context(command, info_name=f"andon {name}", terminal_width=80) as ctx:
        text = command.get_help(ctx)
    wide = [line for line in text.split("\n") if len(line) > 80]
    assert not wide
    for one in command.params:
        for old in getattr(one, "old", ()) if isinstance(one, Spelled) else ():
            assert not re.search(rf"{old}(?![\w-])", text), old
        assert not isinstance(one, click.Option) or one.hidden or one.help, f"{one.name}: no help"


def test_the_list_of_commands_fits_80_columns_without_cutting_a_sentence() -> None:
    with click.Context(cli, info_name="andon", terminal_width=80) as ctx:
        shown = cli.get_help(ctx)
    assert not [line for line in shown.split("\n") if len(line) > 80]
    # The usage itself ends this way.
    assert not [line for line in shown.split("\n")[1:] if line.endswith("...")]


def test_every_sentence_of_the_help_has_a_subject_of_its_own() -> None:
    wrong = re.compile(r"(?:^|[.:;] )(?:who|whoever|nobody|somebody)\b", re.IGNORECASE)
    for name in cli.list_commands(click.Context(cli)):
        with click.Context(cli.get_command(click.Context(cli), name), info_name=name) as ctx:  # type: ignore[arg-type]
            assert not wrong.search(" ".join(ctx.get_help().split())), name


@pytest.mark.parametrize(
    "line",
    [
        ("ps", "--all"),
        ("receipts", "--all", "--limit", "3"),
        ("workers", "--all"),
        ("ps", "-n", "5"),
        ("dead", "list", "-n", "5"),
        ("deploys", "--since", "90"),
        ("events", "--since", "2h"),
        ("k8s", "render", "--grace", "2m"),
        ("k8s", "render", "--grace", "80"),
    ],
)
def test_old_words_and_every_way_to_write_a_duration_keep_working(
    local: Terminal, line: tuple[str, ...]
) -> None:
    local("limit", "queue:x", "--at-most", "1")  # there is a store
    local(*line)


@pytest.mark.parametrize(
    ("arguments", "wait"),
    [
        (["--timeout", "2s"], 2.0),
        (["--wait", "2"], 2.0),
        (["--timeout=1m"], 60.0),
        (["--timeout", "soon"], panic.WAIT_SECONDS),
    ],
)
def test_halt_reads_durations_as_all_other_commands_do(arguments: list[str], wait: float) -> None:
    assert panic.parsed(arguments).wait == wait


def test_both_parsers_of_halt_know_the_same_options() -> None:
    assert options("halt").keys() - {"--json"} == {"--why", "--by", "--timeout", "--store"}
    for name in options("halt"):
        line = [name] if name == "--json" else [name, "1"]
        assert not panic.parsed(line).complaints


def test_a_wrong_time_is_refused_and_the_expected_form_named(local: Terminal) -> None:
    found = local.error("wait", "r", "--timeout", "soon", code=2)
    assert "'--timeout'" in found
    assert "expected 10s, 5m, 2h or 1d" in found


# ── unknown words ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("line", "near"),
    [
        (("stop",), "did you mean 'andon pause', 'andon cancel', 'andon kill' or 'andon halt'?"),
        (("list",), "'andon ps'"),
        (("status",), "'andon ps'"),
        (("kil", "--all"), "'andon kill'"),
        (("retry", "r"), "'andon dead redrive'"),
        (("dead", "lst"), "'andon dead list'"),
        (("rm", "r"), "'andon cancel' or 'andon dead drop'"),
        (("suspend",), "did you mean 'andon pause'?"),
        (("stat",), "did you mean 'andon ps'?"),
        (("xyzzy",), "andon --help lists them."),
    ],
)
def test_an_unknown_command_is_refused_and_the_nearest_one_named(
    local: Terminal, line: tuple[str, ...], near: str
) -> None:
    assert near in local.error(*line, code=2)


def test_an_unknown_option_is_refused_and_the_nearest_one_named(local: Terminal) -> None:
    assert "'--timeout'" in local.error("wait", "r", "--timeot", "3", code=2)


def test_an_old_spelling_is_never_suggested(local: Terminal) -> None:
    said = local.error("pause", "--wiat", "3", code=2)
    assert "'--why'" in said or "'--within'" in said
    assert "'--wait'" not in said
    assert "--wait" not in _completed(local, "andon pause --")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (("ps", "--limit", "x"), "'x': expected a whole number from 1 to 10000"),
        (("ps", "--limit", "0"), "'0': expected a whole number from 1 to 10000"),
        (("crashtest", "a.py", "-n", "0"), "'0': expected a whole number from 1 on"),
        (("work", "a.py", "--concurrency", "few"), "'few': expected a whole number"),
        (("drill", "--agents", "1.5"), "'1.5': expected a whole number"),
    ],
)
def test_a_wrong_number_is_refused_and_the_expected_form_named(
    local: Terminal, line: tuple[str, ...], expected: str
) -> None:
    assert local.error(*line, code=2).rstrip().endswith(expected)


def test_every_word_of_other_tools_leads_to_an_existing_command() -> None:
    for meant in stop_options.SIMILAR.values():
        assert all(name == "--help" or name in COMMANDS for name in meant), meant
    assert not stop_options.SIMILAR.keys() & COMMANDS.keys()


@pytest.mark.parametrize("word", ["-V", "--version", "version"])
def test_the_version_is_printed(local: Terminal, word: str) -> None:
    assert local(word).startswith("andon ")
    assert local("--store", "sqlite:///x", word).startswith("andon ")


# ── completion ────────────────────────────────────────────────────────────────────────────────


def _completed(local: Terminal, line: str) -> list[str]:
    at = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    return local(env={"_ANDON_COMPLETE": "bash_complete", **at}).split("\n")


def test_the_completion_of_bash_is_a_script_that_completes(local: Terminal) -> None:
    script = local(env={"_ANDON_COMPLETE": "bash_source"})
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    with local.worker():
        local.start("listener", "--id", "wait-for-me")
    for line, expected in (
        ("andon work a", "file,a"),
        ("andon ps --state st", "plain,stranded"),
        ("andon sho", "plain,show"),
        ("andon show wait", "plain,wait-for-me"),
        ("andon start lis", "plain,listener"),
        ("andon wait r --tim", "plain,--timeout"),
    ):
        assert expected in _completed(local, line), line
    nowhere = {"_ANDON_COMPLETE": "bash_complete", "ANDON_STORE": "sqlite:///nowhere.db"}
    assert local(env={**nowhere, "COMP_WORDS": "andon show x", "COMP_CWORD": "2"}).strip() == ""

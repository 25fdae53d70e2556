"""The command that tests an agent by killing it."""

from collections.abc import Sequence
from typing import Any

import click

from andon.cli import options
from andon.cli.app import cli, global_options, takes_global_options
from andon.control.runs import run_input


@cli.command()
@click.argument("target", metavar="MODULE_OR_FILE[:NAME]", shell_complete=options.files)
@click.argument("arguments", metavar="[KEY=VALUE]...", nargs=-1)
@options.given_input
@click.option(
    "--points",
    metavar="LIST",
    help="Where to kill: boundary, effect, inside, named, or names of points. Default: all four.",
)
@options.number("-n", "--limit", "most", old=("--most",), least=1, help="Kill at most N times.")
@options.seconds(
    "--timeout",
    "seconds",
    old=("--seconds",),
    help="Start no new kill after this time; default: 5m.",
)
@click.option("--deep", is_flag=True, help="Also kill the worker that takes over.")
@click.option("--strict", is_flag=True, help="A question to a person counts as a finding.")
@click.option(
    "--fails",
    is_flag=True,
    help="The agent is expected to fail; without this a failing agent is refused.",
)
@click.option(
    "--send", metavar="NAME=VALUE", multiple=True, help="Events the run waits for; repeatable."
)
@click.option(
    "--before", metavar="COMMAND", help="Run this in the empty folder of each run, before it."
)
@click.option(
    "--check",
    metavar="COMMAND",
    help="Run this after each run; its output must be the same as without a kill.",
)
@click.option(
    "--junit", type=click.Path(dir_okay=False), help="Write the results to this file, as JUnit XML."
)
@click.option(
    "--keep", type=click.Path(file_okay=False), help="Keep stores and outputs in this folder."
)
@takes_global_options
def crashtest(target: str, arguments: Sequence[str], input_file: Any, **given: Any) -> int:
    """Run an agent with kill -9 at every moment.

    Reports what happened twice, and why. Uses scratch folders with stores of their own, never the
    configured store; with --store postgresql://… it uses that database, which must be empty. Exit
    0: nothing found. 1: findings.
    """
    # Import all of andon before the user's files can be found: a queue.py shadows Python's.
    from andon.cli import args as typed
    from andon.cli.views import crashtest_view

    document = input_file.read() if input_file else None
    chosen = {name: found for name, found in given.items() if found is not None}
    junit = chosen.pop("junit", None)
    chosen["send"] = {
        name: run_input.parse(text)
        for name, text in (typed.pair(one, "event") for one in given["send"])
    }
    return crashtest_view.run(
        crashtest_view.load(target),
        typed.arguments(arguments, document),
        {"store": global_options().store, **chosen},
        junit,
    )

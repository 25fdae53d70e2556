"""The command that tests somebody's agent by killing it."""

from collections.abc import Sequence
from typing import Any

import click

from andon.control.cli import Seconds, asked, cli, everywhere


@cli.command()
@click.argument("target", metavar="MODULE_OR_FILE[:NAME]")
@click.argument("arguments", metavar="[KEY=VALUE]...", nargs=-1)
@click.option(
    "--input",
    "input_file",
    type=click.File("rb"),
    help="A file with the arguments as a JSON object; - for stdin.",
)
@click.option(
    "--points",
    metavar="LIST",
    help="Where to kill: boundary, effect, inside, named, or names of points. Default: all four.",
)
@click.option("--most", type=click.IntRange(1), metavar="N", help="At most so many kills.")
@click.option("--seconds", type=Seconds(), metavar="S", help="At most so long; default: 300.")
@click.option("--deep", is_flag=True, help="Kill the worker that goes on as well.")
@click.option("--strict", is_flag=True, help="A question to a person counts as a finding.")
@click.option("--fails", is_flag=True, help="The agent is meant to fail; else that is refused.")
@click.option(
    "--send", metavar="NAME=VALUE", multiple=True, help="Events the run waits for; repeatable."
)
@click.option("--before", metavar="COMMAND", help="In the empty folder of each run, before it.")
@click.option("--check", metavar="COMMAND", help="After it: must print the same as without a kill.")
@click.option("--junit", type=click.Path(dir_okay=False), help="Write the results there as XML.")
@click.option("--keep", type=click.Path(file_okay=False), help="Keep stores and outputs there.")
@everywhere
def crashtest(target: str, arguments: Sequence[str], input_file: Any, **given: Any) -> int:
    """Run an agent, then again with kill -9 at every moment, and say what happened twice and why.

    In scratch folders, each with a store of its own, never the configured one; with --store
    postgresql://… in that database, which must be empty. Exit 0: nothing found. 1: findings.
    """
    # All of andon is imported before their folder is searched first: their queue.py is theirs.
    from andon.control import arguments as typed
    from andon.control import crashtesting

    document = input_file.read() if input_file else None
    options = {name: found for name, found in given.items() if found is not None}
    junit = options.pop("junit", None)
    options["send"] = {
        name: typed.parse(text)
        for name, text in (typed.pair(one, "event") for one in given["send"])
    }
    return crashtesting.run(
        crashtesting.load(target),
        typed.arguments(arguments, document),
        {"store": asked().store, **options},
        junit=junit,
        json=asked().json,
    )

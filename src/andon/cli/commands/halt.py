"""`andon halt` for --help and for options before the word; the panic path does not come here."""

from collections.abc import Sequence

import click

from andon.cli import options
from andon.cli.app import cli, global_options, takes_global_options


@cli.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@options.signed
@options.option(
    "--timeout",
    "wait",
    old=("--wait",),
    metavar="TIME",
    help="Wait at most this long for the proof, then exit 3; default: 10s.",
)
@click.argument("rest", nargs=-1, type=click.UNPROCESSED)
@takes_global_options
def halt(why: str, by: str | None, wait: str | None, rest: Sequence[str]) -> int:
    """Stop everything, now, on every host. It needs no reason, asks nothing, and is safe.

    To allow starts again: andon reauthorize. Exit 0 only when everything is proved to be
    stopped, 3 if not in time.
    """
    from andon.supervisor.halt import command

    chosen = global_options()
    given = {"--why": why, "--by": by, "--timeout": wait, "--store": chosen.store}
    words = [f"{name}={value}" for name, value in given.items() if value]
    return command.main([*words, *(["--json"] if chosen.json else []), *rest])

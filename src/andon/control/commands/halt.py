"""`andon halt`: this file is for --help and for options before the word; the panic path is not."""

from collections.abc import Sequence

import click

from andon.control.cli import asked, cli, everywhere


@cli.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.option("--why", metavar="TEXT", default="", help="A reason, for the receipt; not needed.")
@click.option("--by", metavar="NAME", envvar="ANDON_BY", help="Who (ANDON_BY, your login).")
@click.option("--wait", metavar="S", help="Wait no longer for the proof, and exit with 3: 10 s.")
@click.argument("rest", nargs=-1, type=click.UNPROCESSED)
@everywhere
def halt(why: str, by: str | None, wait: str | None, rest: Sequence[str]) -> int:
    """Stop everything, now, on every host. No reason is needed, nothing is asked; it is safe.

    Nothing starts until: andon reauthorize. Exit 0 only when everything is proved to be stopped,
    3 if not in time.
    """
    from andon.supervisor import panic

    said = {"--why": why, "--by": by, "--wait": wait, "--store": asked().store}
    words = [f"{name}={value}" for name, value in said.items() if value]
    return panic.main([*words, *(["--json"] if asked().json else []), *rest])

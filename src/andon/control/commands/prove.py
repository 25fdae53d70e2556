"""Commands that prove something."""

import click

from andon.control import output
from andon.control.cli import asked, cli, everywhere, make_settings, opened
from andon.control.version import VERSION


@cli.command()
@click.argument("run", required=False)
@everywhere
def verify(run: str | None) -> int:
    """Check that the journal, the ledger and the values are what was written."""
    from andon.control import proving

    with opened() as store:
        return proving.verify(store, run, json=asked().json)


@cli.command()
@everywhere
def doctor() -> int:
    """Check the store, the machine and the runs, and say what to do. Changes nothing."""
    from andon.control import proving

    return proving.doctor(make_settings(), json=asked().json)


@cli.command()
@everywhere
def version() -> None:
    """Print the version."""
    if asked().json:
        output.document({"version": VERSION})
    else:
        output.say(f"andon {VERSION}")

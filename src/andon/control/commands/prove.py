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
@click.option("--agents", default=8, show_default=True, help="How many; each is three processes.")
@click.option("--rounds", default=1, show_default=True, help="How often.")
@everywhere
def drill(agents: int, rounds: int) -> int:
    """Start agents that do not want to stop, halt them for real, and print what it took.

    In a home and a store of its own: nothing that runs here is touched. Exit 0 only if nothing
    survived and nothing could be started again.
    """
    from andon.control import drilling

    return drilling.run(agents, rounds, json=asked().json)


@cli.command()
@everywhere
def version() -> None:
    """Print the version."""
    if asked().json:
        output.document({"version": VERSION})
    else:
        output.say(f"andon {VERSION}")

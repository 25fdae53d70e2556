"""Commands that verify, diagnose and rehearse."""

import click

from andon.cli import options, output
from andon.cli.app import asked, cli, everywhere, make_settings, opened
from andon.cli.version import VERSION


@cli.command()
@options.perhaps_run
@everywhere
def verify(run: str | None) -> int:
    """Check that nothing in the store is damaged.

    Every journal, effect and value has to be what was written.
    """
    from andon.cli.views import check_view

    with opened(look="once") as store:
        return check_view.verify(store, run, json=asked().json)


@cli.command()
@everywhere
def doctor() -> int:
    """Check the store, the machine and the runs.

    It says what to do, and changes nothing.
    """
    from andon.cli.views import check_view

    return check_view.doctor(make_settings(), json=asked().json)


@cli.command()
@click.option(
    "--agents",
    type=options.Whole(),
    default=12,
    show_default=True,
    metavar="N",
    help="How many agents; each has three processes.",
)
@click.option(
    "--rounds",
    type=options.Whole(),
    default=1,
    show_default=True,
    metavar="N",
    help="How many rounds.",
)
@everywhere
def drill(agents: int, rounds: int) -> int:
    """Rehearse a halt, with agents that resist it.

    It starts them, halts them for real, and reports how long it took. It uses a home and a store
    of its own: nothing that runs here is touched. Exit 0 only if nothing survived and nothing
    could be started again.
    """
    from andon.cli.views import drill_view

    return drill_view.run(agents, rounds, json=asked().json)


@cli.command()
@everywhere
def version() -> None:
    """Print the version."""
    if asked().json:
        output.document({"version": VERSION})
    else:
        output.say(f"andon {VERSION}")

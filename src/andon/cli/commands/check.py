"""Commands that verify, diagnose and rehearse."""

from andon.cli import options
from andon.cli.app import cli, make_settings, opened, print_answer, takes_global_options
from andon.cli.version import VERSION


@cli.command()
@options.optional_run
@takes_global_options
def verify(run: str | None) -> int:
    """Check that nothing in the store is damaged.

    Every journal, effect and value has to be what was written.
    """
    from andon.cli.views import check_view

    with opened(look="once") as store:
        return check_view.verify(store, run)


@cli.command()
@takes_global_options
def doctor() -> int:
    """Check the store, the machine and the runs.

    It says what to do, and changes nothing.
    """
    from andon.cli.views import check_view

    return check_view.doctor(make_settings())


@cli.command()
@options.number("--agents", default=12, help="How many agents; each has three processes.")
@options.number("--rounds", default=1, help="How many rounds.")
@takes_global_options
def drill(agents: int, rounds: int) -> int:
    """Rehearse a halt, with agents that resist it.

    It starts them, halts them for real, and reports how long it took. It uses a home and a store
    of its own: nothing that runs here is touched. Exit 0 only if nothing survived and nothing
    could be started again.
    """
    from andon.cli.views import drill_view

    return drill_view.run(agents, rounds)


@cli.command()
@takes_global_options
def version() -> None:
    """Print the version."""
    print_answer({"version": VERSION}, f"andon {VERSION}")

"""Commands about what waits: queues, limits, dead runs and versions."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from andon.control import output
from andon.control.cli import ERROR, F, advise, asked, cli, everywhere, opened
from andon.control.people import named

_by = click.option(
    "--by", metavar="NAME", envvar="ANDON_BY", help="Who says so (ANDON_BY, else your login)."
)


@cli.command()
@everywhere
def queues() -> None:
    """Queues: what waits in them, since when, and their limits."""
    from andon.control import queues as operations

    with opened() as store:
        found = operations.queues(store)
    if asked().json:
        output.document(found)
    else:
        from andon.control import listings

        listings.queues(found)


@cli.command()
@click.argument("what", metavar="[queue:NAME|agent:NAME|label:NAME]", required=False)
@click.option("--at-most", type=click.IntRange(min=1), metavar="N", help="Runs at once.")
@click.option("--rate", metavar="N/TIME", help="Runs begun in a time: 10/1m, 100/1h.")
@click.option("--off", is_flag=True, help="Remove it.")
@_by
@everywhere
def limit(
    what: str | None, at_most: int | None, rate: str | None, off: bool, by: str | None
) -> None:
    """Limit how many runs run at once, or begin in a time; without arguments: list the limits.

    A limit of a label holds for each value of it alone: `label:tenant --at-most 2`.
    """
    from andon.control import listings
    from andon.control import queues as operations

    if what is None and (at_most is not None or rate is not None or off):
        raise click.UsageError("which limit? queue:NAME, agent:NAME or label:NAME")
    with opened(create=what is not None) as store:
        if what is None:
            listed = operations.limits(store)
            output.document(listed) if asked().json else listings.limits(listed)
            return
        found = operations.set_limit(store, what, at_most=at_most, rate=rate, off=off, by=named(by))
    if asked().json:
        output.document(found)
    else:
        output.say(f"{output.clean(what)}: {listings.terms(found)}")
        advise("see what counts: andon limit")


@cli.group()
@everywhere
def dead() -> None:
    """Dead runs, whose attempts ran out: list them, redrive them, or drop them."""


@dead.command("list")
@click.option("--agent", help="Only runs of this agent.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)
@everywhere
def dead_list(agent: str | None, limit: int) -> None:
    """Dead runs, newest first, with what they died of."""
    from andon.control import dead as operations

    with opened() as store:
        found = operations.listing(store, agent=agent, limit=limit)
    if asked().json:
        output.document(found)
    else:
        from andon.control import listings

        listings.dead(found)


def _about_dead(function: F) -> F:
    for option in (
        everywhere,
        _by,
        click.option("--agent", help="With --all: only runs of this agent."),
        click.option("--all", "everything", is_flag=True, help="Every dead run."),
        click.argument("runs", metavar="[RUN]...", nargs=-1),
    ):
        function = option(function)
    return function


@dead.command("redrive")
@_about_dead
def dead_redrive(**given: Any) -> int:
    """Put dead runs back into the queue: what failed is tried again, with all its retries."""
    from andon.control import dead as operations

    return _decide(operations.redrive, "redriven", **given)


@dead.command("drop")
@_about_dead
def dead_drop(**given: Any) -> int:
    """Let dead runs have failed for good; refused while effects of theirs are not undone."""
    from andon.control import dead as operations

    return _decide(operations.drop, "dropped", **given)


def _decide(
    decision: Callable[..., Any],
    word: str,
    *,
    runs: Sequence[str],
    everything: bool,
    agent: str | None,
    by: str | None,
) -> int:
    from andon.control import dead as operations

    if bool(runs) == everything or (agent is not None and not everything):
        raise click.UsageError("expected RUN..., or --all [--agent NAME]")
    with opened() as store:
        if len(runs) == 1:
            outcomes: list[tuple[str, Any]] = [(decision(store, runs[0], by=named(by)).id, None)]
        else:
            ids = operations.every(store, agent) if everything else runs
            outcomes = list(operations.each(store, ids, decision, named(by)))
    refused = [(run_id, str(error)) for run_id, error in outcomes if error is not None]
    done = [run_id for run_id, error in outcomes if error is None]
    if asked().json:
        output.document({word: done, "refused": [{"run": r, "why": why} for r, why in refused]})
        return ERROR if refused else 0
    for run_id in done:
        output.say(f"{word}: {output.clean(run_id)}")
    for _, why in refused:
        output.note(f"refused: {output.clean(why, 1000)}")
    if not outcomes:
        advise("no dead runs")
    elif done and word == "redriven":
        advise(f"next: {output.command('wait', done[0]) if len(done) == 1 else 'andon ps'}")
    return ERROR if refused else 0


@cli.command()
@click.argument("agent", required=False)
@everywhere
def versions(agent: str | None) -> None:
    """Versions of agents: which one new runs take, who carries them, what they still have."""
    from andon.control import queues as operations

    with opened() as store:
        found = operations.versions(store, agent)
    if asked().json:
        output.document(found)
    else:
        from andon.control import listings

        listings.versions(found)


@cli.command()
@click.argument("version")
@click.option("--agent", metavar="NAME", help="Only of this agent.")
@_by
@everywhere
def promote(version: str, agent: str | None, by: str | None) -> None:
    """Let new runs take this version, of every agent that has it. Runs that exist keep theirs."""
    from andon.control import queues as operations

    with opened() as store:
        names = operations.promote(store, version, agent=agent, by=named(by))
    if asked().json:
        output.document({"version": version, "agents": list(names)})
    else:
        for name in names:
            output.say(f"promoted: {output.clean(name)} {output.clean(version)}")
        advise("see who carries it: andon versions")

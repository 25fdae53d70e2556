"""Commands for waiting runs: queues, limits, dead runs and versions."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from andon.cli import options
from andon.cli.app import (
    ERROR,
    CommandGroup,
    advise,
    cli,
    opened,
    print_answer,
    query,
    takes_global_options,
)
from andon.cli.options import F
from andon.core.text import clean, command
from andon.host.user import named


@cli.command()
@takes_global_options
def queues() -> None:
    """List queues: what waits, since when, and limits."""
    from andon.cli.views import queue_view
    from andon.control import queues as operations

    print_answer(query(operations.queues), queue_view.queues)


@cli.command()
@click.argument("what", metavar="[queue:NAME|agent:NAME|label:NAME]", required=False)
@options.number("--at-most", least=1, help="At most N runs at the same time.")
@click.option("--rate", metavar="N/TIME", help="At most N starts per TIME: 10/1m, 100/1h.")
@click.option("--off", is_flag=True, help="Remove the limit.")
@options.by
@takes_global_options
def limit(
    what: str | None, at_most: int | None, rate: str | None, off: bool, by: str | None
) -> None:
    """Limit how many runs run at once, or start per time.

    Without arguments: list the limits. The limit of a label applies to each of its values
    separately: `label:tenant --at-most 2`.
    """
    from andon.cli.views import queue_view
    from andon.control import queues as operations

    if what is None and (at_most is not None or rate is not None or off):
        raise click.UsageError("say which limit: queue:NAME, agent:NAME or label:NAME")
    if what is None:
        print_answer(query(operations.limits), queue_view.limits)
        return
    with opened(create=True) as store:
        found = operations.set_limit(store, what, at_most=at_most, rate=rate, off=off, by=named(by))
    print_answer(found, f"{clean(what)}: {queue_view.terms(found)}")
    advise("see its use: andon limit")


@cli.group(cls=CommandGroup)
@takes_global_options
def dead() -> None:
    """List, redrive or drop dead runs, which have no attempts left."""


@dead.command("list")
@options.of_agent
@options.limit(100)
@takes_global_options
def dead_list(agent: str | None, limit: int) -> None:
    """List dead runs, newest first, with their errors."""
    from andon.cli.views import queue_view
    from andon.control import dead as operations

    print_answer(query(operations.listing, agent=agent, limit=limit), queue_view.dead)


def _about_dead(function: F) -> F:
    for option in (
        takes_global_options,
        options.by,
        click.option("--agent", metavar="NAME", help="With --all: only runs of this agent."),
        click.option("--all", "everything", is_flag=True, help="Every dead run."),
        click.argument("runs", metavar="[RUN]...", nargs=-1),
    ):
        function = option(function)
    return function


@dead.command("redrive")
@_about_dead
def dead_redrive(**given: Any) -> int:
    """Put dead runs back into the queue. The failed step is tried again, with all its retries."""
    from andon.control import dead as operations

    return _decide(operations.redrive, "redriven", **given)


@dead.command("drop")
@_about_dead
def dead_drop(**given: Any) -> int:
    """Mark dead runs as failed for good. Refused while they have effects that are not undone."""
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
        done, refused = operations.decide(store, decision, runs, agent=agent, by=named(by))
    text = "\n".join(f"{word}: {clean(run_id)}" for run_id in done)
    print_answer({word: done, "refused": refused}, text)
    for one in refused:
        advise(f"refused: {clean(one['why'], 1000)}")
    if not done and not refused:
        advise("no dead runs")
    elif done and word == "redriven":
        advise(f"next: {command('wait', done[0]) if len(done) == 1 else 'andon ps'}")
    return ERROR if refused else 0


@cli.command()
@click.argument("agent", required=False)
@takes_global_options
def versions(agent: str | None) -> None:
    """List the versions of agents.

    Which one new runs use, and the workers and unfinished runs of each.
    """
    from andon.cli.views import queue_view
    from andon.control import queues as operations

    print_answer(query(operations.versions, agent), queue_view.versions)


@cli.command()
@click.argument("version")
@options.of_agent
@options.by
@takes_global_options
def promote(version: str, agent: str | None, by: str | None) -> None:
    """Make new runs use a version. For every agent that has it; existing runs keep theirs."""
    from andon.control import queues as operations

    with opened() as store:
        names = operations.promote(store, version, agent=agent, by=named(by))
    print_answer(
        {"version": version, "agents": list(names)},
        "\n".join(f"promoted: {clean(name)} {clean(version)}" for name in names),
    )
    advise("see its workers: andon versions")

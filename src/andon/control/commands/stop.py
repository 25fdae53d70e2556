"""Commands that stop, and what is known about it."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from andon.control import output
from andon.control.cli import (
    DONE,
    LATE,
    Seconds,
    advise,
    asked,
    cli,
    everywhere,
    make_settings,
    opened,
)
from andon.errors import NotFound

F = TypeVar("F", bound=Callable[..., Any])
# For the proof, after the time that the step in hand had.
PROOF_SECONDS = 5.0
HARD_SECONDS = 10.0


def whom(function: F) -> F:
    """Who is meant: a run, or a scope."""
    for option in (
        click.option("--all", "fleet", is_flag=True, help="Everything."),
        click.option("--label", metavar="K=V", help="All runs with this label, and its children."),
        click.option("--agent", metavar="NAME", help="All runs of this agent, and its children."),
        click.argument("run", required=False),
    ):
        function = option(function)
    return function


def signed(function: F) -> F:
    """Who says so, and why; neither is needed."""
    for option in (
        click.option("--by", metavar="NAME", envvar="ANDON_BY", help="Who (ANDON_BY, your login)."),
        click.option("--why", metavar="TEXT", default="", help="A reason, for the receipt."),
    ):
        function = option(function)
    return function


def _waits(function: F) -> F:
    for option in (
        click.option("--no-wait", is_flag=True, help="Only ask; exit 3 unless it is proved."),
        click.option(
            "--wait",
            "wait_seconds",
            type=Seconds(),
            metavar="S",
            help="Wait no longer for the proof, and exit with 3.",
        ),
    ):
        function = option(function)
    return function


_within = click.option(
    "--within",
    type=Seconds(),
    default=10.0,
    show_default=True,
    metavar="S",
    help="How long the step in hand may take; then it is cut off.",
)


@cli.command()
@whom
@_within
@_waits
@signed
@everywhere
def pause(**said: Any) -> int:
    """Hold runs at their next boundary; andon resume lets them go on.

    RUN is an id, its beginning, @last, or the name of an agent that has one unfinished run.
    Exit 0 only when it is proved that nothing of it executes any more, 3 if not in time.
    """
    return _stop("pause", **said)


@cli.command()
@whom
@_within
@_waits
@signed
@everywhere
def cancel(**said: Any) -> int:
    """End runs for good at their next boundary, and undo what can be undone.

    RUN is an id, its beginning, @last, or the name of an agent that has one unfinished run.
    Exit 0 only when it is proved that nothing of it executes any more, 3 if not in time.
    """
    return _stop("cancel", **said)


@cli.command()
@whom
@_waits
@signed
@everywhere
def kill(**said: Any) -> int:
    """Stop runs now, from outside, whether they like it or not; andon resume lets them go on.

    RUN is an id, its beginning, @last, or the name of an agent that has one unfinished run.
    Exit 0 only when it is proved that nothing of it executes any more, 3 if not in time.
    """
    return _stop("kill", within=0.0, **said)


def chosen(run: str | None, agent: str | None, label: str | None, fleet: bool) -> Any:
    """The label as a pair; one way to say who is meant, and not two."""
    from andon.control import arguments

    if sum((run is not None, agent is not None, label is not None, fleet)) > 1:
        raise click.UsageError(
            "say who once: RUN, --agent, --label or --all", ctx=click.get_current_context()
        )
    return arguments.pair(label, "label") if label is not None else None


def _stop(
    kind: str,
    *,
    run: str | None,
    agent: str | None,
    label: str | None,
    fleet: bool,
    within: float,
    wait_seconds: float | None,
    no_wait: bool,
    by: str | None,
    why: str,
) -> int:
    from andon.control import receipts, stops
    from andon.control.people import named
    from andon.core.stop import Kind

    pair = chosen(run, agent, label, fleet)
    settings = make_settings()
    limit = 0.0 if no_wait else wait_seconds
    if limit is None:
        limit = within + PROOF_SECONDS if within else HARD_SECONDS
    with opened(settings=settings) as store:
        who = stops.meant(store, run, agent, pair, fleet=fleet)
        order = stops.order_for(
            Kind(kind), who, within=within, by=named(by), why=why, via="command line"
        )
        with _interruptible(store, order.id) as known:
            row = stops.give(store, order)
            known.append(row.id)
            outcomes = _wait(store, row, limit, settings)
        found = receipts.receipt(store, row.id)
    _show(found, outcomes, limit)
    return DONE if found["proved"] else LATE


def _wait(store: Any, row: Any, limit: float, settings: Any) -> dict[str, Any]:
    """Until it is proved, or the time is over; answers what was tried with processes here."""
    from andon.control.following import Patience
    from andon.control.stopping import Stopping

    stopping = Stopping(store, row, _tell)
    patience = Patience(
        settings.patience_seconds,
        lambda error: _tell(f"{output.clean(error)} Waiting for it."),
    )
    stopping.wait(limit, patience)
    return stopping.enders.tried


@contextlib.contextmanager
def _interruptible(store: Any, stop_id: str) -> Iterator[list[str]]:
    """Ctrl-C ends the waiting and not the stop, whose receipt is told."""
    from andon.control import receipts

    known = [stop_id]  # until it is known whether it joined another one
    try:
        yield known
    except KeyboardInterrupt:
        with contextlib.suppress(NotFound):  # it was not given yet
            found = receipts.receipt(store, known[-1])
            _tell(f"stopped waiting; it goes on stopping: {output.command('show', found['id'])}")
            if asked().json:
                output.document(found)
        raise


def _tell(text: str) -> None:
    """Whoever does not read on does not keep a process from being ended."""
    with contextlib.suppress(OSError):
        advise(text)


def _show(found: dict[str, Any], outcomes: dict[str, Any], waited: float) -> None:
    from andon.control import proofs

    if asked().json:
        output.document(found)
    else:
        proofs.receipt(found, outcomes, waited)


@cli.command()
@click.option("--all", "everything", is_flag=True, help="Also those of earlier days.")
@click.option("-n", "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@everywhere
def receipts(everything: bool, limit: int) -> None:
    """Stops, newest first: what was ordered, by whom, and whether it is proved."""
    from andon.control import proofs
    from andon.control import receipts as kept

    with opened() as store:
        found = kept.listing(store, limit, everything=everything)
    if asked().json:
        output.document(found)
    else:
        proofs.listing(found)

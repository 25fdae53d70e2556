"""Commands by which what was stopped goes on: stopping is free, this is not."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

from andon.control import output
from andon.control.cli import DONE, ERROR, advise, asked, cli, everywhere, make_settings, opened
from andon.control.commands.stop import chosen, signed, whom
from andon.control.people import named
from andon.errors import BadInput, StoreError


@cli.command()
@whom
@click.option(
    "--except",
    "besides",
    metavar="AGENT",
    multiple=True,
    help="Agents whose runs stay.",
)
@signed
@everywhere
def resume(
    run: str | None,
    agent: str | None,
    label: str | None,
    fleet: bool,
    besides: Sequence[str],
    why: str,
    by: str | None,
) -> None:
    """Let paused, killed or stranded runs go on; with --agent, --label or --all lift a pause.

    A run whose stop is not proved, or that a kill or halt holds, does not: andon reauthorize.
    """
    from andon.control import ordering, stops
    from andon.runtime.latches import called

    pair = chosen(run, agent, label, fleet)
    if run is None and agent is None and pair is None and not fleet:
        raise click.UsageError(
            "say who: RUN, --agent, --label or --all", ctx=click.get_current_context()
        )
    with opened() as store:
        if run is not None:
            _resume_one(store, run, named(by), why)
            return
        who = ordering.meant(store, None, agent, pair, fleet=fleet)
        lifted = stops.pauses_of(store, who)
        count = stops.resume_scope(store, who, by=named(by), why=why, besides=besides)
        left = stops.still_held(store, who)
    if asked().json:
        output.document({"resumed": count, "lifted": [one.id for one in lifted], **left})
        return
    output.say(f"resumed: {output.plural(count, 'run')}")
    for one in lifted:
        text = f"lifted: the pause of {called(one)} ({one.id}); what waited goes on"
        output.note(output.clean(text))
    for stopping in left["stopping"]:
        output.note(output.clean(f"not resumed: {stopping} is being stopped, which is not proved"))
    for latch in left["latches"]:
        output.note(f"still held: {output.clean(latch['why'])}. To lift it: {latch['lift']}")
    output.note("next: andon ps")


def _resume_one(store: Any, run: str, by: str, why: str) -> None:
    from andon.control import stops
    from andon.control.boxes import VERSION

    row = stops.resume(store, run, by=by, why=why)
    if asked().json:
        output.document({"run": row.id, "was": row.state})
        return
    output.say(f"resumed: {output.clean(row.id)}, it was {row.state}")
    verb = "show" if row.version == VERSION else "wait"  # which says how a command goes on
    output.note(f"next: {output.command(verb, row.id)}")


@cli.command()
@click.option("--agent", metavar="NAME", help="What a kill of this agent holds.")
@click.option("--label", metavar="K=V", help="What a kill of this label holds.")
@signed
@click.option("--epoch", type=int, metavar="N", help="The stop that you saw: a newer one wins.")
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal.")
@everywhere
def reauthorize(
    agent: str | None, label: str | None, why: str, by: str | None, epoch: int | None, yes: bool
) -> int:
    """Lift what a kill or a halt holds, by name and with a reason. Starts nothing by itself.

    Without --agent or --label: the halt of everything, in the store and on this host. Shows first
    what was pulled, what stays stopped and what may begin.
    """
    from andon.control import reauthorized, reauthorizing
    from andon.control.ordering import Whom

    pair = chosen(None, agent, label, False)
    whom_ = Whom(scope="fleet")
    if agent is not None:
        whom_ = Whom(scope="agent", name=agent)
    elif pair is not None:
        whom_ = Whom(scope="label", name=pair[0], value=pair[1])
    with _reachable(local=whom_.scope == "fleet") as (store, away):
        seen = reauthorizing.look(store, whom_, away=away)
        plan = reauthorizing.plan(store, seen)
        if not asked().json:
            reauthorized.plan(plan)
        if not _agreed(named(by), why, yes):
            return ERROR
        done = reauthorizing.lift(store, seen, by=named(by), why=why, epoch=epoch)
    if asked().json:
        output.document({"plan": plan, **done})
    else:
        reauthorized.done(plan, done)
    return DONE


@contextlib.contextmanager
def _reachable(*, local: bool) -> Iterator[tuple[Any, str]]:
    """The store, or why there is none: then the latch of this host can be lifted alone."""
    settings = make_settings()
    with contextlib.ExitStack() as stack:
        store, away = None, ""
        try:
            store = stack.enter_context(opened(settings=settings))
            store.now()
        except StoreError as error:
            if not local:
                raise
            store, away = None, f"{error} What the store holds stays held"
        yield store, away


def _agreed(by: str, why: str, yes: bool) -> bool:
    """Whether somebody who is named, and has a reason, wants it."""
    if not by.strip() or not why.strip():
        lacks = "a name" if not by.strip() else "a reason"
        raise BadInput(
            f"reauthorize: expected a name and a reason, found no {lacks.removeprefix('a ')}; "
            "nothing was lifted. Give --by NAME --why TEXT"
        )
    if yes:
        return True
    if asked().json or not sys.stdin.isatty():
        raise BadInput("reauthorize: there is nobody to ask; nothing was lifted. Give --yes")
    if click.confirm("Reauthorize?", default=False, err=True):
        return True
    advise("nothing was lifted")
    return False

"""Commands that let stopped runs continue; unlike stopping, this may be refused."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

from andon.cli import output
from andon.cli.app import (
    DONE,
    ERROR,
    advise,
    cli,
    make_settings,
    opened,
    print_answer,
    takes_global_options,
    wants_json,
)
from andon.cli.commands.stop import chosen, with_target
from andon.cli.options import number, signed
from andon.core.text import clean, command, plural, sentence
from andon.errors import BadInput, StoreError
from andon.host.user import named


@cli.command()
@with_target
@click.option(
    "--except",
    "besides",
    metavar="AGENT",
    multiple=True,
    help="Leave the runs of this agent stopped; repeatable.",
)
@signed
@takes_global_options
def resume(
    run: str | None,
    agent: str | None,
    label: str | None,
    fleet: bool,
    besides: Sequence[str],
    why: str,
    by: str | None,
) -> None:
    """Continue paused, killed or stranded runs.

    With --agent, --label or --all it lifts a pause too. Refused while the run's stop is not
    proved, or while a kill or halt holds it (to lift that: andon reauthorize).
    """
    from andon.control.runs.shown_state import Surroundings
    from andon.control.stop import resume as stops
    from andon.control.stop.target import find_target
    from andon.runtime.requests.scope_latches import called

    pair = chosen(run, agent, label, fleet)
    if run is None and agent is None and pair is None and not fleet:
        raise click.UsageError(
            "say which runs: RUN, --agent, --label or --all", ctx=click.get_current_context()
        )
    with opened() as store:
        if run is not None:
            _resume_one(store, run, named(by), why)
            return
        target = find_target(store, None, agent, pair, fleet=fleet)
        lifted = stops.pauses_of(store, target)
        count = stops.resume_scope(store, target, by=named(by), why=why, besides=besides)
        left = stops.still_held(store, target)
        alone = bool(count) and not Surroundings(store).live
    print_answer(
        {"resumed": count, "lifted": [one.id for one in lifted], **left},
        f"resumed: {plural(count, 'run')}" if count else "nothing to resume",
    )
    for one in lifted:
        text = f"lifted: the pause of {called(one)} ({one.id}); waiting runs continue"
        advise(clean(text))
    for stopping in left["stopping"]:
        advise(clean(f"not resumed: {stopping} is being stopped; its stop is not proved yet"))
    for latch in left["latches"]:
        advise(f"still held: {clean(latch['why'])}. To lift it: {latch['lift']}")
    if alone:
        advise(f"no worker is running. {output.START_ONE}")
    if count:
        advise("next: andon ps")


def _resume_one(store: Any, run: str, by: str, why: str) -> None:
    from andon.control.runs.command_run import VERSION
    from andon.control.runs.shown_state import Surroundings
    from andon.control.stop import resume as stops

    row = stops.resume(store, run, by=by, why=why)
    facts = {"run": row.id, "was": row.state}
    print_answer(facts, f"resumed: {clean(row.id)}, it was {row.state}")
    if row.version != VERSION and not Surroundings(store).live:
        advise(f"no worker is running. {output.START_ONE}")
    verb = "show" if row.version == VERSION else "wait"  # shows how to continue a command
    advise(f"next: {command(verb, row.id)}")


@cli.command()
@click.option("--agent", metavar="NAME", help="Lift the kill of this agent.")
@click.option("--label", metavar="K=V", help="Lift the kill of this label.")
@signed
@number("--epoch", help="Lift only if this is still the newest stop.")
@click.option("--yes", is_flag=True, help="Skip the confirmation; required without a terminal.")
@takes_global_options
def reauthorize(
    agent: str | None, label: str | None, why: str, by: str | None, epoch: int | None, yes: bool
) -> int:
    """Allow starts again after a kill or a halt.

    It needs a name and a reason, and starts nothing itself.

    Without --agent or --label: the halt of everything, in the store and on this host. Shows first
    what was stopped, what stays stopped and what may start. On a terminal it asks for the reason
    and for your confirmation; elsewhere give --why and --yes.
    """
    from andon.cli.views import reauthorization_view
    from andon.control.runs.shown_state import Surroundings
    from andon.control.stop import reauthorization
    from andon.control.stop.target import several_runs

    target = several_runs(agent, chosen(None, agent, label, False))
    with _reachable(local=target.scope == "fleet") as (store, away):
        seen = reauthorization.look(store, target, away=away)
        plan = reauthorization.plan(store, seen)
        if not wants_json():
            reauthorization_view.plan(plan)
        if not named(by).strip():
            raise BadInput("A name is required: --by NAME. Nothing was lifted.")
        why = why if why.strip() else _reason()
        if not (yes or _agreed()):
            return ERROR
        done = reauthorization.lift(store, seen, by=named(by), why=why, epoch=epoch)
        alone = store is not None and not Surroundings(store).live
    print_answer({"plan": plan, **done}, lambda _: reauthorization_view.done(plan, done))
    if alone:
        advise(f"no worker is running. {output.START_ONE}")
    return DONE


@contextlib.contextmanager
def _reachable(*, local: bool) -> Iterator[tuple[Any, str]]:
    """Open the store or return why that failed: then only the latch of this host can be lifted."""
    settings = make_settings()
    with contextlib.ExitStack() as stack:
        store, away = None, ""
        try:
            store = stack.enter_context(opened(settings=settings))
            store.now()
        except StoreError as error:
            if not local:
                raise
            why = sentence(str(error))
            store, away = None, f"{why} Stops in the store stay in force"
        yield store, away


def _reason() -> str:
    """Ask the person at the terminal for the reason."""
    if not _has_terminal():
        raise BadInput('A reason is required: --why "…". Nothing was lifted.')
    return str(click.prompt("Reason", err=True, value_proc=_not_blank))


def _not_blank(text: str) -> str:
    if not text.strip():
        raise click.UsageError("a reason is required")
    return text.strip()


def _agreed() -> bool:
    if not _has_terminal():
        raise BadInput("No terminal to confirm on; add --yes. Nothing was lifted.")
    if click.confirm("Reauthorize?", default=False, err=True):
        return True
    advise("Nothing was lifted.")
    return False


def _has_terminal() -> bool:
    return sys.stdin.isatty() and not wants_json()

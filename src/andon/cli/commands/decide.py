"""Commands for the decisions of people."""

import click
import msgspec

from andon.cli import options
from andon.cli.app import advise, cli, opened, print_answer, takes_global_options
from andon.control.runs import run_input
from andon.core.text import clean, command
from andon.host.user import named


@cli.command()
@options.run
@click.argument("decision")
@click.argument("value", required=False)
@click.option("--ask", metavar="ID", help="The ask to answer, if the run has several.")
@options.by
@takes_global_options
def answer(run: str, decision: str, value: str | None, ask: str | None, by: str | None) -> None:
    """Answer what a run asks.

    Decisions: approve, edit VALUE, reject, respond VALUE. For an effect in doubt: happened
    [RESULT], or did-not-happen. For an undo that keeps failing: undone (by hand), try-again, or
    leave.
    """
    from andon.control.runs import runs
    from andon.runtime.requests import requests

    given = None if value is None else run_input.parse(value, "VALUE", advise)
    with opened() as store:
        row = runs.find(store, run)
        name = named(by)
        answered = requests.answer(store, row.id, decision, given, ask=ask, by=name)
    print_answer(
        {"run": row.id, "ask": answered, "decision": decision.replace("-", "_"), "by": name},
        f"answered: {clean(decision)}, by {clean(name) or 'an unnamed person'}",
    )
    advise(f"next: {command('wait', row.id)}")


@cli.command()
@options.run
@click.argument("text", required=False)
@click.option("--revise", metavar="ID", help="Replace the instruction with this id.")
@click.option("--retract", metavar="ID", help="Withdraw the instruction with this id.")
@options.by
@takes_global_options
def steer(
    run: str, text: str | None, revise: str | None, retract: str | None, by: str | None
) -> None:
    """Give a run an instruction, or revise or retract one.

    The run reads it at its next ctx.steered; the instruction is kept in its journal.
    """
    from andon.control.runs import runs
    from andon.runtime.requests import requests

    with opened() as store:
        row = runs.find(store, run)
        word = requests.steer(store, row.id, text, revise=revise, retract=retract, by=named(by))
    facts = {"run": row.id, **msgspec.to_builtins(word)}
    print_answer(facts, f"recorded: {word.id} ({word.change})")
    if word.change != "retract":
        advise(f"to take it back: {command('steer', row.id)} --retract {word.id}")


@cli.command()
@options.run
@click.argument("event")
@click.argument("payload", required=False)
@click.option(
    "--id",
    "message_id",
    metavar="ID",
    help="Send the event once: a second one with this id is ignored.",
)
@takes_global_options
def send(run: str, event: str, payload: str | None, message_id: str | None) -> None:
    """Send an event to a run. It is kept until the run asks for it."""
    from andon.control.runs import runs
    from andon.runtime.requests import requests

    given = None if payload is None else run_input.parse(payload, "PAYLOAD", advise)
    with opened() as store:
        row = runs.find(store, run)
        new = requests.send(store, row.id, event, given, id=message_id)
    facts = {"run": row.id, "event": event, "new": new}
    print_answer(facts, "sent" if new else "already sent; nothing was done")
    advise(f"next: {command('show', row.id)}")


@cli.command()
@options.run
@click.option("--dry-run", is_flag=True, help="Show what would be undone, and change nothing.")
@options.signed
@takes_global_options
def compensate(run: str, dry_run: bool, why: str, by: str | None) -> None:
    """Undo the effects of a run, newest first.

    The run ends as cancelled. A run that is executing is stopped at its next boundary first.
    """
    from andon.cli.views import run_view
    from andon.control.runs import runs
    from andon.control.runs.shown_state import Surroundings
    from andon.runtime.requests import requests

    with opened(look="once" if dry_run else "") as store:
        row = runs.find(store, run)
        plan = runs.undo_plan(store, row)
        if not dry_run:
            requests.compensate(store, row.id, by=named(by), why=why)
        waits = not Surroundings(store).serves(row.agent)
    facts = {"run": row.id, "was": row.state, "dry_run": dry_run, **plan}
    print_answer(facts, run_view.undo_plan)
    if dry_run:
        if plan["undo"]:
            advise(f"nothing was done; to do it: {command('compensate', row.id)}")
        return
    if waits:
        advise(f"the run waits: no running worker serves {clean(row.agent)}, in any version")
    advise(f"next: {command('wait', row.id)}")


@cli.command()
@options.run
@click.option(
    "--to", "version", required=True, metavar="VERSION", help="The version to continue with."
)
@options.by
@options.timeout("30s")
@takes_global_options
def migrate(run: str, version: str, by: str | None, timeout: float) -> int:
    """Continue a run with another version.

    Its code has to match the run's journal. A worker that serves the version replays its code
    against the journal; nothing is executed. If it does not match, the run keeps its version.
    """
    from andon.cli.views import run_view
    from andon.control import migration
    from andon.control.runs import runs

    with opened() as store:
        row = runs.find(store, run)
        name = named(by)
        found = migration.migrate(store, row, version, name, timeout)
    print_answer(found, run_view.migration)
    return {"migrated": 0, "late": 3}.get(found["outcome"], 1)

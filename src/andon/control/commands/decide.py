"""Commands by which people decide."""

import click
import msgspec

from andon.control import output
from andon.control.cli import Seconds, asked, cli, everywhere, opened
from andon.control.people import named


@cli.command()
@click.argument("run")
@click.argument("decision")
@click.argument("value", required=False)
@click.option("--ask", metavar="ID", help="Which ask, if the run has several.")
@click.option(
    "--by", metavar="NAME", envvar="ANDON_BY", help="Who answers (ANDON_BY, else your login)."
)
@everywhere
def answer(run: str, decision: str, value: str | None, ask: str | None, by: str | None) -> None:
    """Answer what a run asks: approve, edit VALUE, reject, respond VALUE.

    For an effect in doubt: happened [RESULT], or did-not-happen. For an undo that keeps failing:
    undone (by hand), try-again, or leave.
    """
    from andon.control import arguments, operations
    from andon.runtime import requests

    given = None if value is None else arguments.parse(value)
    with opened() as store:
        row = operations.find(store, run)
        name = named(by)
        answered = requests.answer(store, row.id, decision, given, ask=ask, by=name)
    if asked().json:
        output.document(
            {"run": row.id, "ask": answered, "decision": decision.replace("-", "_"), "by": name}
        )
    else:
        output.say(f"answered: {output.clean(decision)}, by {output.clean(name) or 'nobody named'}")
        output.note(f"next: {output.command('wait', row.id)}")


@cli.command()
@click.argument("run")
@click.argument("text", required=False)
@click.option("--revise", metavar="ID", help="Instead of what was said under this id.")
@click.option("--retract", metavar="ID", help="What was said under this id holds no longer.")
@click.option("--by", metavar="NAME", envvar="ANDON_BY", help="Who says it.")
@everywhere
def steer(
    run: str, text: str | None, revise: str | None, retract: str | None, by: str | None
) -> None:
    """Tell a run what it is to do: more, something else, or something less.

    It is told at its next ctx.steered, and what it was told is in its journal.
    """
    from andon.control import operations
    from andon.runtime import requests

    with opened() as store:
        row = operations.find(store, run)
        word = requests.steer(store, row.id, text, revise=revise, retract=retract, by=named(by))
    if asked().json:
        output.document({"run": row.id, **msgspec.to_builtins(word)})
    else:
        output.say(f"told: {word.id} ({word.change})")
        if word.change != "retract":
            output.note(f"to take it back: {output.command('steer', row.id)} --retract {word.id}")


@cli.command()
@click.argument("run")
@click.argument("event")
@click.argument("payload", required=False)
@click.option("--id", "message_id", help="Send it once: the same id again does nothing.")
@everywhere
def send(run: str, event: str, payload: str | None, message_id: str | None) -> None:
    """Send an event to a run; it is kept until the run asks for it."""
    from andon.control import arguments, operations
    from andon.runtime import requests

    given = None if payload is None else arguments.parse(payload)
    with opened() as store:
        row = operations.find(store, run)
        new = requests.send(store, row.id, event, given, id=message_id)
    if asked().json:
        output.document({"run": row.id, "event": event, "new": new})
    else:
        output.say("sent" if new else "was sent before; nothing was done")
        output.note(f"next: {output.command('show', row.id)}")


@cli.command()
@click.argument("run")
@click.option("--dry-run", is_flag=True, help="Say what would be undone, and do nothing.")
@click.option("--why", default="", help="A reason, for the journal.")
@click.option("--by", metavar="NAME", envvar="ANDON_BY", help="Who wants it.")
@everywhere
def compensate(run: str, dry_run: bool, why: str, by: str | None) -> None:
    """Undo what a run did, the last first; the run ends as cancelled.

    A run that is executing is given back at its next boundary first.
    """
    from andon.control import operations, screen
    from andon.runtime import requests

    with opened() as store:
        row = operations.find(store, run)
        plan = operations.undo_plan(store, row)
        if not dry_run:
            requests.compensate(store, row.id, by=named(by), why=why)
        waits = not operations.Surroundings(store).carries(row.agent)
    if asked().json:
        output.document({"run": row.id, "was": row.state, "dry_run": dry_run, **plan})
        return
    screen.undo_plan(plan)
    if dry_run:
        output.note(f"nothing was done; to do it: {output.command('compensate', row.id)}")
        return
    if waits:
        output.note(f"it waits: no live worker carries {output.clean(row.agent)} in any version")
    output.note(f"next: {output.command('wait', row.id)}")


@cli.command()
@click.argument("run")
@click.option(
    "--to", "version", required=True, metavar="VERSION", help="The version to go on with."
)
@click.option("--by", metavar="NAME", envvar="ANDON_BY", help="Who wants it.")
@click.option("--timeout", type=Seconds(), default=30.0, show_default=True, metavar="S")
@everywhere
def migrate(run: str, version: str, by: str | None, timeout: float) -> int:
    """Let a run go on with another version, if that version's code fits its journal.

    A worker that carries the version plays its code against the journal; nothing is executed. If
    it does not fit, the run stays with the version it had.
    """
    from andon.control import migrating, operations

    with opened() as store:
        row = operations.find(store, run)
        name = named(by)
        return migrating.migrate(store, row, version, name, timeout, json=asked().json)

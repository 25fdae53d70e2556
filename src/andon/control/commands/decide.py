"""Commands by which people decide."""

import click

from andon.control import output
from andon.control.cli import asked, cli, everywhere, opened
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

    For an effect in doubt: happened [RESULT], or did-not-happen.
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
@everywhere
def resume(run: str) -> None:
    """Let a stranded run go on, once a worker carries the code that fits its journal."""
    from andon.control import operations
    from andon.runtime import requests

    with opened() as store:
        row = requests.resume(store, operations.find(store, run).id)
    if asked().json:
        output.document({"run": row.id, "was": row.state})
    else:
        output.say(f"resumed: {output.clean(row.id)}, it was {row.state}")
        output.note(f"next: {output.command('wait', row.id)}")


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

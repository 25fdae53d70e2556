"""Commands that run agents."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from andon.control import output
from andon.control.cli import advise, asked, cli, everywhere, make_settings, opened


@cli.command()
@click.argument("targets", metavar="MODULE_OR_FILE[:NAME]...", nargs=-1, required=True)
@click.option("--concurrency", type=int, metavar="N", help="How many runs at once.")
@click.option(
    "--lease-seconds", type=float, metavar="S", help="How long a silent worker keeps its runs."
)
@click.option(
    "--grace",
    "grace_seconds",
    type=float,
    metavar="S",
    help="How long to finish steps when told to go.",
)
@click.option(
    "--health-port",
    type=click.IntRange(0, 65_535),
    metavar="N",
    help="Answer probes and metrics there; 0 for any free port.",
)
@click.option(
    "--preemption",
    type=click.Choice(("ec2", "gce", "azure", "auto")),
    help="Drain when this cloud announces that it takes the machine away.",
)
@click.option(
    "--queue", "queues", metavar="NAME", multiple=True, help="Serve only these; may be repeated."
)
@click.option(
    "--promote/--no-promote",
    default=None,
    help="New runs take these versions, also if they were known; or do not, even if they are new.",
)
@click.option(
    "-v", "--verbose", count=True, help="A line for each settled run; -vv for everything."
)
@everywhere
def work(
    targets: Sequence[str],
    queues: Sequence[str],
    promote: bool | None,
    verbose: int,
    **given: Any,
) -> int:
    """Execute runs of the agents in a file or module, until told to go.

    SIGTERM or Ctrl-C: finish the steps in hand, give the runs back, exit 0. Again: cut the steps
    off now. A third time: exit at once.
    """
    settings = make_settings(**given)
    # All of andon is imported before their folder is searched first: their queue.py is theirs.
    from andon.control import loading, working
    from andon.runtime.starting import checked_queue

    served = [checked_queue(queue) for queue in queues]
    agents = [agent for target in targets for agent in loading.load(target)]
    with opened(create=True, settings=settings) as store:
        options = {
            "queues": served,
            "promote": promote is not False,
            "promote_known": promote is True,
        }
        return working.work(store, agents, settings, options, verbose=verbose, json=asked().json)


@cli.command()
@click.argument("target", metavar="MODULE_OR_FILE[:NAME]")
@click.argument("arguments", metavar="[KEY=VALUE]...", nargs=-1)
@click.option(
    "--input",
    "input_file",
    type=click.File("rb"),
    help="A file with the arguments as a JSON object; - for stdin.",
)
@click.option("--id", help="The run's id: the same command goes on with the same run.")
@click.option(
    "--grace", "grace_seconds", type=float, metavar="S", help="How long a drain may take."
)
@click.option("-v", "--verbose", count=True, help="More words; -vv for everything.")
@everywhere
def run(
    target: str, arguments: Sequence[str], input_file: Any, verbose: int, **options: Any
) -> int:
    """Run one agent here, to its end, and print its result; exit 75 if it was saved unfinished.

    SIGTERM or Ctrl-C: the step in hand ends or is cut off, the run is saved. The same command with
    the same --id goes on with it; so does any worker that carries the agent.
    """
    settings = make_settings(grace_seconds=options["grace_seconds"])
    from andon.control import arguments as typed
    from andon.control import loading, running

    given = typed.arguments(arguments, input_file.read() if input_file else None)
    agents = loading.load(target)
    with opened(create=True, settings=settings) as store:
        return running.run(
            store, agents, given, options["id"], settings, verbose=verbose, json=asked().json
        )


@cli.command()
@click.argument("agent")
@click.argument("arguments", metavar="[KEY=VALUE]...", nargs=-1)
@click.option(
    "--input",
    "input_file",
    type=click.File("rb"),
    help="A file with the arguments as a JSON object; - for stdin.",
)
@click.option("--id", help="Start it once: an id names one run for ever.")
@click.option("--priority", type=int, default=0, help="Higher goes first.")
@click.option("--queue", metavar="NAME", help="Where it waits, instead of the agent's queue.")
@click.option("--label", "labels", metavar="K=V", multiple=True, help="May be given several times.")
@click.option("--at", metavar="TIME", help="When: +30s, +5m, +2h, +1d, or ISO 8601.")
@everywhere
def start(agent: str, arguments: Sequence[str], input_file: Any, **options: Any) -> None:
    """Start a run and print its id. Values are JSON if they are JSON, else text."""
    from andon.control import arguments as typed
    from andon.control import operations

    given = typed.arguments(arguments, input_file.read() if input_file else None)
    at: str | None = options.pop("at")
    options["labels"] = dict(typed.pair(label, "label") for label in options["labels"])
    with opened(create=True) as store:
        options["at"] = None if at is None else typed.moment(at, store.now())
        row = operations.start(store, agent, given, on_wait=_waiting_for(agent), **options)
        if asked().json:
            facts = ("id", "agent", "version", "state")
            output.document({name: getattr(row, name) for name in facts})
        else:
            output.say(output.clean(row.id))
        around = operations.Surroundings(store)
        if around.is_forsaken(row):
            advise(f"it waits: {around.who_lacks(row)}. Start one: andon work FILE")


def _waiting_for(agent: str) -> Callable[[], None]:
    return lambda: advise(f"no worker knows agent {output.clean(agent)} yet; waiting for one")

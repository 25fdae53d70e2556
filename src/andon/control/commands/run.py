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


class _Boxed(click.Command):
    """What comes after -- is somebody else's, and no option of it is ours."""

    usage = "| -- COMMAND [ARGUMENT]..."

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[BOXED], args = args[at + 1 :], args[:at]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), self.usage]


class _Options(_Boxed):
    usage = "[-- OPTIONS OF andon work...]"


BOXED = "andon.command"
_ONLY_BOXED = ("name", "labels", "require", "restart", "uid")


@cli.command(cls=_Boxed)
@click.argument("target", metavar="MODULE_OR_FILE[:NAME]", required=False)
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
@click.option("--name", metavar="AGENT", help="Of a command: what it is called.")
@click.option("--label", "labels", metavar="K=V", multiple=True, help="Of a command; repeatable.")
@click.option("--require", metavar="kill=A", help="Of a command: how surely it can be stopped.")
@click.option(
    "--restart", type=click.Choice(("never", "on-failure")), help="Of a command; default: never."
)
@click.option("--uid", metavar="USER", help="Of a command: run it as another user (root only).")
@click.option("-v", "--verbose", count=True, help="More words; -vv for everything.")
@everywhere
def run(
    target: str | None,
    arguments: Sequence[str],
    input_file: Any,
    verbose: int,
    **options: Any,
) -> int:
    """Run one agent here, to its end, and print its result; exit 75 if it was saved unfinished.

    SIGTERM or Ctrl-C: the step in hand ends or is cut off, the run is saved. The same command with
    the same --id goes on with it; so does any worker that carries the agent.

    With -- any command, in any language, is run as an agent under a supervisor: it is listed,
    stopped and proved stopped like every other. The exit code is the command's.
    """
    ctx = click.get_current_context()
    if BOXED in ctx.meta:
        return _run_boxed(ctx.meta[BOXED], target, options)
    if target is None:
        raise click.UsageError("expected MODULE_OR_FILE[:NAME], or -- and a command", ctx)
    for name in _ONLY_BOXED:
        if options[name]:
            raise click.UsageError(f"--{name.rstrip('s')} is for a command after --", ctx)
    settings = make_settings(grace_seconds=options["grace_seconds"])
    from andon.control import arguments as typed
    from andon.control import loading, running

    given = typed.arguments(arguments, input_file.read() if input_file else None)
    agents = loading.load(target)
    with opened(create=True, settings=settings) as store:
        return running.run(
            store, agents, given, options["id"], settings, verbose=verbose, json=asked().json
        )


def _run_boxed(argv: list[str], target: str | None, options: dict[str, Any]) -> int:
    from andon.control import arguments as typed
    from andon.control import upping
    from andon.supervisor import home as homes

    if target is not None or asked().json:
        found = target or "--json"
        raise click.UsageError(f"expected options and -- COMMAND, found {found!r} before the --")
    settings = make_settings(grace_seconds=options["grace_seconds"])
    labels = dict(typed.pair(label, "label") for label in options["labels"])
    command = upping.command_of(argv, options | {"labels": labels})
    require, uid = upping.requirements(options["require"]), upping.user(options["uid"])
    upping.refuse_latched(homes.find())
    with opened(create=True, settings=settings) as store:
        upping.refuse_held(store, command)
    if options["id"] is None:
        output.note(f"run {output.clean(command.run)}")
    child = upping.boxed(settings, command, uid)
    upping.become(upping.spec(settings, children=[child], require=require, command=command))
    return 1


@cli.command(cls=_Options)
@click.argument("targets", metavar="[MODULE_OR_FILE[:NAME]]...", nargs=-1)
@click.option("--workers", type=click.IntRange(1, 1000), default=1, show_default=True, metavar="N")
@click.option("--uid", metavar="USER", help="Run the workers as another user (root only).")
@click.option("--require", metavar="kill=A,pause=C", help="Refuse to start below these grades.")
@click.option(
    "--grace", "grace_seconds", type=float, metavar="S", help="How long a drain may take."
)
@everywhere
def up(targets: Sequence[str], workers: int, **options: Any) -> int:
    """Workers under a supervisor, in the foreground: it restarts, watches and can end them all.

    Without a file it starts no worker and keeps this host attended. Options of `andon work` follow
    after --. SIGTERM or Ctrl-C: drain. Again: at once. SIGUSR1: halt.
    """
    from andon.control import loading, upping

    settings = make_settings(grace_seconds=options["grace_seconds"])
    require, uid = upping.requirements(options["require"]), upping.user(options["uid"])
    with opened(create=True, settings=settings) as store:
        store.now()  # a store that does not answer cannot say that nothing is halted
    for target in targets:
        loading.load(target)  # what cannot be loaded would only crash again and again
    words = [*click.get_current_context().meta.get(BOXED, ()), "--", *targets]
    children = upping.workers(settings, words, workers, uid) if targets else []
    upping.become(upping.spec(settings, children=children, require=require))
    return 1


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
    from andon.runtime import latches

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
        latch = around.latch_on(row)
        if latch is not None:
            how = f"{latches.held_by(latch)}. To lift it: {latches.lift_command(latch)}"
            advise(f"it waits: {output.clean(how)}")
        elif around.is_forsaken(row):
            advise(f"it waits: {around.who_lacks(row)}. Start one: andon work FILE")


def _waiting_for(agent: str) -> Callable[[], None]:
    return lambda: advise(f"no worker knows agent {output.clean(agent)} yet; waiting for one")

"""Commands that run agents."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from andon.cli import options, output
from andon.cli.app import (
    advise,
    cli,
    make_settings,
    opened,
    print_answer,
    takes_global_options,
    takes_global_options_but_json,
    wants_json,
)
from andon.cli.options import F
from andon.core.text import clean


@cli.command()
@click.argument(
    "targets",
    metavar="MODULE_OR_FILE[:NAME]...",
    nargs=-1,
    required=True,
    shell_complete=options.files,
)
@options.number("--concurrency", help="How many runs at once.")
@options.seconds(
    "--lease",
    "lease_seconds",
    old=("--lease-seconds",),
    help="How long a silent worker keeps its runs.",
)
@options.grace
@options.number(
    "--health-port",
    least=0,
    most=65_535,
    help="Serve probes and metrics on this port; 0 for any free port.",
)
@click.option(
    "--preemption",
    type=click.Choice(("ec2", "gce", "azure", "auto")),
    help="Drain when this cloud announces the end of the machine.",
)
@click.option(
    "--queue", "queues", metavar="NAME", multiple=True, help="Serve only this queue; repeatable."
)
@click.option(
    "--promote/--no-promote",
    default=None,
    help="Make new runs use these versions even if they were known, or not even if they are new.",
)
@click.option(
    "-v", "--verbose", count=True, help="A line for each settled run; -vv for everything."
)
@takes_global_options
def work(
    targets: Sequence[str],
    queues: Sequence[str],
    promote: bool | None,
    verbose: int,
    **given: Any,
) -> int:
    """Execute runs of the agents in a file or module.

    It runs until it is stopped. SIGTERM or Ctrl-C: finish the current steps, requeue the runs, exit
    0. Again: cut the steps off now. A third time: exit at once.
    """
    settings = make_settings(**given)
    # Import all of andon before the user's files can be found: a queue.py shadows Python's.
    from andon.cli import loader
    from andon.cli.work import serve
    from andon.runtime.requests.start import checked_queue

    served = [checked_queue(queue) for queue in queues]
    agents = [agent for target in targets for agent in loader.load_to_execute(target)]
    with opened(create=True, settings=settings, lasting=True) as store:
        options = {
            "queues": served,
            "promote": promote is not False,
            "promote_known": promote is True,
        }
        return serve.work(store, agents, settings, options, verbose=verbose)


COMMAND_WORDS = "andon.command"
_ONLY_EXEC = ("name", "labels", "require", "restart", "uid")


class _WithWords(options.Command):
    """A command that keeps the words after -- apart and does not parse options among them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[COMMAND_WORDS], args = args[at + 1 :], args[:at]
        return super().parse_args(ctx, args)


class _Options(_WithWords):
    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- OPTIONS OF andon work...]"]


def _of_commands(*, hidden: bool) -> Callable[[F], F]:
    """Add the options of `andon exec`; `andon run --` was its earlier name."""
    chosen = (
        click.option("--name", metavar="NAME", hidden=hidden, help="The agent's name for it."),
        options.labels(hidden=hidden),
        click.option(
            "--require",
            metavar="kill=A",
            hidden=hidden,
            help="Refuse to start if the grades of this host are lower.",
        ),
        click.option(
            "--restart",
            type=click.Choice(("never", "on-failure")),
            hidden=hidden,
            help="Start it again when it fails; default: never.",
        ),
        click.option(
            "--uid", metavar="USER", hidden=hidden, help="Run it as another user (root only)."
        ),
    )

    def decorated(function: F) -> F:
        for one in reversed(chosen):
            function = one(function)
        return function

    return decorated


@cli.command(cls=_WithWords)
@click.argument(
    "target", metavar="MODULE_OR_FILE[:NAME]", required=False, shell_complete=options.files
)
@click.argument("arguments", metavar="[KEY=VALUE]...", nargs=-1)
@options.given_input
@options.run_id
@options.grace
@_of_commands(hidden=True)
@click.option("-v", "--verbose", count=True, help="Print more; -vv for everything.")
@takes_global_options
def run(
    target: str | None,
    arguments: Sequence[str],
    input_file: Any,
    verbose: int,
    **options: Any,
) -> int:
    """Run one agent here, and print its result.

    Exit 75 if it was saved unfinished. SIGTERM or Ctrl-C: the current step ends or is cut off, the
    run is saved. The same command with the same --id continues it; so does any worker that serves
    the agent.

    A command in any language: andon exec -- COMMAND.
    """
    ctx = click.get_current_context()
    if COMMAND_WORDS in ctx.meta:
        if target is not None:
            raise click.UsageError(
                f"expected options and -- COMMAND, found {target!r} before the --", ctx
            )
        return _execute(ctx.meta[COMMAND_WORDS], options)
    if target is None:
        raise click.UsageError(
            "expected MODULE_OR_FILE[:NAME]; a command: andon exec -- COMMAND", ctx
        )
    for name in _ONLY_EXEC:
        if options[name]:
            raise click.UsageError(f"--{name.rstrip('s')} is for: andon exec -- COMMAND", ctx)
    settings = make_settings(grace_seconds=options["grace_seconds"])
    from andon.cli import args as typed
    from andon.cli import loader
    from andon.cli.work import single_run

    given = typed.arguments(arguments, input_file.read() if input_file else None)
    agent = loader.only(loader.load_to_execute(target))
    given = single_run.checked(agent, given)
    with opened(create=True, settings=settings, lasting=True) as store:
        return single_run.run(store, agent, given, options["id"], settings, verbose=verbose)


@cli.command("exec", context_settings={"allow_interspersed_args": False})
@click.argument("argv", metavar="-- COMMAND [ARGUMENT]...", nargs=-1, type=click.UNPROCESSED)
@options.run_id
@options.grace
@_of_commands(hidden=False)
@takes_global_options_but_json
def execute(argv: Sequence[str], **options: Any) -> int:
    """Run any command as an agent under a supervisor.

    It is listed, stopped and proved stopped like any other run. The exit code is the command's.
    """
    return _execute(list(argv), options)


def _execute(argv: list[str], options: dict[str, Any]) -> int:
    from andon.cli import args as typed
    from andon.cli.work import up as launch
    from andon.host import home as homes

    if wants_json():
        raise click.UsageError(
            "a command prints what it prints, so there is no --json; afterwards: "
            "andon show RUN --json"
        )
    settings = make_settings(grace_seconds=options["grace_seconds"])
    labels = dict(typed.pair(label, "label") for label in options["labels"])
    command = launch.command_run_of(argv, options | {"labels": labels})
    require, uid = launch.requirements(options["require"]), launch.user(options["uid"])
    nowhere = launch.why_nowhere(argv[0])
    if nowhere:
        output.note(f"andon: {clean(nowhere)}")
        return launch.NO_PROGRAM
    launch.refuse_latched(homes.find())
    with opened(create=True, settings=settings, lasting=True) as store:
        launch.refuse_held(store, command)
    if options["id"] is None:
        output.note(f"run {clean(command.run)}")
    child = launch.command_child(settings, command, uid)
    launch.become(launch.spec(settings, children=[child], require=require, command=command))
    return 1


@cli.command(cls=_Options)
@click.argument(
    "targets", metavar="[MODULE_OR_FILE[:NAME]]...", nargs=-1, shell_complete=options.files
)
@options.number("--workers", least=1, most=1000, default=1, help="How many worker processes.")
@click.option("--uid", metavar="USER", help="Run the workers as another user (root only).")
@click.option(
    "--require",
    metavar="kill=A,pause=C",
    help="Refuse to start if the grades of this host are lower.",
)
@options.grace
@takes_global_options
def up(targets: Sequence[str], workers: int, **options: Any) -> int:
    """Run workers under a supervisor, in the foreground.

    It restarts and watches them, and can end them. Without a file it starts no worker and only
    supervises this host. Options of `andon work` follow after --. SIGTERM or Ctrl-C: drain. Again:
    at once. SIGUSR1: halt.
    """
    from andon.cli import loader
    from andon.cli.work import up as launch

    settings = make_settings(grace_seconds=options["grace_seconds"])
    require, uid = launch.requirements(options["require"]), launch.user(options["uid"])
    with opened(create=True, settings=settings, lasting=True) as store:
        store.now()  # without an answer, nothing shows that there is no halt
    for target in targets:
        loader.load(target)  # a target that cannot be loaded would only crash again and again
    words = [*click.get_current_context().meta.get(COMMAND_WORDS, ()), "--", *targets]
    children = launch.worker_children(settings, words, workers, uid) if targets else []
    launch.become(launch.spec(settings, children=children, require=require))
    return 1


@cli.command()
@options.agent
@click.argument("arguments", metavar="[KEY=VALUE]...", nargs=-1)
@options.given_input
@click.option(
    "--id", metavar="ID", help="The run's id; starting the same id again starts nothing new."
)
@click.option(
    "--priority",
    type=options.Whole(),
    default=0,
    metavar="N",
    help="Runs with a higher priority start first.",
)
@click.option("--queue", metavar="NAME", help="The queue to wait in, instead of the agent's.")
@options.labels()
@click.option("--at", metavar="TIME", help="When to start: +30s, +5m, +2h, +1d, or ISO 8601.")
@takes_global_options
def start(agent: str, arguments: Sequence[str], input_file: Any, **options: Any) -> None:
    """Start a run and print its id. Values are read as JSON where that fits, else as text."""
    from andon.cli import args as typed
    from andon.control.runs import run_start
    from andon.control.runs.shown_state import Surroundings
    from andon.runtime.requests import scope_latches

    given = typed.arguments(arguments, input_file.read() if input_file else None)
    at: str | None = options.pop("at")
    options["labels"] = dict(typed.pair(label, "label") for label in options["labels"])
    on_wait = _waiting_for(agent)
    run_start.await_store(make_settings().store, agent, on_wait)
    with opened(create=True) as store:
        options["at"] = None if at is None else typed.moment(at, store.now())
        row = run_start.start(store, agent, given, on_wait=on_wait, warn=advise, **options)
        facts = {name: getattr(row, name) for name in ("id", "agent", "version", "state")}
        print_answer(facts, clean(row.id))
        around = Surroundings(store)
        latch = around.latch_on(row)
        if latch is not None:
            how = f"{scope_latches.held_by(latch)}. To lift it: {scope_latches.lift_command(latch)}"
            advise(f"the run waits: {clean(how)}")
        elif around.lacks_worker(row):
            advise(f"the run waits: {around.missing_worker(row)}. Start one: andon work FILE")


def _waiting_for(agent: str) -> Callable[[], None]:
    printed = False

    def say() -> None:
        nonlocal printed
        if not printed:
            advise(f"no worker knows agent {clean(agent)} yet; waiting for one")
        printed = True

    return say

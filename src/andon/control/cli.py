"""The command line: parses, calls one operation, prints. Imports what a command needs when it runs.

stdout is the answer and stderr everything else; `--json` makes the answer one JSON document.
Exit codes: 0 done, 1 error, 2 usage or bad input, 3 not in time, 4 not found or ambiguous,
130 Ctrl-C. docs/reference/cli.md has a heading for each command.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

import click

from andon.control import output
from andon.control.version import VERSION
from andon.errors import AndonError, BadInput, NotFound, NotStorable, Unresolved

DONE, ERROR, USAGE, LATE, MISSING, INTERRUPTED, UNREAD = 0, 1, 2, 3, 4, 130, 141

_SECTIONS = {
    "Run": ("work", "start"),
    "Look": ("ps", "show", "logs", "wait"),
    "Decide": ("answer", "send", "resume"),
    "Prove": ("verify", "doctor", "version"),
}

F = TypeVar("F", bound=Callable[..., Any])


class _Asked:
    """What was said before or after the command, wherever."""

    store: str | None = None
    json: bool = False


class _Commands(click.Group):
    """Commands by what they are for."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in _SECTIONS.items():
            with formatter.section(title):
                found = [self.commands[name] for name in names]
                formatter.write_dl([(one.name or "", one.get_short_help_str(80)) for one in found])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands and not args[0].startswith("-"):
            close = get_close_matches(args[0], self.commands, 1)
            hint = f"did you mean {close[0]!r}?" if close else "andon --help lists them."
            raise click.UsageError(f"there is no command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)


def _remember(ctx: click.Context, option: click.Parameter, given: Any) -> None:
    if given:
        setattr(ctx.ensure_object(_Asked), option.name or "", given)


def _everywhere(function: F) -> F:
    """The options that every command takes."""
    for name, options in (
        ("--store", {"metavar": "URL", "help": "sqlite:///path or postgresql://… (ANDON_STORE)"}),
        ("--json", {"is_flag": True, "help": "Answer with one JSON document."}),
    ):
        option = click.option(
            name, expose_value=False, callback=_remember, is_eager=True, **options
        )
        function = option(function)
    return function


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 error, 2 usage or bad input, 3 not in time, 4 not found.",
)
@_everywhere
def cli() -> None:
    """Durable runs for AI agents: stop any agent, at any moment, and lose nothing."""


def _asked() -> _Asked:
    return click.get_current_context().ensure_object(_Asked)


def _advise(text: str) -> None:
    """With --json, stderr has an error as JSON or nothing."""
    if not _asked().json:
        output.note(text)


def _settings(**given: Any) -> Any:
    from andon.settings import load

    return load({"store": _asked().store, **given})


@contextlib.contextmanager
def _opened(*, create: bool = False, settings: Any = None) -> Iterator[Any]:
    from andon.store import open_store

    store = open_store((settings or _settings()).store, create=create)
    try:
        yield store
    finally:
        store.close()


# ── run ───────────────────────────────────────────────────────────────────────────────────────


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
    "-v", "--verbose", count=True, help="A line for each settled run; -vv for everything."
)
@_everywhere
def work(targets: Sequence[str], verbose: int, **given: Any) -> int:
    """Execute runs of the agents in a file or module, until told to go.

    SIGTERM or Ctrl-C: finish the steps in hand, give the runs back, exit 0. Again: exit at once.
    """
    settings = _settings(**given)
    # All of andon is imported before their folder is searched first: their queue.py is theirs.
    from andon.control import loading, working

    agents = [agent for target in targets for agent in loading.load(target)]
    with _opened(create=True, settings=settings) as store:
        return working.work(store, agents, settings, verbose=verbose, json=_asked().json)


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
@click.option("--label", "labels", metavar="K=V", multiple=True, help="May be given several times.")
@click.option("--at", metavar="TIME", help="When: +30s, +5m, +2h, +1d, or ISO 8601.")
@_everywhere
def start(agent: str, arguments: Sequence[str], input_file: Any, **options: Any) -> None:
    """Start a run and print its id. Values are JSON if they are JSON, else text."""
    from andon.control import arguments as typed
    from andon.control import operations

    given = typed.arguments(arguments, input_file.read() if input_file else None)
    at: str | None = options.pop("at")
    options["labels"] = dict(typed.pair(label, "label") for label in options["labels"])
    with _opened(create=True) as store:
        options["at"] = None if at is None else typed.moment(at, store.now())
        row = operations.start(store, agent, given, on_wait=_waiting_for(agent), **options)
        if _asked().json:
            facts = ("id", "agent", "version", "state")
            output.document({name: getattr(row, name) for name in facts})
        else:
            output.say(output.clean(row.id))
        if operations.Surroundings(store).is_forsaken(row):
            _advise(
                f"it waits: no live worker carries {row.agent} {row.version}. "
                "Start one: andon work FILE"
            )


def _waiting_for(agent: str) -> Callable[[], None]:
    return lambda: _advise(f"no worker knows agent {output.clean(agent)} yet; waiting for one")


# ── look ──────────────────────────────────────────────────────────────────────────────────────


@cli.command()
@click.option("--all", "everything", is_flag=True, help="Also those that were finished long ago.")
@click.option("--state", "states", multiple=True, help="Only these; may be given several times.")
@click.option("--agent", help="Only runs of this agent.")
@click.option("--label", metavar="K=V", help="Only runs with this label.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)
@click.option("--before", metavar="RUN", help="The next page: runs older than this one.")
@_everywhere
def ps(label: str | None, limit: int, **which: Any) -> None:
    """Runs, newest first: the unfinished ones and those of the last hour."""
    from andon.control import arguments, operations, screen

    pair = arguments.pair(label, "label") if label else None
    with _opened() as store:
        rows = operations.listing(store, label=pair, limit=limit, **which)
    if _asked().json:
        output.document(rows)
    else:
        screen.runs(rows, limit)


@cli.command()
@click.argument("run")
@_everywhere
def show(run: str) -> None:
    """Everything about one run: what it was doing, what it changed, what it asks, what next.

    RUN is an id, its beginning, or @last.
    """
    from andon.control import operations, screen

    with _opened() as store:
        found = operations.show(store, run)
    if _asked().json:
        output.document(found)
    else:
        screen.run(found)


@cli.command()
@click.argument("run")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run is over.")
@_everywhere
def logs(run: str, follow: bool) -> None:
    """What the agent wrote with ctx.log. With --json -f: one JSON document per line."""
    from andon.control import following, operations

    def show_line(line: dict[str, Any]) -> None:
        if _asked().json:
            output.say(output.as_json(line))
        else:
            text = output.clean_lines(line["text"], "    | ")
            output.say(f"{output.clock(line['at'])}  {output.clean(line['level']):<7}  {text}")
        sys.stdout.flush()

    settings = _settings()
    with _opened(settings=settings) as store:
        row = operations.find(store, run)
        if follow:
            following.follow(store, row.id, _patience(settings), show_line)
            return
        found = operations.lines(store, row.id)
    if _asked().json:
        output.document(found)
        return
    for line in found:
        show_line(line)
    if not found:
        _advise("no lines; an agent writes them with ctx.log(text)")


@cli.command()
@click.argument("run")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="S",
    help="Give up after S seconds, with exit code 3.",
)
@_everywhere
def wait(run: str, timeout: float | None) -> int:
    """Wait until a run is over and print its result; exit 0 only if it succeeded."""
    from andon.control import following, operations, waiting

    settings = _settings()
    with _opened(settings=settings) as store:
        row = operations.find(store, run)
        advice = waiting.Advice(store, _advise)
        try:
            over = following.wait(
                store, row.id, timeout=timeout, patience=_patience(settings), on_look=advice.look
            )
        except KeyboardInterrupt:
            _advise(f"stopped waiting; the run goes on: {output.command('show', row.id)}")
            raise
        return waiting.report(store, row.id, over, timeout, json=_asked().json)


def _patience(settings: Any) -> Any:
    from andon.control.following import Patience

    return Patience(
        settings.patience_seconds,
        lambda error: _advise(f"{output.clean(error)} Waiting for it."),
    )


# ── decide ────────────────────────────────────────────────────────────────────────────────────


@cli.command()
@click.argument("run")
@click.argument("decision")
@click.argument("value", required=False)
@click.option("--ask", metavar="ID", help="Which ask, if the run has several.")
@click.option(
    "--by", metavar="NAME", envvar="ANDON_BY", help="Who answers (ANDON_BY, else your login)."
)
@_everywhere
def answer(run: str, decision: str, value: str | None, ask: str | None, by: str | None) -> None:
    """Answer what a run asks: approve, edit VALUE, reject, respond VALUE.

    For an effect in doubt: happened [RESULT], or did-not-happen.
    """
    from andon.control import arguments, operations
    from andon.runtime import requests

    given = None if value is None else arguments.parse(value)
    with _opened() as store:
        row = operations.find(store, run)
        name = _login() if by is None else by
        answered = requests.answer(store, row.id, decision, given, ask=ask, by=name)
    if _asked().json:
        output.document(
            {"run": row.id, "ask": answered, "decision": decision.replace("-", "_"), "by": name}
        )
    else:
        output.say(f"answered: {output.clean(decision)}, by {output.clean(name) or 'nobody named'}")
        output.note(f"next: {output.command('wait', row.id)}")


@cli.command()
@click.argument("run")
@_everywhere
def resume(run: str) -> None:
    """Let a stranded run go on, once a worker carries the code that fits its journal."""
    from andon.control import operations
    from andon.runtime import requests

    with _opened() as store:
        row = requests.resume(store, operations.find(store, run).id)
    if _asked().json:
        output.document({"run": row.id, "was": row.state})
    else:
        output.say(f"resumed: {output.clean(row.id)}, it was {row.state}")
        output.note(f"next: {output.command('wait', row.id)}")


def _login() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


@cli.command()
@click.argument("run")
@click.argument("event")
@click.argument("payload", required=False)
@click.option("--id", "message_id", help="Send it once: the same id again does nothing.")
@_everywhere
def send(run: str, event: str, payload: str | None, message_id: str | None) -> None:
    """Send an event to a run; it is kept until the run asks for it."""
    from andon.control import arguments, operations
    from andon.runtime import requests

    given = None if payload is None else arguments.parse(payload)
    with _opened() as store:
        row = operations.find(store, run)
        new = requests.send(store, row.id, event, given, id=message_id)
    if _asked().json:
        output.document({"run": row.id, "event": event, "new": new})
    else:
        output.say("sent" if new else "was sent before; nothing was done")
        output.note(f"next: {output.command('show', row.id)}")


# ── prove ─────────────────────────────────────────────────────────────────────────────────────


@cli.command()
@click.argument("run", required=False)
@_everywhere
def verify(run: str | None) -> int:
    """Check that the journal, the ledger and the values are what was written."""
    from andon.control import proving

    with _opened() as store:
        return proving.verify(store, run, json=_asked().json)


@cli.command()
@_everywhere
def doctor() -> int:
    """Check the store, the machine and the runs, and say what to do. Changes nothing."""
    from andon.control import proving

    return proving.doctor(_settings().store, json=_asked().json)


@cli.command()
@_everywhere
def version() -> None:
    """Print the version."""
    if _asked().json:
        output.document({"version": VERSION})
    else:
        output.say(f"andon {VERSION}")


# ── how it ends ───────────────────────────────────────────────────────────────────────────────


def run(arguments: list[str]) -> int:
    """Carry a command line out; answers its exit code."""
    output.prepare()
    try:
        code = cli.main(arguments, prog_name="andon", standalone_mode=False)
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 (the last place for words)
        return _explain(error, as_json="--json" in arguments)
    return code if isinstance(code, int) else DONE


def _explain(error: BaseException, *, as_json: bool) -> int:
    match error:
        case click.Abort() | KeyboardInterrupt():
            return INTERRUPTED
        case BrokenPipeError():
            # Whoever read the answer has seen enough; what is left must not fail at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return UNREAD
        case click.exceptions.NoArgsIsHelpError():
            output.note(error.format_message())
            return USAGE
        case click.ClickException():
            before, kind, message = _help_for(error), "Usage", error.format_message()
        case AndonError():
            before, kind = "\n".join(getattr(error, "__notes__", ())), type(error).__name__
            message = str(error)
        case _:
            import traceback

            before, kind = "".join(traceback.format_exception(error)), type(error).__name__
            message = f"{kind}: {error}. This is a defect of andon; please report it."
    _refuse(kind, message, before, as_json=as_json)
    return _exit_code(error)


def _help_for(error: click.ClickException) -> str:
    ctx = getattr(error, "ctx", None)
    return f"{ctx.get_usage()}\nHelp: {ctx.command_path} --help" if ctx else ""


def _exit_code(error: BaseException) -> int:
    match error:
        case NotFound():
            return MISSING
        case BadInput() | NotStorable() | click.UsageError():
            return USAGE
        case Unresolved():
            return LATE
        case _:
            return ERROR


def _refuse(kind: str, message: str, before: str, *, as_json: bool) -> None:
    if as_json:
        output.note(output.as_json({"error": {"type": kind, "message": message}}))
        return
    for line in before.rstrip("\n").split("\n") if before else ():
        output.note(output.clean(line))
    output.note("andon: " + output.clean_lines(message, "  "))

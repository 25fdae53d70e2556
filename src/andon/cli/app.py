"""The command line: parses arguments, calls one operation, prints the answer.

A command's imports happen when it runs. stdout carries the answer and stderr everything else;
`--json` makes the answer one JSON document. Exit codes: 0 done, 1 error, 2 usage or bad input, 3
not in time, 4 not found or ambiguous, 130 Ctrl-C. docs/reference/cli.md has a heading for each
command.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from andon.cli import output, stop_options
from andon.cli.options import Command, F, from_table
from andon.core.text import clean, clean_lines, either
from andon.errors import (
    AndonError,
    BadInput,
    Corrupt,
    NotFound,
    NotStorable,
    StoreError,
    Unresolved,
)

DONE, ERROR, USAGE, LATE, MISSING, INTERRUPTED, UNREAD = 0, 1, 2, 3, 4, 130, 141

# Each section is a module of andon.cli.commands, imported when one of its commands runs.
_SECTIONS = {
    "Stop": ("stop", ("halt", "pause", "cancel", "kill", "receipts")),
    "Start again": ("resume", ("resume", "reauthorize")),
    "Run": ("run", ("init", "up", "work", "run", "exec", "start")),
    "Look": ("inspect", ("ps", "top", "show", "logs", "wait")),
    "Queue": ("queue", ("queues", "limit", "dead", "versions", "promote")),
    "Decide": ("decide", ("answer", "steer", "send", "compensate", "migrate")),
    "Roll out": ("workers", ("deploys", "drain", "workers", "events", "k8s")),
    "Prove": ("check", ("verify", "doctor", "drill", "crashtest", "version")),
}
_FILES = {name: file for file, names in _SECTIONS.values() for name in names}
_FILES["halt"] = "halt"  # handled by fast_path, before any of this is imported
_FILES["k8s"] = "k8s"  # needs no store, nor anything else of its section
_FILES["top"] = "top"
_FILES["init"] = "init"  # runs before there is a store or an agent
_FILES["crashtest"] = "crashtest"  # the only command that needs andon.testing


class GlobalOptions:
    """The options that every command takes, given before or after its name."""

    store: str | None = None
    json: bool = False


class _Unread(Exception):
    """The reader of stdout has gone. click would turn a BrokenPipeError into exit code 1."""


@contextlib.contextmanager
def _past_click() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise _Unread from error


class _Commands(click.Group):
    """The top-level commands, grouped by purpose in the help."""

    command_class = Command

    def make_context(self, *given: Any, **more: Any) -> click.Context:
        with _past_click():  # click prints the help and the version here
            return super().make_context(*given, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with _past_click():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_FILES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _FILES:
            import_module(f"andon.cli.commands.{_FILES[cmd_name]}")
        return self.commands.get(cmd_name)

    def every_command(self) -> dict[str, click.Command]:
        for file in dict.fromkeys(_FILES.values()):
            import_module(f"andon.cli.commands.{file}")
        return {name: self.commands[name] for name in _FILES}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = self.every_command()
        for title, (_, names) in _SECTIONS.items():
            with formatter.section(title):
                lines = [(name, found[name].get_short_help_str(80)) for name in names]
                formatter.write_dl(lines)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in _FILES and not args[0].startswith("-"):
            raise unknown(args[0], _FILES, "andon")
        return super().resolve_command(ctx, args)


class CommandGroup(click.Group):
    """A command that has subcommands."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands and not args[0].startswith("-"):
            raise unknown(args[0], self.commands, ctx.command_path)
        return super().resolve_command(ctx, args)


def unknown(word: str, known: Iterable[str], path: str) -> click.UsageError:
    """Return a usage error that suggests the likely command; andon never executes a guess."""
    meant = stop_options.SIMILAR.get(word.lower(), ()) if path == "andon" else ()
    close = [f"{path} {one}" for one in meant or get_close_matches(word, list(known), 2)]
    hint = f"did you mean {either(close)}?" if close else f"{path} --help lists them."
    return click.UsageError(f"there is no command {word!r}; {hint}")


def _print_version(ctx: click.Context, _: click.Parameter, given: bool) -> None:
    if given:
        from andon.cli.version import VERSION

        output.say(f"andon {VERSION}")
        ctx.exit()


def _remember(ctx: click.Context, option: click.Parameter, given: Any) -> None:
    if given:
        setattr(ctx.ensure_object(GlobalOptions), option.name or "", given)


_GLOBAL: dict[str, Any] = {"expose_value": False, "callback": _remember, "is_eager": True}
takes_global_options = from_table(*stop_options.GLOBAL, **_GLOBAL)


def takes_global_options_but_json(function: F) -> F:
    """Add the global options but hide --json, for commands that refuse it with a reason."""
    store, json = stop_options.GLOBAL
    function = from_table(json, hidden=True, **_GLOBAL)(function)
    return from_table(store, **_GLOBAL)(function)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 error, 2 usage or bad input, 3 not in time, 4 not found.",
)
@takes_global_options
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
def cli() -> None:
    """Durable runs for AI agents: stop any agent, at any moment, and lose nothing.

    In a hurry? `andon halt` stops everything. It is safe: nothing that was saved is lost.
    """


def global_options() -> GlobalOptions:
    return click.get_current_context().ensure_object(GlobalOptions)


def wants_json() -> bool:
    return global_options().json


def print_answer(found: Any, view: str | Callable[[Any], None]) -> None:
    """Print the answer of a command: one JSON document with --json, else the text or the view."""
    if wants_json():
        output.document(found)
    elif callable(view):
        view(found)
    elif view:
        output.say(view)


def advise(text: str) -> None:
    """Print advice on stderr, but not with --json: then stderr has an error as JSON or nothing."""
    if not wants_json():
        output.note(text)


def make_settings(**given: Any) -> Any:
    from andon.settings import load

    return load({"store": global_options().store, **given})


def patience(settings: Any) -> Any:
    """Return how long a command waits for a store that is away; it says so once."""
    from andon.control.changes import Patience

    return Patience(
        settings.patience_seconds,
        lambda error: advise(f"{clean(error)} Waiting for the store."),
    )


def query(question: Callable[..., Any], *details: Any, **options: Any) -> Any:
    """Ask the store a question that changes nothing."""
    with opened(look="once") as store:
        return question(store, *details, **options)


@contextlib.contextmanager
def opened(
    *,
    create: bool = False,
    settings: Any = None,
    look: str = "",
    reserved: bool = True,
    lasting: bool = False,
) -> Iterator[Any]:
    """Open the store for a command that ends soon.

    `look`: the command only reads, "once" or for "long", and may read stores that cannot be
    written. `reserved`: see open_store; not for a command that follows something. `lasting`: the
    process keeps running, so it waits until the database has capacity for it.
    """
    from andon.store import open_store

    url = (settings or make_settings()).store
    if lasting:
        from andon.store.postgres import capacity

        def say(text: str) -> None:
            output.note(clean(text))

        store = capacity.waited_for(lambda: open_store(url, create=create), say)
    else:
        store = open_store(url, create=create, look=look, reserved=reserved)
    try:
        if look and getattr(store, "note", ""):
            advise(f"maybe incomplete: {clean(store.note)}.")
        yield store
    except (AndonError, click.ClickException, click.exceptions.Exit):
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        _refuse_damaged(store, error)
        raise
    finally:
        store.close()


def refuse_copy(store: Any, row: Any = None) -> None:
    """Refuse to wait on a copy of a store: nothing in it changes, so the wait would never end."""
    from andon.core.run import TERMINAL

    still: str = getattr(store, "still", "")
    if still and (row is None or row.state not in TERMINAL):
        raise StoreError(f"{store.url}: nothing will change in what is seen of it ({still}).")


def _refuse_damaged(store: Any, error: Exception) -> None:
    """Raise Corrupt if the store is damaged: an error caused by damage would mislead."""
    from andon.control.verification import verify

    found = verify(store).damage
    if found:
        raise Corrupt(
            f"the store is damaged: {found[0]['what']}. All of it: andon verify. Restore the "
            "database from a backup."
        ) from error


def run(arguments: list[str]) -> int:
    """Execute a command line and return its exit code."""
    output.prepare()
    try:
        code = cli.main(arguments, prog_name="andon", standalone_mode=False)
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 (explains any error)
        return explain(error, as_json="--json" in arguments)
    return code if isinstance(code, int) else DONE


def explain(error: BaseException, *, as_json: bool) -> int:
    """Print an explanation of the error and return the exit code."""
    match error:
        case click.Abort() | KeyboardInterrupt():
            return INTERRUPTED
        case BrokenPipeError() | _Unread():
            # The reader closed the pipe; flushing the remaining output must not fail at exit.
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
        output.note(clean(line))
    output.note("andon: " + clean_lines(message, "  "))

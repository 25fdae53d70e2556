"""Options of the command line: one spelling for one meaning on every command.

Earlier spellings are accepted but not shown. `--all` means everything on commands that act;
commands that look have `--old` for rows of earlier days.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from andon.cli import stop_options
from andon.core import duration

F = TypeVar("F", bound=Callable[..., Any])


class Duration(click.types.FloatParamType):
    """A duration: 10s, 5m, 2h, 1d; a plain number is seconds."""

    name = "duration"

    def __init__(self, least: float = 0.0, most: float = duration.MOST_SECONDS) -> None:
        self.least, self.most = least, most

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        found = duration.seconds(str(value))
        if found is None or not self.least <= found <= self.most:
            wanted = f", {self.least:g}s or more" if self.least else ""
            self.fail(f"{value!r}: expected {duration.EXAMPLES}{wanted}", param, ctx)
        return found


class Whole(click.IntRange):
    """A whole number; a refusal names its limits."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        least = -math.inf if self.min is None else self.min
        most = math.inf if self.max is None else self.max
        with suppress(ValueError):
            if least <= int(value) <= most:
                return int(value)
        wanted = f" from {least:g} on" if math.isfinite(least) else ""
        wanted = f" from {least:g} to {most:g}" if math.isfinite(most) else wanted
        return self.fail(f"{value!r}: expected a whole number{wanted}", param, ctx)


class Spelled(click.Option):
    """An option with earlier spellings, which are accepted but not shown."""

    def __init__(self, names: Sequence[str], old: Sequence[str] = (), **given: Any) -> None:
        super().__init__([*names, *old], **given)
        self.old = tuple(old)

    @contextmanager
    def _shown(self) -> Iterator[None]:
        every, self.opts = self.opts, [one for one in self.opts if one not in self.old]
        try:
            yield
        finally:
            self.opts = every

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        with self._shown():
            return super().get_help_record(ctx)

    def get_error_hint(self, ctx: click.Context | None) -> str:
        with self._shown():
            return super().get_error_hint(ctx)


class Command(click.Command):
    """A command that hides earlier spellings from Tab completion and from suggestions for typos."""

    def _without_old(self, spelled: Iterable[str]) -> list[str]:
        old = {name for one in self.params for name in getattr(one, "old", ())}
        return [name for name in spelled if name not in old]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            near = self._without_old(error.possibilities or ())
            raise click.NoSuchOption(error.option_name, possibilities=near, ctx=ctx) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = super().shell_complete(ctx, incomplete)
        known = set(self._without_old(one.value for one in found))
        return [one for one in found if one.value in known]


def option(*names: str, old: Sequence[str] = (), **given: Any) -> Callable[[F], F]:
    return click.option(*names, cls=Spelled, old=old, **given)


def number(
    *names: str,
    help: str,  # noqa: A002
    least: int | None = None,
    most: int | None = None,
    default: int | None = None,
    old: Sequence[str] = (),
) -> Callable[[F], F]:
    shown: dict[str, Any] = {"default": default, "show_default": default is not None, "help": help}
    return option(*names, old=old, type=Whole(least, most), metavar="N", **shown)


def seconds(
    *names: str,
    help: str,  # noqa: A002
    least: float = 0.0,
    most: float = duration.MOST_SECONDS,
    default: str | None = None,
    old: Sequence[str] = (),
) -> Callable[[F], F]:
    shown: dict[str, Any] = {"default": default, "show_default": default is not None, "help": help}
    return option(*names, old=old, type=Duration(least, most), metavar="TIME", **shown)


def from_table(*options: stop_options.Option, **more: Any) -> Callable[[F], F]:
    """The options of a table, as click has them."""

    def decorated(function: F) -> F:
        for one in reversed(options):
            given: dict[str, Any] = {"help": one.help, "default": one.default, **more}
            if one.kind == stop_options.FLAG:
                given |= {"is_flag": True}
            else:
                given |= {"metavar": one.metavar, "envvar": one.environ, "show_default": one.shown}
            if one.kind == stop_options.SECONDS:
                given |= {"type": Duration()}
                given |= {"default": None if one.default is None else f"{one.default:g}s"}
            function = option(one.name, one.field, old=one.old, **given)(function)
        return function

    return decorated


def _completed(begun: str, question: Callable[[Any], Iterable[str]]) -> list[str]:
    """Return the names in the store that begin so, for the Tab key; an error completes nothing."""
    from andon.settings import load
    from andon.store import open_store

    with suppress(Exception):
        store = open_store(load().store, create=False)
        try:
            return [name for name in question(store) if name.startswith(begun)]
        finally:
            store.close()
    return []


def _runs(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    from andon.control.runs import runs

    return _completed(begun, lambda store: [row["id"] for row in runs.listing(store)])


def _agents(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    return _completed(begun, lambda store: sorted({row.name for row in store.agents()}))


def files(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """Let the shell itself complete file names."""
    return [CompletionItem(begun, type="file")]


def states(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    from andon.control.runs.shown_state import STALLED, STOPPING
    from andon.core.run import State

    return [word for word in (*State, STOPPING, STALLED) if word.startswith(begun)]


run = click.argument("run", shell_complete=_runs)
optional_run = click.argument("run", required=False, shell_complete=_runs)
agent = click.argument("agent", shell_complete=_agents)
# The name and the reason are optional: stopping something needs neither.
signed = from_table(*stop_options.SIGNED)
by = from_table(stop_options.BY)
old = option(
    "--old", "everything", old=("--all",), is_flag=True, help="Include older rows that have ended."
)
of_agent = click.option("--agent", metavar="NAME", help="Only for this agent.")


label = click.option("--label", metavar="K=V", help="Only runs with this label.")
grace = seconds("--grace", "grace_seconds", help="How long a drain may take: 25s, 2m.")


def labels(*, hidden: bool = False) -> Callable[[F], F]:
    what = "A label of the run; repeatable."
    return click.option("--label", "labels", metavar="K=V", multiple=True, hidden=hidden, help=what)


def limit(default: int) -> Callable[[F], F]:
    most = 10_000
    return number("-n", "--limit", least=1, most=most, default=default, help="Show at most N rows.")


def timeout(default: str | None) -> Callable[[F], F]:
    return seconds("--timeout", default=default, help="Wait at most this long, then exit 3.")


def since(default: str) -> Callable[[F], F]:
    what = "How far to look back: 30m, 2h, 7d."
    return seconds("--since", least=0.001, default=default, help=what)


given_input = click.option(
    "--input",
    "input_file",
    type=click.File("rb"),
    metavar="FILE",
    help="A file with the arguments as a JSON object; - for stdin.",
)
run_id = click.option(
    "--id", metavar="ID", help="The run's id; the same id continues the same run."
)

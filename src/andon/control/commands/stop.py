"""Commands that stop, and what is known about it.

Here for help and for mistakes: what is plainly said is carried out before click is imported
(andon.control.giving).
"""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from andon.control import output, words
from andon.control.cli import asked, cli, everywhere, opened, understands

F = TypeVar("F", bound=Callable[..., Any])
# Who says so, and why; neither is needed.
signed = understands(*words.SIGNED)


def whom(function: F) -> F:
    """Who is meant: a run, or a scope."""
    return click.argument("run", required=False)(understands(*words.WHOM)(function))


def _verb(function: F) -> click.Command:
    """A command with the words of its table."""
    named = understands(*words.VERBS[function.__name__])(everywhere(function))
    return cli.command()(click.argument("run", required=False)(named))


@_verb
def pause(**said: Any) -> int:
    """Hold runs at their next boundary; andon resume lets them go on.

    RUN is an id, its beginning, @last, or the name of an agent that has one unfinished run.
    Exit 0 only when it is proved that nothing of it executes any more, 3 if not in time.
    """
    return _stop("pause", said)


@_verb
def cancel(**said: Any) -> int:
    """End runs for good at their next boundary, and undo what can be undone.

    RUN is an id, its beginning, @last, or the name of an agent that has one unfinished run.
    Exit 0 only when it is proved that nothing of it executes any more, 3 if not in time.
    """
    return _stop("cancel", said)


@_verb
def kill(**said: Any) -> int:
    """Stop runs now, from outside, whether they like it or not; andon resume lets them go on.

    RUN is an id, its beginning, @last, or the name of an agent that has one unfinished run.
    Exit 0 only when it is proved that nothing of it executes any more, 3 if not in time.
    """
    return _stop("kill", said)


def chosen(run: str | None, agent: str | None, label: str | None, fleet: bool) -> Any:
    """The label as a pair; one way to say who is meant, and not two."""
    from andon.control.ordering import pair

    _refuse_several({"run": run, "agent": agent, "label": label, "fleet": fleet})
    return pair(label, "label") if label is not None else None


def _refuse_several(said: dict[str, Any]) -> None:
    if words.names_several(said):
        raise click.UsageError(
            "say who once: RUN, --agent, --label or --all", ctx=click.get_current_context()
        )


def _stop(verb: str, said: dict[str, Any]) -> int:
    from andon.control import giving

    _refuse_several(said)
    return giving.stop(verb, **said, store=asked().store, json=asked().json)


@cli.command()
@click.option("--all", "everything", is_flag=True, help="Also those of earlier days.")
@click.option("-n", "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@everywhere
def receipts(everything: bool, limit: int) -> None:
    """Stops, newest first: what was ordered, by whom, and whether it is proved."""
    from andon.control import proofs
    from andon.control import receipts as kept

    with opened() as store:
        found = kept.listing(store, limit, everything=everything)
    if asked().json:
        output.document(found)
    else:
        proofs.listing(found)

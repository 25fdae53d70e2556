"""Commands that stop runs, and the list of receipts.

click uses them for help and for mistakes: a plain command line is executed before click is imported
(andon.cli.fast_path).
"""

from typing import Any

import click

from andon.cli import options, stop_options
from andon.cli.app import cli, global_options, print_answer, query, takes_global_options
from andon.cli.options import F, from_table


def with_target(function: F) -> F:
    """Add the ways to name a target: a run, or a scope."""
    return options.optional_run(from_table(*stop_options.TARGET)(function))


def _verb(function: F) -> click.Command:
    """Make a command with the options of its table."""
    named = from_table(*stop_options.VERBS[function.__name__])(takes_global_options(function))
    return cli.command()(options.optional_run(named))


@_verb
def pause(**given: Any) -> int:
    """Pause runs at their next boundary. andon resume continues them.

    RUN is an id, its beginning, @last, or the name of an agent that has one unfinished run. Exit 0
    only when it is proved that the run no longer executes anything, 3 if not in time.
    """
    return _stop("pause", given)


@_verb
def cancel(**given: Any) -> int:
    """End runs for good, and undo what can be undone. It happens at their next boundary.

    RUN is an id, its beginning, @last, or the name of an agent that has one unfinished run. Exit 0
    only when it is proved that the run no longer executes anything, 3 if not in time.
    """
    return _stop("cancel", given)


@_verb
def kill(**given: Any) -> int:
    """Stop runs now, from outside. andon resume continues them.

    RUN is an id, its beginning, @last, or the name of an agent that has one unfinished run. Exit 0
    only when it is proved that the run no longer executes anything, 3 if not in time.
    """
    return _stop("kill", given)


def chosen(run: str | None, agent: str | None, label: str | None, fleet: bool) -> Any:
    """Parse the label into a pair; refuse more than one way to name the target."""
    from andon.control.stop.target import pair

    _refuse_several({"run": run, "agent": agent, "label": label, "fleet": fleet})
    return pair(label, "label") if label is not None else None


def _refuse_several(given: dict[str, Any]) -> None:
    if stop_options.names_several(given):
        raise click.UsageError(
            "choose one of RUN, --agent, --label and --all", ctx=click.get_current_context()
        )


def _stop(kind: str, given: dict[str, Any]) -> int:
    from andon.cli import fast_path
    from andon.core.stop import StopKind

    _refuse_several(given)
    also = global_options()
    request = fast_path.StopRequest(kind=StopKind(kind), **given, store=also.store, json=also.json)
    return fast_path.stop(request)


@cli.command()
@options.old
@options.limit(50)
@takes_global_options
def receipts(everything: bool, limit: int) -> None:
    """List the orders to stop and their proofs.

    Newest first: what was ordered, by whom, and whether the stop is proved.
    """
    from andon.cli.views import receipt_view
    from andon.control.stop import receipts as kept

    print_answer(query(kept.listing, limit, everything=everything), receipt_view.listing)

"""Commands that stop runs, and the list of receipts.

click uses them for help and for mistakes: a plain command line is executed before click is imported
(andon.cli.fast_path).
"""

from typing import Any

import click

from andon.cli import options, output, stop_options
from andon.cli.app import asked, cli, everywhere, opened
from andon.cli.options import F, understands


def whom(function: F) -> F:
    """Add the ways to name a target: a run, or a scope."""
    return options.perhaps_run(understands(*stop_options.WHOM)(function))


def _verb(function: F) -> click.Command:
    """Make a command with the options of its table."""
    named = understands(*stop_options.VERBS[function.__name__])(everywhere(function))
    return cli.command()(options.perhaps_run(named))


@_verb
def pause(**said: Any) -> int:
    """Pause runs at their next boundary. andon resume continues them.

    RUN is an id, its beginning, @last, or the name of an agent that has one unfinished run. Exit 0
    only when it is proved that nothing of the run executes any more, 3 if not in time.
    """
    return _stop("pause", said)


@_verb
def cancel(**said: Any) -> int:
    """End runs for good, and undo what can be undone. It happens at their next boundary.

    RUN is an id, its beginning, @last, or the name of an agent that has one unfinished run. Exit 0
    only when it is proved that nothing of the run executes any more, 3 if not in time.
    """
    return _stop("cancel", said)


@_verb
def kill(**said: Any) -> int:
    """Stop runs now, from outside. andon resume continues them.

    RUN is an id, its beginning, @last, or the name of an agent that has one unfinished run. Exit 0
    only when it is proved that nothing of the run executes any more, 3 if not in time.
    """
    return _stop("kill", said)


def chosen(run: str | None, agent: str | None, label: str | None, fleet: bool) -> Any:
    """Parse the label into a pair; refuse more than one way to name the target."""
    from andon.control.stop.target import pair

    _refuse_several({"run": run, "agent": agent, "label": label, "fleet": fleet})
    return pair(label, "label") if label is not None else None


def _refuse_several(said: dict[str, Any]) -> None:
    if stop_options.names_several(said):
        raise click.UsageError(
            "choose one of RUN, --agent, --label and --all", ctx=click.get_current_context()
        )


def _stop(verb: str, said: dict[str, Any]) -> int:
    from andon.cli import fast_path

    _refuse_several(said)
    return fast_path.stop(verb, **said, store=asked().store, json=asked().json)


@cli.command()
@options.old
@options.limit(50)
@everywhere
def receipts(everything: bool, limit: int) -> None:
    """List the orders to stop and their proofs.

    Newest first: what was ordered, by whom, and whether the stop is proved.
    """
    from andon.cli.views import receipt_view
    from andon.control.stop import receipts as kept

    with opened(look="once") as store:
        found = kept.listing(store, limit, everything=everything)
    if asked().json:
        output.document(found)
    else:
        receipt_view.listing(found)

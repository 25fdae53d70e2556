"""Commands that look and change nothing."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from andon.cli import options, output
from andon.cli.app import (
    advise,
    cli,
    make_settings,
    opened,
    patience,
    print_answer,
    query,
    refuse_copy,
    takes_global_options,
    wants_json,
)
from andon.core.text import clean, clean_lines, command

RECEIPT = "rcp_"  # the prefix of every receipt's id


@cli.command()
@options.old
@click.option(
    "--state",
    "states",
    metavar="STATE",
    multiple=True,
    shell_complete=options.states,
    help="Only runs in this state; repeatable.",
)
@options.of_agent
@options.label
@options.limit(100)
@click.option("--before", metavar="RUN", help="Show the next page: runs older than this one.")
@click.option(
    "--obligations",
    "owed",
    is_flag=True,
    help="Show the effects that are undone if their run fails.",
)
@click.option("-w", "--watch", is_flag=True, help="Live, like andon top; with --agent or --label.")
@takes_global_options
def ps(label: str | None, limit: int, owed: bool, watch: bool, **which: Any) -> None:
    """List runs, newest first. Without options: unfinished runs, and those of the last hour."""
    from andon.cli import args
    from andon.cli.views import run_view
    from andon.control import obligations
    from andon.control.runs import run_tree, runs

    if watch:
        from andon.cli.commands.top import show as show_live

        if owed or which["states"] or which["before"] or which["everything"]:
            raise click.UsageError("--watch takes --agent and --label, and no other filter")
        show_live(which["agent"], label)
        return
    if owed:
        print_answer(query(obligations.listing, limit), run_view.obligations)
        return
    pair = args.pair(label, "label") if label else None
    if wants_json() or pair or which["states"] or which["agent"]:
        rows = query(runs.listing, label=pair, limit=limit, **which)
    else:
        everything, before = which["everything"], which["before"]
        rows = query(run_tree.tree, limit=limit, before=before, everything=everything)
    print_answer(rows, lambda rows: run_view.runs(rows, limit))


@cli.command()
@options.run
@takes_global_options
def show(run: str) -> None:
    """Show everything about one run, or one stop.

    Prints its last activity, its effects, its open questions, and what to do next.

    RUN is an id, its beginning, @last, the name of an agent that has one unfinished run, or the
    receipt of a stop.
    """
    if run.startswith(RECEIPT):
        from andon.cli.views import receipt_view
        from andon.control.stop import receipts

        print_answer(query(receipts.receipt, run), receipt_view.receipt)
        return
    from andon.cli.views import run_view
    from andon.control.runs import runs

    print_answer(query(runs.show, run), run_view.run)


@cli.command()
@options.run
@click.option("-f", "--follow", is_flag=True, help="Keep printing until the run is over.")
@takes_global_options
def logs(run: str, follow: bool) -> None:
    """Print the log of a run.

    Prints what the agent wrote with ctx.log and its errors, or the output of a command. With
    --json -f: one JSON document per line.
    """
    from andon.control import changes
    from andon.control.runs import command_output, runs

    settings = make_settings()
    looks = "long" if follow else "once"
    with opened(settings=settings, look=looks, reserved=False) as store:
        row = runs.find(store, run)
        if follow:
            refuse_copy(store, row)
        if command_output.is_kept(row):
            _show_output(store, row, follow=follow)
        elif follow:
            changes.follow(store, row.id, patience(settings), _show_line)
        else:
            how = "an agent writes lines with ctx.log(text), and its errors appear here too"
            _show_lines(runs.lines(store, row.id), f"no lines; {how}")


def _show_output(store: Any, row: Any, *, follow: bool) -> None:
    from andon.control.runs import command_output

    path, host = command_output.place(store, row)
    if follow and not host:
        command_output.follow(store, row, path, lambda text: _show_line({"text": text}))
        return
    found = [] if host else [{"text": text} for text in command_output.lines(path)]
    _show_lines(found, command_output.missing(path, host))


def _show_lines(found: Sequence[dict[str, Any]], nothing: str) -> None:
    if wants_json():
        output.document(found)
    else:
        for line in found:
            _show_line(line)
    if not found:
        advise(nothing)


def _show_line(line: dict[str, Any]) -> None:
    """Print a line of a log, or of a command's output, which has neither time nor level."""
    if wants_json():
        output.say(output.as_json(line))
    elif "level" in line:
        text = clean_lines(line["text"], "    | ")
        output.say(f"{output.clock(line['at'])}  {clean(line['level']):<7}  {text}")
    else:
        output.say(clean(line["text"]))
    sys.stdout.flush()


@cli.command()
@options.run
@click.option(
    "--for",
    "goal",
    type=click.Choice(("end", "ask")),
    default="end",
    show_default=True,
    help="Until the run is over, or until it asks a person something.",
)
@options.timeout(None)
@takes_global_options
def wait(run: str, goal: str, timeout: float | None) -> int:
    """Wait until a run is over, and print its result.

    Exit 0 only if it succeeded. With --for ask: until the run has an open ask, and print it; exit
    1 if the run is over before.
    """
    from andon.cli import progress
    from andon.cli.views import wait_view
    from andon.control import changes
    from andon.control.runs import runs

    settings = make_settings()
    with (
        opened(settings=settings, look="long", reserved=False) as store,
        progress.line(json=wants_json()) as line,
    ):
        row = runs.find(store, run)
        advice = wait_view.Advice(store, line.above(advise), line)
        asks = goal == "ask"
        refuse_copy(store, row)
        try:
            over = changes.wait(
                store,
                row.id,
                timeout=timeout,
                patience=patience(settings),
                on_look=advice.look,
                reached=(lambda found: wait_view.has_ask(store, found)) if asks else None,
            )
        except KeyboardInterrupt:
            line.clear()
            advise(f"stopped waiting; the run continues: {command('show', row.id)}")
            raise
        line.clear()
        report = wait_view.report_ask if asks else wait_view.report
        return report(store, row.id, over, timeout)

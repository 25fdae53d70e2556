"""Commands that look and change nothing."""

import sys
from typing import Any

import click

from andon.cli import options, output
from andon.cli.app import advise, asked, cli, everywhere, make_settings, opened, refuse_still
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
@click.option("--label", metavar="K=V", help="Only runs with this label.")
@options.limit(100)
@click.option("--before", metavar="RUN", help="Show the next page: runs older than this one.")
@click.option(
    "--obligations",
    "owed",
    is_flag=True,
    help="Show the effects that are undone if their run fails.",
)
@click.option("-w", "--watch", is_flag=True, help="Live, like andon top; with --agent or --label.")
@everywhere
def ps(label: str | None, limit: int, owed: bool, watch: bool, **which: Any) -> None:
    """List runs, newest first. Without options: unfinished runs, and those of the last hour."""
    from andon.cli import args
    from andon.cli.views import run_view
    from andon.control.runs import runs

    if watch:
        from andon.cli.commands.top import show as show_live

        if owed or which["states"] or which["before"] or which["everything"]:
            raise click.UsageError("--watch takes --agent and --label, and no other filter")
        show_live(which["agent"], label)
        return
    if owed:
        _show_obligations(limit)
        return
    pair = args.pair(label, "label") if label else None
    with opened(look="once") as store:
        if asked().json or pair or which["states"] or which["agent"]:
            rows = runs.listing(store, label=pair, limit=limit, **which)
        else:
            from andon.control.runs import run_tree

            everything, before = which["everything"], which["before"]
            rows = run_tree.tree(store, limit=limit, before=before, everything=everything)
    if asked().json:
        output.document(rows)
    else:
        run_view.runs(rows, limit)


def _show_obligations(limit: int) -> None:
    from andon.cli.views import run_view
    from andon.control import obligations

    with opened(look="once") as store:
        found = obligations.listing(store, limit)
    if asked().json:
        output.document(found)
    else:
        run_view.obligations(found)


@cli.command()
@options.run
@everywhere
def show(run: str) -> None:
    """Show everything about one run, or one stop.

    What it was doing, what it changed, what it asks, and what to do next.

    RUN is an id, its beginning, @last, the name of an agent that has one unfinished run, or the
    receipt of a stop.
    """
    from andon.cli.views import run_view
    from andon.control.runs import runs

    if run.startswith(RECEIPT):
        _show_receipt(run)
        return
    with opened(look="once") as store:
        found = runs.show(store, run)
    if asked().json:
        output.document(found)
    else:
        run_view.run(found)


def _show_receipt(stop_id: str) -> None:
    from andon.cli.views import receipt_view
    from andon.control.stop import receipts

    with opened(look="once") as store:
        found = receipts.receipt(store, stop_id)
    if asked().json:
        output.document(found)
    else:
        receipt_view.receipt(found)


@cli.command()
@options.run
@click.option("-f", "--follow", is_flag=True, help="Keep printing until the run is over.")
@everywhere
def logs(run: str, follow: bool) -> None:
    """Print the log of a run.

    What an agent wrote with ctx.log, its errors, or what a command printed. With --json -f: one
    JSON document per line.
    """
    from andon.control import changes
    from andon.control.runs import command_output, runs

    def show_line(line: dict[str, Any]) -> None:
        if asked().json:
            output.say(output.as_json(line))
        else:
            text = clean_lines(line["text"], "    | ")
            output.say(f"{output.clock(line['at'])}  {clean(line['level']):<7}  {text}")
        sys.stdout.flush()

    settings = make_settings()
    looks = "long" if follow else "once"
    with opened(settings=settings, look=looks, reserved=False) as store:
        row = runs.find(store, run)
        if follow:
            refuse_still(store, row)
        if command_output.is_kept(row):
            _show_output(store, row, follow=follow)
            return
        if follow:
            changes.follow(store, row.id, _patience(settings), show_line)
            return
        found = runs.lines(store, row.id)
    if asked().json:
        output.document(found)
        return
    for line in found:
        show_line(line)
    if not found:
        advise("no lines; an agent writes lines with ctx.log(text), and its errors appear here too")


def _show_output(store: Any, row: Any, *, follow: bool) -> None:
    from andon.control.runs import command_output

    def show_line(text: str) -> None:
        output.say(output.as_json({"text": text}) if asked().json else clean(text))
        sys.stdout.flush()

    path, host = command_output.place(store, row)
    if follow and not host:
        command_output.follow(store, row, path, show_line)
        return
    found = [] if host else list(command_output.lines(path))
    if asked().json:
        output.document([{"text": text} for text in found])
    else:
        for text in found:
            show_line(text)
    if not found:
        advise(command_output.missing(path, host))


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
@everywhere
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
        progress.line(json=asked().json) as line,
    ):
        row = runs.find(store, run)
        advice = wait_view.Advice(store, line.above(advise), line)
        asks = goal == "ask"
        refuse_still(store, row)
        try:
            over = changes.wait(
                store,
                row.id,
                timeout=timeout,
                patience=_patience(settings),
                on_look=advice.look,
                reached=(lambda found: wait_view.has_ask(store, found)) if asks else None,
            )
        except KeyboardInterrupt:
            line.clear()
            advise(f"stopped waiting; the run continues: {command('show', row.id)}")
            raise
        line.clear()
        report = wait_view.report_ask if asks else wait_view.report
        return report(store, row.id, over, timeout, json=asked().json)


def _patience(settings: Any) -> Any:
    from andon.control.changes import Patience

    return Patience(
        settings.patience_seconds,
        lambda error: advise(f"{clean(error)} Waiting for the store."),
    )

"""Commands that look and change nothing."""

import sys
from typing import Any

import click

from andon.control import output
from andon.control.cli import Seconds, advise, asked, cli, everywhere, make_settings, opened

RECEIPT = "rcp_"  # how the id of every receipt begins


@cli.command()
@click.option("--all", "everything", is_flag=True, help="Also those that were finished long ago.")
@click.option("--state", "states", multiple=True, help="Only these; may be given several times.")
@click.option("--agent", help="Only runs of this agent.")
@click.option("--label", metavar="K=V", help="Only runs with this label.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)
@click.option("--before", metavar="RUN", help="The next page: runs older than this one.")
@click.option("--obligations", "owed", is_flag=True, help="What is undone if its run ends badly.")
@everywhere
def ps(label: str | None, limit: int, owed: bool, **which: Any) -> None:
    """Runs, newest first: the unfinished ones and those of the last hour."""
    from andon.control import arguments, operations, screen

    if owed:
        _show_obligations(limit)
        return
    pair = arguments.pair(label, "label") if label else None
    with opened() as store:
        rows = operations.listing(store, label=pair, limit=limit, **which)
    if asked().json:
        output.document(rows)
    else:
        screen.runs(rows, limit)


def _show_obligations(limit: int) -> None:
    from andon.control import obligations

    with opened() as store:
        found = obligations.listing(store, limit)
    if asked().json:
        output.document(found)
    else:
        obligations.show(found)


@cli.command()
@click.argument("run")
@everywhere
def show(run: str) -> None:
    """Everything about one run: what it was doing, what it changed, what it asks, what next.

    RUN is an id, its beginning, @last, the name of an agent that has one unfinished run, or the
    receipt of a stop.
    """
    from andon.control import operations, screen

    if run.startswith(RECEIPT):
        _show_receipt(run)
        return
    with opened() as store:
        found = operations.show(store, run)
    if asked().json:
        output.document(found)
    else:
        screen.run(found)


def _show_receipt(stop_id: str) -> None:
    from andon.control import proofs, receipts

    with opened() as store:
        found = receipts.receipt(store, stop_id)
    if asked().json:
        output.document(found)
    else:
        proofs.receipt(found)


@cli.command()
@click.argument("run")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run is over.")
@everywhere
def logs(run: str, follow: bool) -> None:
    """What the agent wrote with ctx.log, or a command printed. With --json -f: a line each."""
    from andon.control import following, operations, outputs

    def show_line(line: dict[str, Any]) -> None:
        if asked().json:
            output.say(output.as_json(line))
        else:
            text = output.clean_lines(line["text"], "    | ")
            output.say(f"{output.clock(line['at'])}  {output.clean(line['level']):<7}  {text}")
        sys.stdout.flush()

    settings = make_settings()
    with opened(settings=settings) as store:
        row = operations.find(store, run)
        if outputs.is_kept(row):
            _show_output(store, row, follow=follow)
            return
        if follow:
            following.follow(store, row.id, _patience(settings), show_line)
            return
        found = operations.lines(store, row.id)
    if asked().json:
        output.document(found)
        return
    for line in found:
        show_line(line)
    if not found:
        advise("no lines; an agent writes them with ctx.log(text)")


def _show_output(store: Any, row: Any, *, follow: bool) -> None:
    from andon.control import outputs

    def show_line(text: str) -> None:
        output.say(output.as_json({"text": text}) if asked().json else output.clean(text))
        sys.stdout.flush()

    path, host = outputs.place(store, row)
    if follow and not host:
        outputs.follow(store, row, path, show_line)
        return
    found = [] if host else list(outputs.lines(path))
    if asked().json:
        output.document([{"text": text} for text in found])
    else:
        for text in found:
            show_line(text)
    if not found:
        advise(outputs.missing(path, host))


@cli.command()
@click.argument("run")
@click.option(
    "--timeout",
    type=Seconds(),
    metavar="S",
    help="Give up after S seconds, with exit code 3.",
)
@everywhere
def wait(run: str, timeout: float | None) -> int:
    """Wait until a run is over and print its result; exit 0 only if it succeeded."""
    from andon.control import following, operations, waiting

    settings = make_settings()
    with opened(settings=settings) as store:
        row = operations.find(store, run)
        advice = waiting.Advice(store, advise)
        try:
            over = following.wait(
                store, row.id, timeout=timeout, patience=_patience(settings), on_look=advice.look
            )
        except KeyboardInterrupt:
            advise(f"stopped waiting; the run goes on: {output.command('show', row.id)}")
            raise
        return waiting.report(store, row.id, over, timeout, json=asked().json)


def _patience(settings: Any) -> Any:
    from andon.control.following import Patience

    return Patience(
        settings.patience_seconds,
        lambda error: advise(f"{output.clean(error)} Waiting for it."),
    )

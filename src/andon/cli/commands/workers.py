"""Commands for workers that come and go."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from andon.cli import options, output
from andon.cli.app import (
    DONE,
    ERROR,
    LATE,
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
from andon.core.text import age, clean


@cli.command()
@click.argument("action", type=click.Choice(["watch"]), required=False)
@options.since("24h")
@click.option(
    "--fail-on",
    metavar="WORDS",
    help="Exit with 1 if there was any of: lost,doubled,unresumed,cut,overrun,in_doubt.",
)
@options.timeout(None)
@options.seconds(
    "--settle", default="10s", help="watch: over once no worker has left for this long."
)
@takes_global_options
def deploys(
    action: str | None, since: float, fail_on: str | None, timeout: float | None, settle: float
) -> int:
    """Report what happened to runs when workers left.

    `watch` follows the current or next deploy.
    """
    from andon.cli.views import deploy_view
    from andon.control import deploys as derived

    words = derived.failures_named(fail_on) if fail_on is not None else []
    settings = make_settings()
    over = True
    with opened(settings=settings, look="long" if action else "once") as store:
        if action == "watch":
            refuse_copy(store)
            one, over = _watch(store, settings, timeout, settle)
            found = [one] if one is not None else []
        else:
            found = derived.recent(
                store,
                store.now() - since,
                lease_seconds=settings.lease_seconds,
            )
    if wants_json():
        output.document((found[0] if found else None) if action else found)
    elif found or not action:
        deploy_view.listing(found, settings.orchestrator_grace_seconds)
    failed = derived.failed(found, words)
    if failed:
        advise(deploy_view.refuse(failed))
        return ERROR
    if not over:
        what = "the deploy was not over" if found else "no worker left"
        advise(f"{what} within {timeout or 0:g} s. Look: andon deploys")
    return DONE if over else LATE


def _watch(store: Any, settings: Any, timeout: float | None, settle: float) -> Any:
    from andon.cli.views import deploy_view
    from andon.control import deploys as derived

    progress = deploy_view.DeployProgress(advise, animated=sys.stderr.isatty() and not wants_json())
    waiting = False

    def query(one: Any) -> None:
        nonlocal waiting
        if one is not None:
            progress.show(one)
        elif not waiting:
            waiting = True
            advise("no worker is leaving; waiting for the next deploy")

    try:
        return derived.watch(
            store,
            patience=patience(settings),
            timeout=timeout,
            settle_seconds=settle,
            lease_seconds=settings.lease_seconds,
            on_look=query,
        )
    except KeyboardInterrupt:
        advise("stopped watching; the deploy continues: andon deploys")
        raise


@cli.command()
@click.argument("names", metavar="[WORKER]...", nargs=-1)
@click.option("--self", "this", is_flag=True, help="The workers of this container or machine.")
@click.option("--all", "everyone", is_flag=True, help="Every live worker.")
@click.option("--no-wait", is_flag=True, help="Do not wait.")
@options.timeout("5m")
@options.by
@takes_global_options
def drain(
    names: Sequence[str], this: bool, everyone: bool, no_wait: bool, timeout: float, by: str | None
) -> int:
    """Ask workers to finish or save their runs, and exit.

    Waits until they have ended. WORKER is an id, the beginning of one, or a host name.
    """
    from andon.cli import drain as executing

    if sum((bool(names), this, everyone)) != 1:
        raise click.UsageError(
            "say which workers: WORKER..., --self or --all", ctx=click.get_current_context()
        )
    options = executing.DrainOptions(
        names=tuple(names), this=this, timeout=0.0 if no_wait else timeout, waits=not no_wait, by=by
    )
    return executing.drain(make_settings(), options)


@cli.command()
@options.old
@takes_global_options
def workers(everything: bool) -> None:
    """List workers: their host, state, runs and agents."""
    from andon.cli.views import deploy_view
    from andon.control import workers as fleet

    print_answer(query(fleet.workers, everything=everything), deploy_view.workers)


@cli.command()
@click.option("-f", "--follow", is_flag=True, help="Keep printing until Ctrl-C.")
@options.since("1h")
@takes_global_options
def events(follow: bool, since: float) -> None:
    """List what happened to workers, versions and runs.

    With --json -f: one JSON document per line.
    """
    from andon.cli.table import hang
    from andon.control import events as recorded

    def show_line(event: dict[str, Any]) -> None:
        if wants_json():
            output.say(output.as_json(event))
        else:
            words = clean(recorded.describe(event), 500)
            hang(f"{output.clock(event['at'])}  {clean(event['kind']):<18}  ", words)
        sys.stdout.flush()

    def show_lines(found: Sequence[dict[str, Any]]) -> None:
        for event in found:
            show_line(event)

    settings = make_settings()
    with opened(settings=settings, look="long" if follow else "once") as store:
        begin = store.now() - since
        if follow:
            refuse_copy(store)
            recorded.follow(store, begin, patience(settings), show_line)
            return
        found = recorded.recent(store, begin)
    print_answer(found, show_lines)
    if not found:
        advise(f"no events in the last {age(since)}; --since 7d looks further back")

"""Commands about workers that come and go."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from andon.control import output
from andon.control.cli import (
    DONE,
    ERROR,
    LATE,
    Seconds,
    advise,
    asked,
    cli,
    everywhere,
    make_settings,
    opened,
)


def _patience(settings: Any) -> Any:
    from andon.control.following import Patience

    return Patience(
        settings.patience_seconds,
        lambda error: advise(f"{output.clean(error)} Waiting for it."),
    )


@cli.command()
@click.argument("action", type=click.Choice(["watch"]), required=False)
@click.option("--since", default="24h", show_default=True, metavar="TIME", help="30m, 2h, 7d, …")
@click.option(
    "--fail-on",
    metavar="WORDS",
    help="Exit with 1 if there was any of: lost,doubled,unresumed,cut,overrun,in_doubt.",
)
@click.option("--timeout", type=Seconds(), metavar="S", help="watch: not longer.")
@click.option(
    "--settle",
    type=Seconds(),
    default=10.0,
    show_default=True,
    metavar="S",
    help="watch: over once nobody has left for so long.",
)
@everywhere
def deploys(
    action: str | None, since: str, fail_on: str | None, timeout: float | None, settle: float
) -> int:
    """What became of the runs when workers left; `watch` follows the current or next deploy."""
    from andon.control import arguments, rollouts
    from andon.control import deploys as derived

    words = derived.failures_named(fail_on) if fail_on is not None else []
    settings = make_settings()
    over = True
    with opened(settings=settings) as store:
        if action == "watch":
            one, over = _watch(store, settings, timeout, settle)
            found = [one] if one is not None else []
        else:
            found = derived.recent(
                store,
                store.now() - arguments.seconds(since),
                lease_seconds=settings.lease_seconds,
            )
    if asked().json:
        output.document((found[0] if found else None) if action else found)
    elif found or not action:
        rollouts.listing(found, settings.orchestrator_grace_seconds)
    failed = derived.failed(found, words)
    if failed:
        advise(rollouts.refuse(failed))
        return ERROR
    if not over:
        what = "it was not over" if found else "no worker left"
        advise(f"{what} within {timeout or 0:g} s. Look: andon deploys")
    return DONE if over else LATE


def _watch(store: Any, settings: Any, timeout: float | None, settle: float) -> Any:
    from andon.control import rollouts

    progress = rollouts.Progress(advise, animated=sys.stderr.isatty() and not asked().json)
    waiting = False

    def look(one: Any) -> None:
        nonlocal waiting
        if one is not None:
            progress.show(one)
        elif not waiting:
            waiting = True
            advise("nobody leaves; waiting for the next deploy")

    try:
        return rollouts.watch(
            store,
            patience=_patience(settings),
            timeout=timeout,
            settle_seconds=settle,
            lease_seconds=settings.lease_seconds,
            on_look=look,
        )
    except KeyboardInterrupt:
        advise("stopped watching; the deploy goes on: andon deploys")
        raise


@cli.command()
@click.argument("names", metavar="[WORKER]...", nargs=-1)
@click.option("--self", "this", is_flag=True, help="The workers of this container or machine.")
@click.option("--all", "everyone", is_flag=True, help="Every live worker.")
@click.option("--no-wait", is_flag=True, help="Only ask.")
@click.option(
    "--timeout",
    type=Seconds(),
    default=300.0,
    show_default=True,
    metavar="S",
    help="Wait no longer, and exit with 3.",
)
@click.option(
    "--by", metavar="NAME", envvar="ANDON_BY", help="Who asks (ANDON_BY, else your login)."
)
@everywhere
def drain(
    names: Sequence[str], this: bool, everyone: bool, no_wait: bool, timeout: float, by: str | None
) -> int:
    """Ask workers to finish or save what they have in hand and to go; wait until they have gone.

    WORKER is an id, the beginning of one, or a host name.
    """
    from andon.control import drain as telling

    if sum((bool(names), this, everyone)) != 1:
        raise click.UsageError(
            "say who: WORKER..., --self or --all", ctx=click.get_current_context()
        )
    settings = make_settings()
    order = telling.Order(
        names=tuple(names), this=this, timeout=0.0 if no_wait else timeout, waits=not no_wait, by=by
    )
    return telling.drain(settings, order, _patience(settings), advise, json=asked().json)


@cli.command()
@click.option("--all", "everything", is_flag=True, help="Also those that ended in the last day.")
@everywhere
def workers(everything: bool) -> None:
    """Workers: where they are, how they stand, what they carry."""
    from andon.control import fleet, rollouts

    with opened() as store:
        found = fleet.workers(store, everything=everything)
    if asked().json:
        output.document(found)
    else:
        rollouts.workers(found)


@cli.command()
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C.")
@click.option("--since", default="1h", show_default=True, metavar="TIME", help="30m, 2h, 7d, …")
@everywhere
def events(follow: bool, since: str) -> None:
    """What happened to workers, versions and runs. With --json -f: one JSON document per line."""
    from andon.control import arguments, happenings

    def show_line(event: dict[str, Any]) -> None:
        if asked().json:
            output.say(output.as_json(event))
        else:
            words = output.clean(happenings.told(event), 500)
            output.say(f"{output.clock(event['at'])}  {output.clean(event['kind']):<18}  {words}")
        sys.stdout.flush()

    seconds = arguments.seconds(since)
    settings = make_settings()
    with opened(settings=settings) as store:
        begin = store.now() - seconds
        if follow:
            happenings.follow(store, begin, _patience(settings), show_line)
            return
        found = happenings.recent(store, begin)
    if asked().json:
        output.document(found)
        return
    for event in found:
        show_line(event)
    if not found:
        advise(f"nothing happened in the last {since}; --since 7d looks further back")

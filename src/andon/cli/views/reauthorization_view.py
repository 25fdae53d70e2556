"""Reauthorizations on a terminal: the plan before, and the next commands after."""

from typing import Any

from andon.cli.output import clock, joined, note, say, symbol
from andon.core.text import clean, command, plural

# Further rows are counted, not listed.
MOST = 10


def plan(found: dict[str, Any]) -> None:
    """Print what was stopped, what stays stopped and what may start."""
    for one in found["lifts"]:
        _pulled(f"{one['order']} of {found['whom']}", one, one["receipt"])
    host = found["host"]
    if host:
        _pulled(f"the latch of this host, {host['home']}", host, host["order"])
        if host["unreadable"]:
            say(clean(f"    it could not be read: {host['unreadable']}"))
    if found["away"]:
        say(clean(f"  store     {found['away']}"))
    _stays(found)
    say(f"  may begin {found['starts']}")


def _pulled(what: str, one: dict[str, Any], receipt: str) -> None:
    by = f" by {one['by'] or 'an unnamed person'}"
    via = f" through {one['via']}" if one["via"] else ""
    why = f": {one['why']}" if one["why"] else ""
    order = f"  ({receipt})" if receipt else ""
    text = f"  pulled    {clock(one['at'])}{by}{via}{why}: {what}, epoch {one['epoch']}{order}"
    say(clean(text, 1000))


def _stays(found: dict[str, Any]) -> None:
    stays = found["stays"]
    if stays:
        agents = joined([f"{name} {count:,}" for name, count in list(stays.items())[:MOST]])
        runs = plural(sum(stays.values()), "run")
        say(clean(f"  stays     {runs} stopped until resumed: {agents}", 1000))
    for label, rows, words in (
        ("in doubt", found["in_doubt"], _effect),
        ("unproved", found["unproved"], _target),
        ("suspect", found["suspects"], _suspect),
    ):
        for row in rows[:MOST]:
            say(clean(f"  {label:<9} {words(row)}", 500))
        if len(rows) > MOST:
            say(f"  {label:<9} and {len(rows) - MOST:,} more (--json has them all)")
    for text in found["still_held"]:
        say(clean(f"  held      {text}", 500))


def _effect(one: dict[str, Any]) -> str:
    return f"effect {one['name']} {one['key']} of run {one['run']}: did it happen?"


def _target(one: dict[str, Any]) -> str:
    return f"{one['target'].replace(':', ' ', 1)} is {one['stage']}: it may still execute"


def _suspect(run_id: str) -> str:
    return f"run {run_id} was interrupted repeatedly: check it before you resume it"


def done(found: dict[str, Any], outcome: dict[str, Any]) -> None:
    """Print who lifted which stops, and the commands that let runs continue."""
    where = [f"receipt {one}" for one in outcome["lifted"]]
    where += [f"the latch of this host ({outcome['host']})"] if outcome["host"] else []
    say(clean(f"{symbol('done')} lifted by {outcome['by']}: {', '.join(where)}"))
    if found["away"]:
        say(clean(f"{symbol('unproved')} only this host: {found['away']}"))
    if found["away"]:
        return
    resumable = outcome["resumable"]
    if not resumable:
        note("Nothing waits to be resumed. New runs can start.")
        return
    count = plural(sum(resumable.values()), "run")
    note(f"New runs can start. {count} stopped until resumed:")
    for name in list(resumable)[:MOST]:
        note(f"next: {command('resume', options=('--agent', name))}")
    if len(resumable) > 1:
        note("next: andon resume --all   (or: andon resume --all --except AGENT)")

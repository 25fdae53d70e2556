"""Receipts on a terminal. Only a proved stop is called stopped."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from andon.cli.colour import paint, tinted
from andon.cli.output import clock, joined, note, say, symbol
from andon.cli.table import column, hang, table
from andon.control.stop.processes import KillOutcome
from andon.core.run import TERMINAL
from andon.core.stop import OPEN, Stage, StopKind, StopScope
from andon.core.text import age, clean, command, length, plural
from andon.runtime.requests.scope_latches import options

# Further rows are counted, not listed.
MOST_ROWS = 20
# The facts shown of a supervisor's report; the others are on the lines above, or in --json.
MEASURED = ("latch_error", "latched_ms", "killed_ms", "verified_ms", "processes")
HEADLINES = {
    "proved": "STOPPED, proved",
    "nothing": "nothing to stop",
    "unproved": "NOT PROVED",
    "stopping": "stopping",
}
_HELD = ("paused", "killed", "stranded")
_BEFORE = "it had ended before: "


def listing(found: Sequence[dict[str, Any]]) -> None:
    """Print the table of `andon receipts`."""
    none = "no receipts of the last day; andon receipts --old lists older ones"
    if table(RECEIPTS, found, none=none):
        note(f"next: {command('show', found[0]['id'])}")


def _stand(one: dict[str, Any]) -> str:
    words = [f"{symbol(one['verdict'])} {HEADLINES[one['verdict']]}"]
    found = one["verdict"] if one["scope"] != StopScope.RUN else ""
    if found in ("proved", "nothing") and not one["stages"] and not one["waiting"]:
        words = [f"{symbol('nothing')} nothing was executing"]
    latch = one["latch"]
    if latch:
        words.append("holds" if latch["in_force"] else f"lifted by {latch['lifted_by'] or '-'}")
    if one["by"] or one["why"]:
        words.append(_said(one))
    return tinted(clean("; ".join(words), 300), one["verdict"])


def _said(found: dict[str, Any]) -> str:
    why = f": {found['why']}" if found["why"] else ""
    return f"by {found['by'] or 'an unnamed person'}{why}"


RECEIPTS = (
    column("RECEIPT", of="id", whole=True),
    column("ORDER"),
    column("WHOM", 2, lambda one: clean(one["whom"], 60), least=12),
    column("ASKED", 3, lambda one: clock(one["asked_at"])),
    column("TARGETS", 4, lambda one: sum(one["stages"].values()) + one["waiting"]),
    column("HOW IT STANDS", 1, _stand, least=18),
)


def receipt(
    found: dict[str, Any],
    outcomes: Mapping[str, KillOutcome] | None = None,
    waited: float | None = None,
) -> None:
    """Print the page of a receipt; `waited` is how long a command waited for the proof."""
    left = any(one.evidence for one in (outcomes or {}).values())
    first = headline(found, waited, left=left)
    say(paint(tinted(clean(first, 1000), _verdict(found, waited))))
    via = f", through {found['via']}" if found["via"] else ""
    say(f"  asked     {clock(found['asked_at'])} {clean(_said(found))}{clean(via)}")
    rows = found["targets"]
    for line in rows[:MOST_ROWS]:
        _row(found, line, (outcomes or {}).get(line["worker"]))
    if len(rows) > MOST_ROWS:
        stages = ", ".join(f"{count:,} {stage}" for stage, count in found["stages"].items())
        say(f"  ... {len(rows) - MOST_ROWS:,} more (--json has them all): {stages}")
    _waiting(found)
    _effects(found["effects"])
    _measured(found["measured"])
    _latch(found)
    say(f"  receipt   {clean(found['id'])}")
    note(f"next: {next_command(found)}")


def _verdict(found: dict[str, Any], waited: float | None) -> str:
    """A stop that is not proved when the wait ends is *unproved*, not *stopping*."""
    return "unproved" if waited is not None and not _is_over(found) else str(found["verdict"])


def _is_over(found: dict[str, Any]) -> bool:
    return found["verdict"] in ("proved", "nothing")


def _waiting(found: dict[str, Any]) -> None:
    run = found["run"]
    if found["waiting"] == 1 and run and not found["targets"]:
        say(clean(f"  proved    no worker executed it; now {_now(run)}"))
    elif found["waiting"]:
        say(f"  waiting   {plural(found['waiting'], 'run')} that no worker executed: stopped too")


def headline(found: dict[str, Any], waited: float | None = None, *, left: bool = False) -> str:
    """Return the first line; the worst row decides.

    `left`: this order ended something that an earlier one had left.
    """
    what = f"{found['order']} of {_whom(found)}"
    ended = _ended_before(found)
    if _is_over(found) and not found["targets"] and not found["waiting"] and not ended:
        if left:
            return f"{symbol('proved')} {what}: what an earlier order had left is ended"
        if held := _held_before(found):
            whom = _whom(found)
            return f"{symbol('nothing')} nothing to stop: {whom} was already {held}"
        return f"{symbol('nothing')} {what}: nothing of it was executing"
    if ended:
        at = clock(found["run"]["changed_at"])
        had = {"dead": "died", "cancelled": "been cancelled"}.get(ended, ended)
        return f"{symbol(ended)} nothing to stop: {_whom(found)} had {had} at {at}"
    took = "" if found["took_seconds"] is None else f"  ({length(found['took_seconds'])})"
    word = HEADLINES[found["verdict"]]
    if waited is not None and not _is_over(found):
        return f"{symbol('unproved')} NOT PROVED after {length(waited)}  {what}"
    return f"{symbol(found['verdict'])} {word}  {what}{took}"


def _whom(found: dict[str, Any]) -> str:
    run = found.get("run")
    return f"{found['whom']} ({run['agent']})" if run else str(found["whom"])


def _ended_before(found: dict[str, Any]) -> str:
    """Return the state in which the run ended before it could be stopped, or nothing."""
    run, rows = found["run"], found["targets"]
    if run is None or not _is_over(found) or found["waiting"]:
        return ""
    if run["state"] in TERMINAL and not rows:
        return str(run["state"]) if run["changed_at"] <= found["asked_at"] else ""
    [evidence] = [line["evidence"] or "" for line in rows] if len(rows) == 1 else [""]
    return evidence.removeprefix(_BEFORE) if evidence.startswith(_BEFORE) else ""


def _held_before(found: dict[str, Any]) -> str:
    """Return the state in which the run was held before the request and still is, or nothing."""
    run = found["run"]
    held = run is not None and run["state"] in _HELD and run["changed_at"] <= found["asked_at"]
    return str(run["state"]) if held else ""


def _row(found: dict[str, Any], line: dict[str, Any], outcome: KillOutcome | None) -> None:
    run = line["run"]
    name = f"run {run['id']} ({run['agent']})" if run else line["target"].replace(":", " ", 1)
    if line["stage"] == Stage.VERIFIED:
        now = f"; now {_now(run)}" if run else ""
        text = clean(f"{name}: {_path(line)}: {line['evidence']}{now}", 1000)
        hang("  proved    ", text, tint="proved")
        return
    hang("  NOT PROVED ", clean(f"{name}: {_path(line)}", 1000), tint="unproved")
    for label, text in _unproved(found, line, outcome):
        hang(f"    {label:<10} ", clean(text, 1000))


def _now(run: dict[str, Any]) -> str:
    return f"{run['state']}, to undo what it did" if run["undoing"] else str(run["state"])


def _path(line: dict[str, Any]) -> str:
    """Return the stages with their times since the request."""
    stages = [("acknowledged", line["acknowledged_ms"]), ("fenced", line["fenced_ms"])]
    if line["stage"] == Stage.VERIFIED:
        stages.append(("stopped", line["ended_ms"]))
    known = [f"{word} {length(ms / 1000)}" for word, ms in stages if ms is not None]
    return ", ".join(["asked", *known])


def _unproved(
    found: dict[str, Any], line: dict[str, Any], outcome: KillOutcome | None
) -> list[tuple[str, str]]:
    fenced = line["fenced_ms"] is not None
    process = line["process"]
    done = "fenced: its writes are refused from now on" if fenced else "it was asked"
    if line["acknowledged_ms"] is not None and not fenced:
        done = "its worker has acknowledged it"
    return [
        ("done:", done),
        ("not done:", _not_done(found, line, outcome)),
        *([("alive:", _alive(found, line))] if process else []),
        ("can still:", _can_still(found, line)),
    ]


def _not_done(found: dict[str, Any], line: dict[str, Any], outcome: KillOutcome | None) -> str:
    if outcome is not None and outcome.why_not:
        return outcome.why_not
    if line["fenced_ms"] is not None:
        return (
            line["evidence"]
            or "its process was not seen to end, and its worker has not reported an end"
        )
    run = line["run"]
    doing = f"{run['in_hand']} has not ended" if run else "it has not ended"
    hard = found["hard_at"]
    return doing if hard is None else f"{doing}; at {clock(hard)} the order becomes a kill"


def _alive(found: dict[str, Any], line: dict[str, Any]) -> str:
    process = line["process"]
    seen = {True: "it is there", False: "it is gone", None: "it cannot be seen from here"}
    owner = f", under supervisor {line['supervisor']}" if line["supervisor"] else ""
    heard = age(found["now"] - process["heard_at"])
    return (
        f"worker {line['worker']}, process {process['pid']} on {process['host']}{owner}: "
        f"{seen[process['alive']]}; last heard of {heard} ago"
    )


def _can_still(found: dict[str, Any], line: dict[str, Any]) -> str:
    run, process = line["run"], line["process"]
    begun = [
        f"effect {one['name']} {one['key'] or ''}".rstrip()
        for one in found["effects"]
        if run and one["run"] == run["id"] and one["state"] == "in doubt"
    ]
    what = f"finish what it had begun: {', '.join(begun)}" if begun else "finish its step outside"
    if process is None or process["lease_until"] is None:
        return what
    left = process["lease_until"] - found["now"]
    when = f"ends at {clock(process['lease_until'])} (in {age(left)})" if left > 0 else "is over"
    return f"{what}; its lease {when}"


def _effects(effects: Sequence[dict[str, Any]]) -> None:
    if not effects:
        return
    counts = Counter(one["state"] for one in effects)
    words = joined([f"{count:,} {state}" for state, count in counts.items()])
    say(f"  effects   since the request: {words}")
    for one in effects[:MOST_ROWS]:
        text = f"{one['state']}: {one['name']} {one['key'] or ''} of run {one['run']}"
        say(f"    {clock(one['at'])}  {clean(text, 300)}")


def _measured(measured: Mapping[str, Any]) -> None:
    for name, facts in measured.items():
        if isinstance(facts, dict):
            known = {name: facts[name] for name in MEASURED if facts.get(name) not in (None, "")}
            words = ", ".join(f"{name.replace('_', ' ')} {v}" for name, v in known.items())
            say(clean(f"  measured  supervisor {name}: {words}", 500))


def _latch(found: dict[str, Any]) -> None:
    latch = found["latch"]
    if not latch:
        return
    if latch["in_force"]:
        whose = "" if found["scope"] == StopScope.FLEET else f" of {found['whom']}"
        say(clean(f"  holds     nothing{whose} starts. To lift it: {latch['lift']}", 500))
        return
    why = f": {latch['lifted_why']}" if latch["lifted_why"] else ""
    by = latch["lifted_by"] or "an unnamed person"
    say(clean(f"  lifted    {clock(latch['lifted_at'])} by {by}{why}", 500))


def next_command(found: dict[str, Any]) -> str:
    """Return the command that a person would type next."""
    run = found["run"]
    if _is_over(found):
        if run is None:
            latch = found["latch"]
            return latch["lift"] if latch and latch["in_force"] else command("ps")
        state = "undoing" if run["undoing"] else run["state"]
        return command(_AFTER.get(state, "show"), run["id"])
    first = next(line for line in found["targets"] if line["stage"] in {*OPEN, Stage.UNPROVED})
    process = first["process"]
    again = _harder(found)
    if process is not None and process["alive"] is None and first["fenced_ms"] is not None:
        return f"on {clean(process['host'])}: {again}   or look: {command('show', found['id'])}"
    if first["fenced_ms"] is None:
        return f"{again}   or wait: {command('show', found['id'])}"
    return command("show", found["id"])


_AFTER = {"paused": "resume", "killed": "resume", "undoing": "wait"}


def _harder(found: dict[str, Any]) -> str:
    if found["order"] == StopKind.HALT:
        return command("halt")
    if found["scope"] == StopScope.RUN:
        return command("kill", found["name"])
    chosen = options(found["scope"], found["name"], found["value"])
    return command("kill", options=chosen or ("--all",))

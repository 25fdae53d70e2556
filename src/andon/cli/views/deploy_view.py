"""Deploys and workers on a terminal, including a deploy followed until it is over."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from andon.cli.colour import Tinted, tinted
from andon.cli.output import clock, joined, note, say, state
from andon.cli.table import column, cut, hang, room, table
from andon.control import workers as fleet
from andon.core.text import age, clean, command, length, plural

_PARTS = ("finished", "saved", "cut", "untouched", "interrupted")


def workers(found: Sequence[dict[str, Any]]) -> None:
    """Print the table of `andon workers`."""
    start = "no workers; start one: andon work FILE"
    table(WORKERS, found, none=f"{start}   (andon workers --old lists those of the last day)")
    for one in found:
        if isinstance(one["stalled"], dict):
            say(clean(f"{state('stalled')}  {one['id']}: {_stall(one['stalled'])}", 500))


def _state(one: dict[str, Any]) -> Tinted:
    overran = f", overran: {', '.join(one['overran'])}" if one["overran"] else ""
    return tinted(state(one["state"]) + overran, one["state"])


def _in_hand(one: dict[str, Any]) -> str:
    of = f" of {one['concurrency']}" if one["concurrency"] else ""
    return f"{one['in_hand']}{of}"


def _agents(one: dict[str, Any]) -> str:
    named = [f"{agent['name']} {agent['version']}" for agent in one["agents"]]
    return ", ".join(named) or "those of its program"


WORKERS = (
    column("WORKER", of="id", whole=True),
    column("HOST", 4, least=8),
    column("PID", 3),
    column("STATE", of=_state),
    column("IN HAND", 1, _in_hand),
    column("SINCE", 5, lambda one: f"{age(one['age_seconds'])} ago"),
    column("SUPERVISOR", 6, lambda one: one["supervisor"] or "-", least=8),
    column("AGENTS", 2, _agents, least=12),
)


def _stall(found: dict[str, Any]) -> str:
    words = (f"{name} {given}" for name, given in found.items() if name != "why")
    return "; ".join([str(found.get("why", "no progress")), *words])


def listing(found: Sequence[dict[str, Any]], orchestrator_seconds: float = 0.0) -> None:
    """Print `andon deploys`."""
    if not found:
        note("no worker has left lately; --since 7d looks further back")
        return
    for number, one in enumerate(found):
        if number:
            say()
        hang("", headline(one, orchestrator_seconds))
        table(LEFT, [*one["workers"], *one["serving"]], "  ")
        hang("", sentence(one))
        _details(one)


def headline(one: dict[str, Any], orchestrator_seconds: float = 0.0) -> str:
    parts = ["deploy", _versions(one["versions"]), clock(one["began_at"])]
    if one["grace_seconds"] is not None:
        of = f" of {orchestrator_seconds:g} s" if orchestrator_seconds else ""
        parts.append(f"grace {one['grace_seconds']:g} s{of}")
    return clean("   ".join(parts))


def _versions(versions: dict[str, dict[str, list[str]]]) -> str:
    """Describe the version changes; agents with the same change are named together."""
    alike: dict[str, list[str]] = {}
    for agent, change in versions.items():
        before, after = ", ".join(change["before"]), ", ".join(change["after"]) or "nobody"
        alike.setdefault(before if before == after else f"{before} -> {after}", []).append(agent)
    named = []
    for text, agents in alike.items():
        more = f" and {len(agents) - 3} more" if len(agents) > 3 else ""
        named.append(f"{', '.join(agents[:3])}{more} {text}")
    return "; ".join(named)


def _remark(line: dict[str, Any]) -> str:
    remarks = []
    if line["blocked_by"]:
        remarks.append(f"blocked by {blocks(line['blocked_by'])}")
    if line["why"]:
        remarks.append(f"asked by {line['why']}")
    if line["announced_after_seconds"] is not None:
        remarks.append(f"announced in {line['announced_after_seconds'] * 1000:.0f} ms")
    if line["overran"]:
        remarks.append(f"overran: {', '.join(line['overran'])}")
    if line["state"] in (fleet.DIED, fleet.SILENT) and line["evidence"]:
        remarks.append(str(line["evidence"]))
    return "; ".join(remarks)


def _took(line: dict[str, Any]) -> str | None:
    return None if line["took_seconds"] is None else length(line["took_seconds"])


def _left(cell: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    """Leave a cell empty for workers that serve: only one that leaves has these facts."""
    return lambda line: cell(line) if "finished" in line else ""


LEFT = (
    column("WORKER", whole=True),
    column("STATE", of=lambda line: state(line.get("state", fleet.SERVING))),
    column("IN HAND", 7),
    column("FINISHED", 6, _left(lambda line: line["finished"])),
    column("SAVED", 3, _left(lambda line: line["saved"] + line["untouched"])),
    column("CUT", 4, _left(lambda line: line["cut"])),
    column("FAILED", 2, _left(lambda line: line["interrupted"])),
    column("TOOK", 5, _left(_took)),
    column("REMARK", 1, _left(_remark), least=16),
)


def sentence(one: dict[str, Any]) -> str:
    """Summarize the whole deploy in one line."""
    took = length(one["took_seconds"])
    begin = f"{state('done').split()[0]} deploy done in {took}" if one["over"] else f"... {took}"
    terms = [f"{one[part]} {part}" for part in _PARTS if one[part] or part in _PARTS[:2]]
    times = f", {one['times']} times in hand" if one["times"] > one["runs"] else ""
    counted = f"{plural(one['runs'], 'run')}{times} = {' + '.join(terms)}"
    parts = [f"{begin}: {counted}"]
    if one["in_hand"]:
        parts.append(f"{one['in_hand']} in hand")
    parts.append(f"{one['resumed']} resumed{_recovery(one)}")
    if one["unresumed"]:
        parts.append(f"{one['unresumed']} NOT resumed")
    if one["dead"]:
        parts.append(f"{one['dead']} DEAD")
    if "lost" in one:
        parts += [f"{one['lost']} lost", f"{one['doubled']} doubled"]
        if one["in_doubt"]:
            parts.append(f"{one['in_doubt']} effects in doubt")
        parts.append(_compensations(one))
        if one["kept_on_old_version"]:
            parts.append(f"{one['kept_on_old_version']} continue with the old version")
    if one["overruns"]:
        parts.append(f"{one['overruns']} overran")
    return joined(parts)


def _recovery(one: dict[str, Any]) -> str:
    if one["recovery_median"] is None:
        return ""
    middle, worst = length(one["recovery_median"]), length(one["recovery_worst"])
    back, lost = one["times"] - one["finished"] - one["interrupted"], one["interrupted"]
    since = [
        *(["the return"] if back else []),
        *(["its worker's last sign of life"] if lost else []),
    ]
    return f" (median {middle}, worst {worst} after {' or '.join(since)})"


def _compensations(one: dict[str, Any]) -> str:
    waiting = one["compensations_registered"]
    more = f" ({waiting} registered)" if waiting else ""
    return f"{one['compensations_executed']} compensations{more}"


def _details(one: dict[str, Any]) -> None:
    for run_id in one["lost_runs"][:5]:
        say(clean(f"  LOST     run {run_id}: it is running, and its worker has ended"))
    for twice in one["doubled_runs"][:5]:
        what = f"{twice['kind']} {twice['name']} at {twice['spot']}"
        entries = f"entries {twice['first']} and {twice['again']}"
        say(clean(f"  DOUBLED  run {twice['run']}: {what}, {entries}"))
    for run_id in one["dead_runs"][:5]:
        say(
            clean(f"  DEAD     run {run_id}: its workers died too often; {command('show', run_id)}")
        )
    if one["checked_runs"] < one["different_runs"]:
        unread = one["different_runs"] - one["checked_runs"]
        say(f"  the journals of {unread:,} more runs were not checked")


def refuse(found: dict[str, int]) -> str:
    """Explain why --fail-on fails the pipeline."""
    words = ", ".join(f"{count} {word.replace('_', ' ')}" for word, count in found.items())
    return f"the deploy fails by --fail-on: {words}. Look: {command('deploys')}"


class DeployProgress:
    """Shows a deploy in progress: a table redrawn on a terminal, elsewhere a line per change."""

    def __init__(self, say_line: Callable[[str], None], *, animated: bool) -> None:
        self._say, self._animated = say_line, animated
        self._known: dict[str, object] = {}
        self._rows = 0

    def show(self, one: dict[str, Any]) -> None:
        if self._animated:
            serving = [
                f"  {state(fleet.SERVING)}  {line['worker']}: {line['in_hand']} in hand"
                for line in one["serving"]
            ]
            leaving = [_progress(line) for line in one["workers"]]
            self._redraw([headline(one), *leaving, *serving, sentence(one)])
            return
        self._once("deploy", headline(one), one["began_at"])
        for line in one["workers"]:
            self._once(line["worker"], _progress(line), (line["state"], line["in_hand"]))
        if one["resumed"] or one["unresumed"]:
            back = one["resumed"] + one["unresumed"]
            text = f"  resumed elsewhere {one['resumed']} of {back}{_recovery(one)}"
            self._once("resumed", text, (one["resumed"], back))

    def _once(self, about: str, text: str, known: object) -> None:
        if self._known.get(about) != known:
            self._known[about] = known
            self._say(text)

    def _redraw(self, lines: Sequence[str]) -> None:
        up = f"\x1b[{self._rows}F\x1b[J" if self._rows else ""
        most = (room(sys.stderr) or 80) - 1
        sys.stderr.write(up + "".join(cut(clean(line), most) + "\n" for line in lines))
        sys.stderr.flush()
        self._rows = len(lines)


def _progress(line: dict[str, Any]) -> str:
    parts = [f"{line[part]} {part}" for part in _PARTS if line[part]]
    took = "" if line["took_seconds"] is None else f" {length(line['took_seconds'])}"
    hand = f"{line['in_hand']} in hand" if line["in_hand"] else ""
    counted = ", ".join([*([hand] if hand else []), *parts]) or "nothing in hand"
    remark = _remark(line)
    text = f"  {state(line['state'])}{took}  {line['worker']}: {counted}"
    return clean(f"{text}; {remark}" if remark else text)


def drained(line: dict[str, Any]) -> str:
    """Describe the current state of a draining worker in one line."""
    name = f"{state(line['state'])}  {clean(line['worker'])}"
    if line["ended"]:
        return name if line["took_seconds"] is None else f"{name}  {length(line['took_seconds'])}"
    found = f"{name}  {line['in_hand']} in hand"
    return f"{found}: {blocks(line['blocked_by'])}" if line["blocked_by"] else found


def blocks(found: Sequence[dict[str, Any]]) -> str:
    """Name the run that has delayed a worker's drain the longest, and count the others."""
    if not found:
        return ""
    first = found[0]
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return clean(f"run {first['run']} {first['doing']} ({length(first['seconds'])}){more}", 300)

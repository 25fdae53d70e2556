"""Deploys and workers on a terminal, including a deploy followed until it is over."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from andon.cli.colour import tinted
from andon.cli.output import clock, joined, note, say, state
from andon.cli.table import column, cut, hang, room, table
from andon.control import deploys
from andon.control import workers as fleet
from andon.control.changes import POLL_SECONDS, Patience, rings
from andon.core.fleet.rollout import GAP_SECONDS
from andon.core.text import age, clean, command, length, plural
from andon.store.store import Store

WORKERS = (
    column("WORKER", whole=True),
    column("HOST", 4, least=8),
    column("PID", 3),
    column("STATE"),
    column("IN HAND", 1),
    column("SINCE", 5),
    column("SUPERVISOR", 6, least=8),
    column("AGENTS", 2, least=12),
)
LEFT = (
    column("WORKER", whole=True),
    column("STATE"),
    column("IN HAND", 7),
    column("FINISHED", 6),
    column("SAVED", 3),
    column("CUT", 4),
    column("FAILED", 2),
    column("TOOK", 5),
    column("REMARK", 1, least=16),
)
_PARTS = ("finished", "saved", "cut", "untouched", "interrupted")


def workers(found: Sequence[dict[str, Any]]) -> None:
    """Print the table of `andon workers`."""
    if not found:
        note(
            "no workers; start one: andon work FILE   "
            "(andon workers --old lists those of the last day)"
        )
        return
    table(
        WORKERS,
        [
            (
                one["id"],
                one["host"],
                str(one["pid"]),
                tinted(
                    state(one["state"])
                    + (f", overran: {', '.join(one['overran'])}" if one["overran"] else ""),
                    one["state"],
                ),
                f"{one['in_hand']} of {one['concurrency']}"
                if one["concurrency"]
                else str(one["in_hand"]),
                f"{age(one['age_seconds'])} ago",
                one["supervisor"] or "-",
                ", ".join(f"{agent['name']} {agent['version']}" for agent in one["agents"])
                or "those of its program",
            )
            for one in found
        ],
    )
    for one in found:
        if isinstance(one["stalled"], dict):
            say(clean(f"{state('stalled')}  {one['id']}: {_stall(one['stalled'])}", 500))


def _stall(found: dict[str, Any]) -> str:
    words = (f"{name} {given}" for name, given in found.items() if name != "why")
    return "; ".join([str(found.get("why", "no progress")), *words])


# ── deploys ───────────────────────────────────────────────────────────────────────────────────


def listing(found: Sequence[dict[str, Any]], orchestrator_seconds: float = 0.0) -> None:
    """Print `andon deploys`."""
    if not found:
        note("no worker has left lately; --since 7d looks further back")
        return
    for number, one in enumerate(found):
        if number:
            say()
        hang("", headline(one, orchestrator_seconds))
        _table(one)
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


def _table(one: dict[str, Any]) -> None:
    table(
        LEFT,
        [
            (
                clean(line["worker"]),
                state(line["state"]),
                str(line["in_hand"]),
                str(line["finished"]),
                str(line["saved"] + line["untouched"]),
                str(line["cut"]),
                str(line["interrupted"]),
                "-" if line["took_seconds"] is None else length(line["took_seconds"]),
                _remark(line),
            )
            for line in one["workers"]
        ]
        + [
            (clean(line["worker"]), state(fleet.SERVING), str(line["in_hand"]), *[""] * 6)
            for line in one["serving"]
        ],
        "  ",
    )


def _remark(line: dict[str, Any]) -> str:
    remarks = []
    if line["blocked_by"]:
        remarks.append(f"blocked by {blocks(line['blocked_by'])}")
    if line["why"]:
        remarks.append(f"told by {line['why']}")
    if line["announced_after_seconds"] is not None:
        remarks.append(f"announced in {line['announced_after_seconds'] * 1000:.0f} ms")
    if line["overran"]:
        remarks.append(f"overran: {', '.join(line['overran'])}")
    if line["state"] in (fleet.DIED, fleet.SILENT) and line["evidence"]:
        remarks.append(str(line["evidence"]))
    return "; ".join(remarks)


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


# ── following a deploy ────────────────────────────────────────────────────────────────────────


class DeployProgress:
    """Shows a deploy in progress: a table redrawn on a terminal, elsewhere a line per change."""

    def __init__(self, say_line: Callable[[str], None], *, animated: bool) -> None:
        self._say, self._animated = say_line, animated
        self._known: dict[str, object] = {}
        self._rows = 0

    def show(self, one: dict[str, Any]) -> None:
        if self._animated:
            serving = [_serving(line) for line in one["serving"]]
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


def _serving(line: dict[str, Any]) -> str:
    return clean(f"  {state(fleet.SERVING)}  {line['worker']}: {line['in_hand']} in hand")


def watch(
    store: Store,
    *,
    patience: Patience,
    timeout: float | None,
    settle_seconds: float,
    lease_seconds: float,
    on_look: Callable[[dict[str, Any] | None], None],
) -> tuple[dict[str, Any] | None, bool]:
    """Follow the current or next deploy; return it and whether it is over."""
    until = None if timeout is None else time.monotonic() + timeout
    since = store.now() - GAP_SECONDS
    one: dict[str, Any] | None = None
    with rings(store) as pause:
        while True:
            found = patience.ask(lambda: _current(store, since, lease_seconds, thorough=False))
            one = found[-1] if found else one
            if found is not None:
                on_look(one)
            if one is not None and one["over"] and _is_settled(store, one, settle_seconds):
                over = True
                break
            left = POLL_SECONDS if until is None else until - time.monotonic()
            if left <= 0:
                over = False
                break
            pause(left)
    if one is None:
        return None, False
    return _current(store, since, lease_seconds, thorough=True)[-1], over


def _current(
    store: Store, since: float, lease_seconds: float, *, thorough: bool
) -> list[dict[str, Any]]:
    """Return the last deploy unless it ended longer ago than the gap between two deploys."""
    # Look back further than the gap: in a large deploy the first worker ended long ago.
    found = deploys.recent(
        store, since - fleet.RECENT_SECONDS, lease_seconds=lease_seconds, thorough=thorough, most=1
    )
    return [one for one in found if one["changed_at"] >= since]


def _is_settled(store: Store, one: dict[str, Any], settle_seconds: float) -> bool:
    """Whether no worker has left for a while; until then the next one may be asked to drain."""
    return bool(store.now() - one["changed_at"] >= settle_seconds)


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

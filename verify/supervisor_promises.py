"""The promises about supervisors, runs whose processes they froze, and several orders."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from andon.store.messages.stops import Attend, Dismiss, Order, TargetReport

if TYPE_CHECKING:
    from verify.promises import Done, Row, Seen


KINDS = ("pause", "cancel", "kill", "halt")  # the mildest first


def decisive(new: str, old: str) -> str:
    """Which of two orders decides: the severer one, and a cancel, which is final."""
    return new if new == "cancel" else max(new, old, key=KINDS.index)


def attend(before: "Seen", after: "Seen", m: Attend, outcome: Any) -> Iterator[str]:
    """A supervisor that attends receives everything it has to end, and any halt."""
    was = _supervisors(before).get(m.supervisor_id)
    alive = was is not None and was["state"] == "live"
    if outcome.known != alive:
        yield f"{m.supervisor_id} gets the answer that it is known: {outcome.known}"
    wanted = {
        (row["stop_id"], row["target"])
        for row in after.rows["targets"]
        if row["supervisor"] == m.supervisor_id and row["stage"] == "fenced" and not row["ended_at"]
    }
    told = {(one.stop_id, one.target) for one in outcome.notices if one.hard}
    if wanted != told:
        yield f"{m.supervisor_id} gets {sorted(told)}, and has to end {sorted(wanted)}"
    halts = any(latch["kind"] == "halt" for latch in after.latches)
    if (outcome.halt is not None) != halts:
        yield f"{m.supervisor_id} gets the halt {outcome.halt}, there is one: {halts}"


def frozen(before: "Seen", after: "Seen", m: Order) -> Iterator[str]:
    """The stop of a run with a frozen process waits for the end of that; or the run was paused."""
    for run in before.rows["runs"] if m.kind != "pause" else ():
        attempt = before.attempts.get((run["id"], run["fence"]), {})
        worker = before.workers.get(attempt.get("worker"), {})
        there = worker.get("state") == "live" and worker.get("supervisor") is not None
        stands = there and (attempt["ending"] or "").startswith("frozen")
        if (
            not stands
            or run["state"] not in ("paused", "queued")
            or not before.within(run["id"], m)
        ):
            continue
        target = after.targets.get((m.id, f"run:{run['id']}"))
        if target is None or (target["worker"], target["stage"]) != (worker["id"], "fenced"):
            yield f"{m.kind} of {run['id']}: its frozen process is not ended: {target}"
        elif target["supervisor"] != worker["supervisor"]:
            yield f"{m.kind} of {run['id']}: its supervisor is not notified: {target}"
        if after.runs[run["id"]]["fence"] <= run["fence"]:
            yield f"{m.kind} of {run['id']}: its frozen process is not fenced"


def ends(before: "Seen", after: "Seen", done: "Sequence[Done]") -> Iterator[str]:
    """A supervisor whose lease is over is silent; otherwise its state is the one it was given."""
    said = {m.supervisor_id: m.state for m, _ in done if isinstance(m, Dismiss)}
    reported = {(m.stop_id, m.target) for m, _ in done if isinstance(m, TargetReport)}
    now, was = _supervisors(after), _supervisors(before)
    for name, row in was.items():
        state = now[name]["state"]
        over = row["lease_until"] <= after.now and state == "silent"
        if state != row["state"] and not over and said.get(name) != state and state != "live":
            yield f"{name} was {row['state']} and is called {state}"
    for key, target in after.targets.items():
        name = target["target"].removeprefix("supervisor:")
        news = before.targets.get(key, {}).get("stage") != target["stage"]
        is_one = name != target["target"] and target["stage"] == "verified"
        if is_one and news and said.get(name) not in ("gone", "dead") and key not in reported:
            yield f"{name} is called ended: {target['evidence']}"
    for m, _ in done:
        if isinstance(m, Attend):
            yield from _late(was, now, after.now, m.supervisor_id)


def _late(was: "dict[str, Row]", now: "dict[str, Row]", at: float, by: str) -> Iterator[str]:
    for name, row in was.items():
        over = row["state"] == "live" and row["lease_until"] < at and name != by
        if over and now[name]["state"] == "live":
            yield f"{name} is silent, and {by} attends and does not say so"


def is_certain(before: "Seen", worker_id: str, how: str) -> bool:
    """Whether nothing of a worker acts, judged by how its end was observed.

    Another host sees the worker's lock, and not the programs it started.
    """
    started = any(
        row["worker"] == worker_id and row["mark"] and not row["quiet"]
        for row in before.attempts.values()
    )
    return how.startswith("dead") or (how.startswith("process") and not started)


def _supervisors(seen: "Seen") -> "dict[str, Row]":
    return {row["id"]: row for row in seen.rows["supervisors"]}

"""The promises about waiting runs: in which order, for which worker, how long, how often.

As in promises.py, none of the product's code is used: the rows before and after a message decide.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from andon.store.messages.stops import WorkerGone
from andon.store.store import Claim

if TYPE_CHECKING:
    from verify.promises import Done, Row, Seen

# It tried, and made no progress.
BARE = ("begun", "started", "retrying")
# It will not be resumed: its effects are undone after a time.
UNRESUMED = ("queued", "stranded", "paused", "dead")


def _fits(run: "Row", m: Claim) -> bool:
    """Whether a worker with this claim can execute it; to undo it, any version will do."""
    names = [name for name, _ in m.agents]
    carried = (run["agent"], run["version"]) in m.agents
    carried |= run["undoing"] is not None and run["agent"] in names
    served = m.queues is None or run["queue"] in m.queues
    return carried and served and (m.only is None or run["root_id"] in m.only)


def _place(run: "Row") -> tuple[Any, ...]:
    return not run["returned"], -run["priority"], run["available_at"], run["id"]


def chosen(after: "Seen", m: Claim, new: Sequence["Row"], again: bool) -> Iterator[str]:
    """Runs begun before come first, then urgent ones, then old ones; never for the wrong worker."""
    for run in new:
        if not _fits(run, m):
            yield f"{run['id']} is claimed by {m.worker_id}, which cannot execute it: {m}"
    from_ = max(1, m.interruption_limit // 2)
    suspects = [
        r for r in after.rows["runs"] if r["worker"] == m.worker_id and r["fruitless"] >= from_
    ]
    alone = [run["id"] for run in suspects if not _fruitful(after, run)]
    if len(alone) > 1 and any(run["id"] in alone for run in new):
        yield f"{alone} may have killed their workers, and {m.worker_id} executes them together"
    worker = after.workers[m.worker_id]  # it may be given up by its own claim
    able = worker["state"] == "live" and worker["draining_at"] is None and m.limit > 0
    if after.latches or after.rows["limits"] or again or not able:
        return
    left = [
        run
        for run in after.rows["runs"]
        if (run["state"], run["stop"]) == ("queued", None)
        and run["available_at"] <= after.now
        and run["fruitless"] < from_
        and _fits(run, m)
    ]
    if left and len(new) < m.limit:
        yield f"{left[0]['id']} waits, and {m.worker_id} has room for it"
    passed = [run["id"] for run in left for one in new if _place(run) < _place(one)]
    if passed:
        yield f"{passed} wait, and {[run['id'] for run in new]} are claimed before"


def _fruitful(seen: "Seen", run: "Row") -> bool:
    """Whether this attempt has made more progress than the one before it."""
    entries = [row for (run_id, _), row in seen.entries.items() if run_id == run["id"]]
    return any(row["fence"] == run["fence"] and row["state"] not in BARE for row in entries)


def _moved(seen: "Seen", run: "Row") -> bool:
    """Whether it has a checkpoint with which it has not died since it last finished a step."""
    kept = sorted((op, body) for (run_id, op), body in seen.kept.items() if run_id == run["id"])
    digest = hashlib.sha256(repr(kept).encode()).hexdigest()[:32]
    known = []
    for fence in sorted((f for run_id, f in seen.attempts if run_id == run["id"]), reverse=True):
        attempt = seen.attempts[run["id"], fence]
        if attempt["ended_at"] is None:
            continue
        if attempt["checkpoint"] is None:
            break
        known.append(attempt["checkpoint"])
    return bool(kept) and digest not in known


def _ended_by_order(before: "Seen", owner: "Row") -> bool:
    """Whether the worker is dead, and a hard order was about to end its process."""
    if owner.get("state") != "dead":
        return False
    for target in before.rows["targets"]:
        spare = before.stops[target["stop_id"]]["spare"]
        spared = owner["embedded"] if spare is None else spare
        awaited = target["ended_at"] is None and target["mark"] is None
        hard = awaited and target["stage"] == "fenced" and not spared
        if hard and target["worker"] == owner["id"]:
            return True
    return False


def fruits(before: "Seen", after: "Seen", done: Sequence["Done"]) -> Iterator[str]:
    """A run that keeps killing its workers without progress is declared dead; no other is."""
    if len(done) != 1 or not isinstance(m := done[0][0], WorkerGone | Claim):
        return
    for was in before.rows["runs"]:
        run, owner = after.runs[was["id"]], after.workers.get(was["worker"], {})
        lost = was["state"] == "running" and owner.get("state") in ("dead", "silent")
        if not lost or was["stop"] is not None:
            continue
        further = _fruitful(before, was) or _moved(before, was)
        ordered = isinstance(m, WorkerGone) and m.ordered
        blamed = not ordered and not _ended_by_order(before, owner)
        expected = 0 if further or not blamed else was["fruitless"] + 1
        if run["fruitless"] != expected:
            yield f"{run['id']} was interrupted {expected} times for nothing: {run['fruitless']}"
        if (run["state"] == "dead") != (expected >= m.interruption_limit):
            yield f"{run['id']} is {run['state']} after {expected} of {m.interruption_limit}"


def windows(before: "Seen", after: "Seen") -> Iterator[str]:
    """A run that is not resumed is undone in time; one that is executed or put away is not."""
    for run in after.rows["runs"]:
        was = before.runs.get(run["id"], {})
        if run["state"] not in UNRESUMED:
            if run["undo_at"] is not None:
                yield f"{run['id']} is {run['state']}, and would be undone at {run['undo_at']}"
            continue
        owed = [
            row["undo_within"]
            for (run_id, *_), row in after.effects.items()
            if run_id == run["id"]
            and row["state"] == "confirmed"
            and row["undo_within"] is not None
        ]
        if not owed and run["undo_at"] is not None:
            yield f"{run['id']} would be undone at {run['undo_at']}, and has done nothing"
        if was.get("state") == run["state"] or run["undoing"] is not None or not owed:
            continue
        last = max(run["available_at"], after.now) + min(owed)
        if run["undo_at"] is None or run["undo_at"] > last:
            yield f"{run['id']} is {run['state']}, and is undone at {run['undo_at']}, not by {last}"


def cancelled(before: "Seen", after: "Seen") -> Iterator[str]:
    """It has no open questions; and its effects, certain or possible, are undone before."""
    for run in after.rows["runs"]:
        if (
            run["state"] != "cancelled"
            or before.runs.get(run["id"], {}).get("state") == "cancelled"
        ):
            continue
        asked = [ask for run_id, ask in after.asks if run_id == run["id"]]
        if asked:
            yield f"{run['id']} is cancelled, and still has the questions {asked}"
        rows = [row for row in after.rows["effects"] if row["run_id"] == run["id"] and row["undo"]]
        owed = [row["key"] for row in rows if row["state"] not in ("failed", "compensated")]
        if owed:
            yield f"{run['id']} is cancelled, and {owed} is not undone"


def limits(after: "Seen", new: Sequence["Row"]) -> Iterator[str]:
    """At most so many at once, and so many in a period: per queue, agent, or label value."""
    for limit in after.rows["limits"]:
        for value in {_slot(limit, run) for run in new} - {None}:
            runs = [run for run in after.rows["runs"] if _slot(limit, run) == value]
            busy = [run["id"] for run in runs if run["state"] == "running"]
            what = f"{limit['scope']} {limit['name']} {value}"
            if limit["at_most"] is not None and len(busy) > limit["at_most"]:
                yield f"{busy} of {what} at once: at most {limit['at_most']}"
            if limit["rate"] is None:
                continue
            begun = [
                run["id"]
                for run in runs
                for row in after.rows["attempts"]
                if (row["run_id"], row["number"]) == (run["id"], 1)
                and row["claimed_at"] > limit["set_at"]
            ]
            periods = 1 + (after.now - limit["set_at"]) / limit["per_seconds"]
            if len(begun) > limit["rate"] * periods + 1e-6:
                yield f"{begun} of {what} have begun: {limit['rate']} in {limit['per_seconds']} s"


def _slot(limit: "Row", run: "Row") -> Any:
    """Where a run counts; None if the limit does not concern it."""
    if limit["scope"] == "label":
        return json.loads(run["labels"]).get(limit["name"])
    return "" if run[limit["scope"]] == limit["name"] else None

"""Waits for the proof of a stop, and helps to reach it.

The waiting command escalates a polite order when its window is over, and kills the processes that
no one else kills: workers of this host without a supervisor.
"""

from __future__ import annotations

from andon.control.changes import POLL_SECONDS, Patience, poll
from andon.control.stop.processes import GRACE_SECONDS, WorkerKiller, workers_of
from andon.core.run import State
from andon.core.stop import OPEN, POLITE, Stage, StopScope, ends_worker
from andon.core.text import clean, length, plural
from andon.runtime.requests import scope_latches
from andon.runtime.requests.lookup import write
from andon.store.messages.stops import Escalate

TYPE_CHECKING = False  # not typing's: that import would delay every stop
if TYPE_CHECKING:
    from collections.abc import Callable

    from andon.store.messages.stops import StopRow, TargetRow
    from andon.store.store import Store, WorkerRow

# More targets than this are counted, not reported one by one.
MOST_REPORTED = 5


def earlier_doubts(store: Store, row: StopRow) -> list[TargetRow]:
    """Targets of earlier orders on the same runs that are unproved.

    A later order is no proof of them: nothing has executed these runs since.
    """
    found = []
    for target in store.unproved():
        run = store.run(target.run_id) if target.run_id is not None else None
        if run is None or target.stop_id == row.id or target.requested_at > row.asked_at:
            continue
        untouched = run.state != State.RUNNING and run.fence <= target.fence + 1
        single = row.scope == StopScope.RUN
        if untouched and (run.id == row.name if single else scope_latches.holds(row, run)):
            found.append(target)
    return found


class StopProof:
    """Polls one order until it is proved or nothing more can be done from here."""

    def __init__(self, store: Store, row: StopRow, say: Callable[[str], None]) -> None:
        self._store, self._say = store, say
        self.row = row
        self.targets: list[TargetRow] = []
        self.killer = WorkerKiller(store, row.kind)
        self._earlier: list[TargetRow] = []
        self._reported: dict[str, object] = {}
        self._soon = POLL_SECONDS

    def look(self) -> bool:
        """Poll once, escalate and kill if due; returns whether the order is closed."""
        now = self._read()
        if self.row.escalate_at is not None and now >= self.row.escalate_at:
            write(self._store, Escalate())
            now = self._read()
        if self._end_processes(now):
            now = self._read()
        self._report()
        self._soon = self._next(now)
        return self.row.closed_at is not None

    def _read(self) -> float:
        # Read the clock before the rows: a target that is overdue at this time and not stopped in
        # rows read later has really missed its deadline.
        now = self._store.now()
        found = self._store.stop(self.row.id)
        self.row = self.row if found is None else found
        self.targets = self._store.targets(self.row.id)
        self._earlier = earlier_doubts(self._store, self.row)
        return now

    def _next(self, now: float) -> float:
        """Seconds until this command has something to do."""
        times = [
            one.fenced_at + GRACE_SECONDS - now
            for one in self.targets
            if one.stage == Stage.FENCED and one.fenced_at
        ]
        if self.row.escalate_at is not None:
            times.append(self.row.escalate_at - now)
        return max(min([POLL_SECONDS, *(seconds for seconds in times if seconds > 0)]), 0.005)

    def _end_processes(self, now: float) -> bool:
        """Kill workers that are overdue and record those that are gone; returns whether any was."""
        rows = [*self.targets, *self._earlier]
        open_rows = [one for one in rows if one.stage in OPEN or one.stage == Stage.UNPROVED]
        names = {one.target for one in open_rows} | {one.worker for one in open_rows}
        if names <= self.killer.tried.keys():
            return False
        workers = workers_of(self._store, {one.worker for one in open_rows if one.worker})
        ended = False
        for one in open_rows:
            worker = workers.get(one.worker or "")
            if worker is None:
                continue
            if one.mark is not None:
                ended = self._clear(one, worker, now) or ended
            elif self._is_due(one, worker, now):
                runs = {row.run_id for row in self.targets if row.run_id}
                self.killer.end(worker, self._say_clean, runs)
                ended = True
        return ended

    def _clear(self, row: TargetRow, worker: WorkerRow, now: float) -> bool:
        """Kill the processes that an attempt had started.

        After a polite stop a live worker gets GRACE_SECONDS to report first.
        """
        own_chance = self.row.kind in POLITE and worker.state == "live"
        if own_chance and now - (row.fenced_at or now) < GRACE_SECONDS:
            return False
        if row.target in self.killer.tried or not self.killer.is_here(worker):
            return False
        self.killer.clear(row, worker, self._say_clean)
        return True

    def _is_due(self, row: TargetRow, worker: WorkerRow, now: float) -> bool:
        """Whether this command must kill or record the worker now."""
        if worker.id in self.killer.tried or not self.killer.is_ours(worker):
            return False
        if self.killer.is_gone(worker):
            return True
        if not ends_worker(self.row.spare, embedded=worker.embedded):
            if row.stage != Stage.REQUESTED:
                self.killer.spare(worker)
            return False
        grace = GRACE_SECONDS if self.row.kind in POLITE else 0.0
        fenced = row.stage == Stage.FENCED and now - (row.fenced_at or now) >= grace
        return fenced or row.stage == Stage.UNPROVED

    def _report(self) -> None:
        if len(self.targets) > MOST_REPORTED:
            still = sum(one.stage in OPEN for one in self.targets)
            text = f"{len(self.targets) - still} of {plural(len(self.targets), 'target')} stopped"
            self._once("all", text, still)
            return
        for one in self.targets:
            text = _words(self.row, one)
            if text:
                self._once(one.target, f"{one.target.replace(':', ' ', 1)}  {text}", one.stage)

    def _once(self, about: str, text: str, known: object) -> None:
        if self._reported.get(about) != known:
            self._reported[about] = known
            self._say_clean(text)

    def _say_clean(self, text: str) -> None:
        self._say(clean(text, 1000))

    def wait(self, seconds: float, patience: Patience) -> None:
        """Wait up to `seconds` for the proof."""
        poll(self._store, self.look, patience, seconds, lambda: self._soon)


def _words(order: StopRow, row: TargetRow) -> str:
    """A target's progress in words; empty for its end, which the receipt reports."""
    match row.stage:
        case Stage.REQUESTED:
            window = f"; {length(order.within)} for the step in hand" if order.escalate_at else ""
            return f"asked to stop{window}"
        case Stage.ACKNOWLEDGED:
            return f"acknowledged after {_after(order, row.acknowledged_at)}"
        case Stage.FENCED:
            after = _after(order, row.fenced_at)
            return f"fenced after {after}: its writes are refused from now on"
        case _:
            return ""


def _after(order: StopRow, at: float | None) -> str:
    return length((at or order.asked_at) - order.asked_at)

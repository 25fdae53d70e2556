"""Processes and threads that attempts have started.

A run is not stopped while a process or thread that it started may still act, even if another worker
executes the run now. A stop therefore has a target for each attempt that may have left one behind;
a command or supervisor on the attempt's host looks for it.
"""

from __future__ import annotations

import json

from andon.core.effect import Sight, is_certain
from andon.core.stop import POLITE, Stage, StopKind, after_word, ends_worker
from andon.store.messages.stops import optional_flag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from andon.store.messages.stops import Ended, Order, ProcessStarted
    from andon.store.sql.reads import Query
    from andon.store.sql.targets import TargetHandler

# How long a command or supervisor on the host of an ended worker has to look for what the worker
# had started. After that the stop counts as unproved and callers no longer wait for it.
LOOK_SECONDS = 30.0


class ProcessHandler:
    """Handles messages about what attempts have started, and the targets that follow from them."""

    def __init__(self, q: Query, targets: TargetHandler) -> None:
        self.q, self._targets = q, targets

    def started(self, m: ProcessStarted) -> None:
        """Record what an attempt started. It ignores the fence: a lost run still left processes."""
        self.q("start_of_attempt", run_id=m.run_id, fence=m.fence, mark=m.mark, threads=m.threads)

    def add_targets(self, m: Order, run_ids: Sequence[str]) -> set[str]:
        """Add a target for each attempt that may have left something; return their runs."""
        if not run_ids:
            return set()
        ids, hard = json.dumps(list(run_ids)), m.kind not in POLITE
        rows = self.q("started_by", run_ids=ids, hard=hard, spare=m.spare)
        for run_id, fence, worker, supervisor, mark in rows:
            self._targets.add(
                m.id,
                f"run:{run_id}:{fence}",
                Stage.FENCED,
                run_id=run_id,
                worker=worker,
                supervisor=supervisor,
                fence=fence,
                mark=mark,
            )
        return {str(row[0]) for row in rows}

    def ended(self, m: Ended) -> None:
        """Apply a worker's report to that attempt only: by now a newer one may have to stop."""
        self.q("quieten", run_id=m.run_id, fence=m.fence)
        also = f"its worker has ended processes of it: {m.also}" if m.also else ""
        evidence = "; ".join(filter(None, ("its worker reports that it has ended", also)))
        rows = self.q("word_targets", run_id=m.run_id, worker_id=m.worker_id, fence=m.fence)
        for stop_id, target, kind, spare, embedded in rows:
            ends = ends_worker(optional_flag(spare), embedded=bool(embedded))
            stage = after_word(StopKind(kind), ends=ends)
            more = ". Its process was spared, so no other process can prove it"
            words = {
                Stage.VERIFIED: evidence,
                Stage.UNPROVED: evidence + more,
                Stage.FENCED: also or None,  # the end of its process must still be proved
            }
            self._targets.record(stop_id, target, stage, words[stage])
        if rows:
            self._targets.carry_out(m.run_id)
            self._targets.close([row[0] for row in rows])

    def left(self, worker_id: str) -> None:
        """Handle a worker's departure.

        Its own word does not prove a hard stop; its supervisor must see the process end.
        """
        evidence = "its worker reports that it has left; its process was not seen to end"
        rows = self.q("hard_targets_of", worker_id=worker_id)
        for stop_id, target, supervisor, _ in rows:
            stage = Stage.UNPROVED if supervisor is None else Stage.FENCED
            self._targets.record(stop_id, target, stage, evidence)
        alone = [row for row in rows if row[2] is None]
        self._targets.carry_out(*sorted({row[3] for row in alone if row[3] is not None}))
        self._targets.close([row[0] for row in alone])

    def give_up_looking(self) -> None:
        """Mark targets unproved while no process on their host looks for what is left."""
        rows = self.q("forsaken_targets", seconds=LOOK_SECONDS)
        if not rows or not self.q("try_orders")[0][0]:
            return  # an order is being given right now; the next heartbeat tries again
        for stop_id, target, _, host in rows:
            evidence = f"its processes were not looked for on {host}: give the order there"
            self._targets.record(stop_id, target, Stage.UNPROVED, evidence)
        self._targets.carry_out(*sorted({row[2] for row in rows}))
        self._targets.close([row[0] for row in rows])

    def state_after(self, worker_id: str, state: str) -> str:
        """Return how a worker counts as ended, given what was seen of its end."""
        if state != Sight.PROCESS:
            return state
        started = bool(self.q("has_started", worker_id=worker_id))
        return Sight.ALL if is_certain(Sight.PROCESS, has_started=started) else Sight.NOTHING

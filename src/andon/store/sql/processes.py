"""Processes and threads that attempts have started.

A run is not stopped while a process or thread that it started may still act, even if another worker
executes the run now. A stop therefore has a target for each attempt that may have left one behind;
a command or supervisor on the attempt's host looks for it.
"""

from __future__ import annotations

import json

from andon.core.effect import Sight, is_certain
from andon.core.stop import POLITE, Stage, StopKind, after_word, ends_worker
from andon.store.messages.stops import StopRow, TargetRow, said
from andon.store.sql.limits import SqlLimits
from andon.store.sql.reads import build

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from andon.store.messages.stops import Ended, Order, ProcessStarted
    from andon.store.sql.reads import Rows


# How long a command or supervisor on the host of an ended worker has to look for what the worker
# had started. After that the stop counts as unproved and callers no longer wait for it.
LOOK_SECONDS = 30.0


class SqlStarted(SqlLimits):
    """Handles messages about what attempts have started, and the targets that follow from them."""

    def _started(self, m: ProcessStarted) -> None:
        """Record what an attempt started. It ignores the fence: a lost run still left processes."""
        self.q("start_of_attempt", run_id=m.run_id, fence=m.fence, mark=m.mark, threads=m.threads)

    def _aim_at_started(self, m: Order, run_ids: Sequence[str]) -> set[str]:
        """Add a target for each attempt that may have left something; return their runs."""
        if not run_ids:
            return set()
        rows = self.q(
            "started_by",
            run_ids=json.dumps(list(run_ids)),
            hard=m.kind not in POLITE,
            spare=m.spare,
        )
        for run_id, fence, worker, supervisor, mark in rows:
            self.q(
                "insert_target",
                stop_id=m.id,
                target=f"run:{run_id}:{fence}",
                run_id=run_id,
                worker=worker,
                supervisor=supervisor,
                fence=fence,
                stage=Stage.FENCED,
                mark=mark,
            )
        return {str(row[0]) for row in rows}

    def _word(self, m: Ended) -> list[str]:
        """Apply a worker's word about an attempt; return the orders with a target it ended."""
        self.q("quieten", run_id=m.run_id, fence=m.fence)
        also = f"its worker has ended processes of it: {m.also}" if m.also else ""
        evidence = "; ".join(filter(None, ("its worker: nothing of it executes any more", also)))
        rows = self.q("word_targets", run_id=m.run_id, worker_id=m.worker_id, fence=m.fence)
        for stop_id, target, kind, spare, embedded in rows:
            ends = ends_worker(said(spare), embedded=bool(embedded))
            stage = after_word(StopKind(kind), ends=ends)
            more = ". Its process was spared: nobody outside can prove it"
            words = {
                Stage.VERIFIED: evidence,
                Stage.UNPROVED: evidence + more,
                Stage.FENCED: also or None,  # the end of its process must still be proved
            }
            self.q(
                "report_target",
                stop_id=stop_id,
                target=target,
                stage=stage,
                evidence=words[stage],
                ends=stage is not Stage.FENCED,
            )
        return [str(row[0]) for row in rows]

    def _left_by_itself(self, worker_id: str) -> None:
        """Handle a worker's departure.

        Its own word does not prove a hard stop; its supervisor must see the process end.
        """
        rows = self.q("hard_targets_of", worker_id=worker_id)
        for stop_id, target, supervisor, _ in rows:
            stage = Stage.UNPROVED if supervisor is None else Stage.FENCED
            self.q(
                "report_target",
                stop_id=stop_id,
                target=target,
                stage=stage,
                evidence="its worker says that it has left; nobody has seen its process end",
                ends=stage is Stage.UNPROVED,
            )
        left = [row for row in rows if row[2] is None]
        self._carry_out(*sorted({row[3] for row in left if row[3] is not None}))
        self._close([row[0] for row in left])

    def _give_up_looking(self) -> None:
        """Mark targets unproved if nobody is left on their host to look, until somebody does."""
        rows = self.q("forsaken_targets", seconds=LOOK_SECONDS)
        if not rows or not self.q("try_orders")[0][0]:
            return  # an order is being given right now; the next heartbeat tries again
        for stop_id, target, _, host in rows:
            self.q(
                "report_target",
                stop_id=stop_id,
                target=target,
                stage=Stage.UNPROVED,
                evidence=f"nobody has looked on {host} for what it had started: order it there",
                ends=True,
            )
        self._carry_out(*sorted({row[2] for row in rows}))
        self._close([row[0] for row in rows])

    def _carry_out(self, *run_ids: str) -> None:
        raise NotImplementedError

    def _close(self, stop_ids: Iterable[str]) -> None:
        raise NotImplementedError

    def _state_after(self, worker_id: str, state: str) -> str:
        """Return how a worker counts as ended, given what was seen of its end."""
        if state != Sight.PROCESS:
            return state
        started = bool(self.q("has_started", worker_id=worker_id))
        return Sight.ALL if is_certain(Sight.PROCESS, has_started=started) else Sight.NOTHING

    # ── reads ─────────────────────────────────────────────────────────────────────────────────

    def stops(self, limit: int = 50, ask: Callable[..., Rows] | None = None) -> list[StopRow]:
        return [_stop_row(row) for row in (ask or self.read)("stops", limit=limit)]

    def stop(self, stop_id: str) -> StopRow | None:
        return next((_stop_row(row) for row in self.read("stop", id=stop_id)), None)

    def latches(self) -> list[StopRow]:
        return self._latches(self.read)

    def _latches(self, ask: Callable[..., Rows]) -> list[StopRow]:
        return [_stop_row(row) for row in ask("latches")]

    def targets(self, stop_id: str) -> list[TargetRow]:
        return [build(TargetRow, row) for row in self.read("targets", stop_id=stop_id)]

    def unproved(self) -> list[TargetRow]:
        return [build(TargetRow, row) for row in self.read("unproved")]


def _stop_row(row: Sequence[Any]) -> StopRow:
    named = dict(zip(StopRow.__struct_fields__, row, strict=True))
    return StopRow(**{**named, "latched": bool(named["latched"]), "spare": said(named["spare"])})

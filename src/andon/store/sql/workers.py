"""Workers: they register, beat, drain and end.

A run goes back to the queue in the same commit that ends its worker.
"""

from __future__ import annotations

import json
import shlex
import time

from andon.core.run import Event, State, advance
from andon.errors import Conflict, Fenced, NotFound
from andon.store.sql.reads import fields

TYPE_CHECKING = False  # commands must not pay for imports they do not need
if TYPE_CHECKING:
    from andon.core.journal import Entry
    from andon.core.queue import Lost
    from andon.store.messages.stops import WorkerGone
    from andon.store.sql.events import EventHandler
    from andon.store.sql.inbox import InboxHandler
    from andon.store.sql.limits import LimitHandler
    from andon.store.sql.processes import ProcessHandler
    from andon.store.sql.reads import Query, Reads
    from andon.store.sql.targets import TargetHandler
    from andon.store.store import AskDrain, Beat, Depart, Drain, Promote, Register


class WorkerHandler:
    """Handles the messages about workers, and takes back the runs of those that end."""

    def __init__(
        self,
        q: Query,
        reads: Reads,
        events: EventHandler,
        inbox: InboxHandler,
        limits: LimitHandler,
        processes: ProcessHandler,
        targets: TargetHandler,
    ) -> None:
        self.q, self._reads, self._limits = q, reads, limits
        self._events, self._inbox = events, inbox
        self._processes, self._targets = processes, targets

    def register(self, m: Register) -> tuple[int, float]:
        for agent in m.agents:
            for known in self._reads.agents(agent.name):
                if known.version == agent.version and known.parameters != agent.parameters:
                    raise Conflict(
                        f"agent {agent.name!r} version {agent.version!r} is registered with other "
                        f"parameters: {known.parameters}, not {agent.parameters}. Give changed "
                        "code a new version: @andon.agent(version=…)."
                    )
        for agent in m.agents:
            self.q("register_agent", **fields(agent), promote=m.promote)
            if m.promote_known:
                self.q("promote", version=agent.version, name=agent.name)
                self._events.note("version.promoted", agent=agent.name, version=agent.version)
        self._limits.declare({agent.name for agent in m.agents})
        self.q("register_worker", **fields(m.worker), lease_seconds=m.lease_seconds)
        self._events.note("worker.started", worker=m.worker.id, agents=json.loads(m.worker.agents))
        return self.q("epoch")[0][0], self._reads.now()

    def beat(self, m: Beat) -> float:
        rows = self.q("beat", **fields(m))
        if not rows:
            raise Fenced("", worker=m.worker_id)
        self._processes.give_up_looking()
        now: float = rows[0][0]
        return now

    def depart(self, m: Depart) -> None:
        if m.drain is not None:
            self.q("end_drain", worker_id=m.worker_id, drain=m.drain)
        if not m.alive:
            self.take_back(m.worker_id, "gone", "it said so", interrupted=False, limit=0)

    def drain(self, m: Drain) -> float:
        # Backdate the drain to when the worker was told: runs it gave back before this write got
        # through must count as given back during the drain.
        ago = m.ago + (time.monotonic() - m.made_at if m.made_at else 0.0)
        rows = self.q("begin_drain", worker_id=m.worker_id, drain=m.drain, ago=ago)
        if not rows:
            raise Fenced("", worker=m.worker_id)
        self._events.note("worker.draining", worker=m.worker_id, **json.loads(m.drain))
        at: float = rows[0][0]
        return at

    def ask_drain(self, m: AskDrain) -> bool:
        found = bool(self.q("ask_drain", worker_id=m.worker_id))
        if found:
            self._events.note("worker.asked", worker=m.worker_id, by=m.by)
        return found

    def promote(self, m: Promote) -> list[str]:
        names = [str(name) for (name,) in self.q("promote", version=m.version, name=m.agent)]
        if not names:
            of = f"agent {m.agent!r}" if m.agent else "any agent"
            raise NotFound(f"there is no version {m.version!r} of {of}; andon versions lists them")
        for name in names:
            self._events.note("version.promoted", agent=name, version=m.version, by=m.by)
        self._limits.declare(set(names))
        return sorted(names)

    def take_back(
        self,
        worker_id: str,
        state: str,
        how: str,
        *,
        interrupted: bool,
        limit: int,
        seen: float = 0.0,
    ) -> int:
        """End a worker and queue its runs ahead of new work; return how many it held.

        `how`: the evidence. `seen`: when it was seen to end, by time.monotonic(); 0 if it was not.
        """
        from andon.core.queue import bury, fruitless_after

        state = self._processes.state_after(worker_id, state)
        ago = max(time.monotonic() - seen, 0.0) if seen else 0.0
        if not self.q("end_worker", worker_id=worker_id, state=state, evidence=how, ago=ago):
            return 0
        if interrupted and state == "dead":
            interrupted = not self.q("is_ended_by_order", worker_id=worker_id)
        self.q("lock_runs_of", worker_id=worker_id)
        held = self.q("held_runs", worker_id=worker_id)
        self._events.note("worker.ended", worker=worker_id, state=state, how=how, held=len(held))
        kept = self._kept_by(worker_id) if interrupted else {}
        for run_id, fence, before, progressed, head_seq, head_hash, step in held:
            lost = self._progress_of(run_id, before, bool(progressed), kept.get(run_id, []))
            fruitless = fruitless_after(lost) if interrupted else 0
            buried = interrupted and bury(fruitless, limit, lost.moved)
            deaths = max(fruitless, lost.moved)
            end = (
                _buried_entry(head_seq, head_hash, fence, deaths, step, run_id) if buried else None
            )
            new_state = advance(State.RUNNING, Event.BURY if buried else Event.RETURN)
            rows = self.q(
                "give_back_run",
                run_id=run_id,
                fence=fence,
                state=new_state,
                interrupted=int(interrupted),
                fruitless=fruitless,
                error=end.body if end else None,
                head_seq=end.seq if end else head_seq,
                head_hash=end.hash if end else head_hash,
            )
            ending = "interrupted" if interrupted else "returned"
            self.q("end_attempt", run_id=run_id, fence=fence, ending=ending)
            if lost.checkpoint is not None and not buried:  # a redrive starts counting from 0
                self.q("keep_digest", run_id=run_id, fence=fence, checkpoint=lost.checkpoint)
            if end and rows:
                self.q("insert_entry", run_id=run_id, **fields(end))
                self._inbox.notify_parent(rows[0][0], run_id, new_state)
        if state == "gone":
            self._processes.left(worker_id)
        self._targets.prove_end(worker_id, state, how, [str(row[0]) for row in held])
        return len(held)

    def _kept_by(self, worker_id: str) -> dict[str, list[tuple[str, str]]]:
        """Return the checkpoints of the runs that a worker holds, by run."""
        found: dict[str, list[tuple[str, str]]] = {}
        for run_id, op, body in self.q("held_checkpoints", worker_id=worker_id):
            found.setdefault(run_id, []).append((op, body))
        return found

    def _progress_of(
        self, run_id: str, fruitless: int, finished: bool, kept: list[tuple[str, str]]
    ) -> Lost:
        from andon.core.queue import Lost, checkpoint_digest

        digest = None if finished else checkpoint_digest(kept)
        moved, known = 0, 0
        if digest is not None:
            [(moved, known)] = self.q("known_digests", run_id=run_id, checkpoint=digest)
        return Lost(fruitless, finished, digest, bool(known), moved + (digest is not None))

    def bury(self, m: WorkerGone) -> int:
        """End a worker whose process is gone, even one that has departed: only this proves it."""
        limit, interrupted = m.interruption_limit, not m.ordered
        held = self.take_back(
            m.worker_id, "dead", m.evidence, interrupted=interrupted, limit=limit, seen=m.seen_at
        )
        if not held:
            self._targets.prove_end(m.worker_id, "dead", m.evidence)
        return held

    def renew(self, identity: str) -> None:
        """Start a new epoch if the database was replaced, and take back all runs.

        A worker may have written more than the replaced database remembers. The store would refuse
        its every write while its heartbeats went on for ever, so it is given up too.
        """
        if self.q("renew_epoch", identity=identity):
            for worker_id, *_ in self.q("workers"):
                why = "the database was replaced, restored or promoted"
                self.take_back(worker_id, "silent", why, interrupted=False, limit=0)


def _buried_entry(
    head_seq: int, head_hash: str, fence: int, deaths: int, step: str | None, run_id: str
) -> Entry:
    from andon.core.journal import Entry, EntryKind, chain

    hand = f"in step {step!r}, which never finished" if step else "before one more step finished"
    error = {
        "type": "GivenUp",
        "message": f"its worker died {deaths} times in a row {hand}. "
        f"To continue it: andon dead redrive {shlex.quote(run_id)}",
    }
    entry = Entry(
        seq=head_seq + 1,
        kind=EntryKind.END,
        state=State.DEAD,
        body=json.dumps(error),
        fence=fence,
    )
    entry.hash = chain(head_hash, entry)
    return entry

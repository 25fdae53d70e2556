"""Messages of and about workers: register, beat, drain, end, and claim runs.

A run goes back to the queue in the same commit that ends its worker.
"""

from __future__ import annotations

import json
import shlex
import time

from andon.core.run import Event, State, advance
from andon.core.stop import StopKind, StopScope
from andon.core.values.struct import Struct
from andon.errors import Conflict, Fenced, NotFound
from andon.store.messages.stops import told
from andon.store.sql.limits import wanted
from andon.store.sql.reads import build, fields
from andon.store.sql.supervisors import SqlSupervisors
from andon.store.store import (
    AskDrain,
    Beat,
    Claim,
    Claimed,
    ClaimResult,
    Depart,
    Drain,
    NoteEvent,
    Promote,
    Register,
)

TYPE_CHECKING = False  # commands must not pay for imports they do not need
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from andon.core.journal import Entry
    from andon.core.queue import Lost
    from andon.store.sql.limits import Held

NO_CLAIM = -1
OVERDUE = json.dumps({"why": "it was not resumed in time", "by": ""})


class ClaimFacts(Struct):
    """The facts a claim reads before it takes runs."""

    drain: bool
    limited: bool
    overdue: bool
    due: bool
    unresumed: bool
    wake_in: float | None
    recalled: str  # JSON
    latched: str  # JSON
    ends_in: float | None  # seconds until an order becomes hard
    orders: str  # JSON
    repeated: bool


class SqlFleet(SqlSupervisors):
    """Handles the messages about workers."""

    def _register(self, m: Register) -> tuple[int, float]:
        for agent in m.agents:
            for known in self._agents(agent.name, self.q):
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
                self._note("version.promoted", agent=agent.name, version=agent.version)
        self._declare({agent.name for agent in m.agents})
        self.q("register_worker", **fields(m.worker), lease_seconds=m.lease_seconds)
        self._note("worker.started", worker=m.worker.id, agents=json.loads(m.worker.agents))
        return self.q("epoch")[0][0], self.q("now")[0][0]

    def _beat(self, m: Beat) -> float:
        rows = self.q("beat", **fields(m))
        if not rows:
            raise Fenced("", worker=m.worker_id)
        self._give_up_looking()
        now: float = rows[0][0]
        return now

    def _depart(self, m: Depart) -> None:
        if m.drain is not None:
            self.q("end_drain", worker_id=m.worker_id, drain=m.drain)
        if not m.alive:
            self._take_back(m.worker_id, "gone", "it said so", interrupted=False, limit=0)

    def _drain(self, m: Drain) -> float:
        # Backdate the drain to when the worker was told: runs it gave back before this write got
        # through must count as given back during the drain.
        ago = m.ago + (time.monotonic() - m.made_at if m.made_at else 0.0)
        rows = self.q("begin_drain", worker_id=m.worker_id, drain=m.drain, ago=ago)
        if not rows:
            raise Fenced("", worker=m.worker_id)
        self._note("worker.draining", worker=m.worker_id, **json.loads(m.drain))
        at: float = rows[0][0]
        return at

    def _ask_drain(self, m: AskDrain) -> bool:
        found = bool(self.q("ask_drain", worker_id=m.worker_id))
        if found:
            self._note("worker.asked", worker=m.worker_id, by=m.by)
        return found

    def _promote(self, m: Promote) -> list[str]:
        names = [str(name) for (name,) in self.q("promote", version=m.version, name=m.agent)]
        if not names:
            of = f"agent {m.agent!r}" if m.agent else "any agent"
            raise NotFound(f"there is no version {m.version!r} of {of}; andon versions lists them")
        for name in names:
            self._note("version.promoted", agent=name, version=m.version, by=m.by)
        self._declare(set(names))
        return sorted(names)

    def _write_note(self, m: NoteEvent) -> None:
        self.q("insert_event", **fields(m))

    def _take_back(
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

        state = self._state_after(worker_id, state)
        ago = max(time.monotonic() - seen, 0.0) if seen else 0.0
        if not self.q("end_worker", worker_id=worker_id, state=state, evidence=how, ago=ago):
            return 0
        if interrupted and state == "dead":
            interrupted = not self.q("is_ended_by_order", worker_id=worker_id)
        self.q("lock_runs_of", worker_id=worker_id)
        held = self.q("held_runs", worker_id=worker_id)
        self._note("worker.ended", worker=worker_id, state=state, how=how, held=len(held))
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
                self._tell_parent(rows[0][0], run_id, new_state)
        self._prove_end(worker_id, state, how, [str(row[0]) for row in held])
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

    def _claim(self, m: Claim) -> ClaimResult:
        self.q("lock_worker", worker_id=m.worker_id)
        returned, seen = 0, dict(m.seen)
        for worker_id, evidence in m.dead:
            state, _, words = evidence.partition(":")
            returned += self._take_back(
                worker_id,
                state,
                words,
                interrupted=True,
                limit=m.interruption_limit,
                seen=seen.get(worker_id, 0.0),
            )
        usual = self._claim_usual(m)
        if usual is not None:
            return usual.but(returned=returned)
        found = self.q("look", worker_id=m.worker_id, claim=m.number or NO_CLAIM)
        if not found:  # the worker never registered in this database
            return ClaimResult(runs=[], wake_in=None, returned=returned)
        return self._claim_after(m, build(ClaimFacts, found[0]), returned)

    def _claim_usual(self, m: Claim) -> ClaimResult | None:
        """Claim in one query if nothing unusual is pending, else return None.

        A dialect overrides this where each query costs a round trip.
        """
        return None

    def _claim_after(self, m: Claim, look: ClaimFacts, returned: int) -> ClaimResult:
        """Do all that must precede a claim, then claim within the limits and latches."""
        due, unresumed, window, repeated = look.due, look.unresumed, look.ends_in, look.repeated
        latches = json.loads(look.latched)
        # While the whole fleet is held, due runs stay asleep and nothing is undone.
        free = not any(scope == StopScope.FLEET for scope, *_ in latches)
        if window is not None and window <= 0:
            self._escalate()
        if look.overdue and m.expire and self._may_expire(m):
            returned += self._expire(m)
        if due and free:
            self.q("wake_due", limit=100)
        if unresumed and free:
            for (run_id,) in self.q("give_up_overdue", limit=100, undoing=OVERDUE):
                self._note("run.undoing", run_id=run_id, **json.loads(OVERDUE))
        rows: list[Claimed] = []
        rate_in = None
        if m.limit > 0 and free:
            held = [(scope, name, value, 0) for scope, name, value, _ in latches]
            if repeated:  # its commit's outcome was unknown
                before = self.q("claimed_before", worker_id=m.worker_id, claim=m.number)
                rows = self._with_starts([claimed(row) for row in before])
            else:
                rows, rate_in = self._claim_runs(m, held, limited=look.limited or bool(held))
        # Each claim wakes a bounded number of runs, so more may be due: claim again at once.
        soon = look.wake_in if not (due or unresumed) else 0.0 if free else None
        return answer(look, rows, soon, rate_in, window, returned=returned)

    def hear(self, worker_id: str) -> ClaimResult:
        """Return the orders a claim would carry, for a worker that claims nothing any more."""
        found = self.read("look", worker_id=worker_id, claim=NO_CLAIM)
        if not found:
            return ClaimResult(runs=[], wake_in=None, returned=0)
        return answer(build(ClaimFacts, found[0])).but(drain=False, recalled=())

    def _expire(self, m: Claim) -> int:
        """End workers whose lease is overdue; return how many runs that gives back."""
        why, limit = "its lease ended", m.interruption_limit
        return sum(
            self._take_back(worker_id, "silent", why, interrupted=True, limit=limit)
            for (worker_id,) in self.q("overdue_workers")
        )

    def _may_expire(self, m: Claim) -> bool:
        """Return whether this worker may expire others.

        Uses the store's clock at the moment of the write, which may have waited out an outage.
        """
        from andon.core.lease import may_expire_others

        contact = self.q("contact", worker_id=m.worker_id, lease_seconds=m.lease_seconds)
        if not contact:
            return False
        [(since, now)] = contact
        return may_expire_others(since, now, m.lease_seconds)

    def _claim_runs(
        self, m: Claim, held: list[Held], *, limited: bool
    ) -> tuple[list[Claimed], float | None]:
        """Return the claimed runs, and the seconds until a rate lets the next one begin."""
        if limited:
            rows, rate_in = self._claim_admitted(m, held)
        else:
            rows, rate_in = self.q("claim_runs", **wanted(m), limit=m.limit, chosen=None), None
        runs = [claimed(row) for row in rows]
        if runs:
            begun = [(run.id, run.fence.counter, run.attempt) for run in runs]
            self.q("begin_attempts", worker_id=m.worker_id, claim=m.number, runs=json.dumps(begun))
        return self._with_starts(runs), rate_in

    def _with_starts(self, runs: list[Claimed]) -> list[Claimed]:
        """Attach the start entry to each untouched run: its worker then need not load a journal."""
        untouched = [run.id for run in runs if (run.attempt, run.head_seq, run.inbox) == (1, 0, 0)]
        if not untouched:
            return runs
        from andon.core.journal import Entry

        rows = self.q("start_entries", run_ids=json.dumps(untouched))
        starts = {run_id: build(Entry, row) for run_id, *row in rows}
        return [run.but(start=starts.get(run.id)) for run in runs]

    def _tell_parent(self, parent_id: str | None, child_id: str, state: str) -> None:
        if parent_id is None or not self.q("deliver", run_id=parent_id):
            return
        self.q(
            "insert_message",
            run_id=parent_id,
            kind="child",
            name=child_id,
            body=json.dumps(state),
            message_id=f"child:{child_id}",
        )

    def _renew(self, identity: str) -> None:
        """Start a new epoch if the database was replaced, and take back all runs.

        A worker may have written more than the replaced database remembers. The store would refuse
        its every write while its heartbeats went on for ever, so it is given up too.
        """
        if self.q("renew_epoch", identity=identity):
            for worker_id, *_ in self.q("workers"):
                why = "the database was replaced, restored or promoted"
                self._take_back(worker_id, "silent", why, interrupted=False, limit=0)


def answer(
    look: ClaimFacts, runs: Sequence[Claimed] = (), *times: float | None, returned: int = 0
) -> ClaimResult:
    """Build the answer to a claim; `times`: seconds after which there may be something to do."""
    return ClaimResult(
        runs=list(runs),
        wake_in=soonest(*times),
        returned=returned,
        drain=bool(look.drain),
        recalled=json.loads(look.recalled),
        told=told(look.orders),
        halted=any(kind == StopKind.HALT for *_, kind in json.loads(look.latched)),
    )


def soonest(*times: float | None) -> float | None:
    return min((seconds for seconds in times if seconds is not None), default=None)


def claimed(row: Sequence[Any]) -> Claimed:
    from andon.core.lease import Fence

    run_id, agent, version, attempt, epoch, counter, *rest = row
    return build(Claimed, (run_id, agent, version, attempt, Fence(epoch, counter), *rest, None))


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

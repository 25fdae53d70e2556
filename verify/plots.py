"""Short plots: a few messages in an order in which something could go wrong, sent to both stores.

Random messages rarely meet in this way. Each plot is played alone; in addition each example begins
with some, and plays more on the way.
"""

import itertools
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from tests.store.parts import Held, blob, effect, new_run

from andon.core.lease import Fence
from andon.core.run import State
from andon.errors import BadInput, Conflict
from andon.store.messages.stops import Ended, Order, WorkerGone
from andon.store.store import Checkpoint, Deliver, Drain, Message, MoveRun, Recall, Start
from verify.machine import LEASE_SECONDS
from verify.orphan_plots import (
    BESIDE,
    HARD,
    NEIGHBOUR,
    ORPHAN_PLOTS,
    UNHEEDED,
    OrphanPlots,
)
from verify.supervisor_plots import SUPERVISOR_PLOTS

Plot = tuple[Any, ...]  # its name and its subject

LATE = [("late", epoch) for epoch in (-1, 0, 1)]
HELD = [
    ("held", kind, scope)
    for kind, scope in itertools.product(("pause", "kill", "halt"), ("agent", "label", "fleet"))
]
CHILD = [("child", how) for how in ("ends", "dies", "is cancelled", "is killed with it")]
STOP = [
    ("stop", kind, then)
    for kind, then in itertools.product(
        ("pause", "cancel", "kill"),
        (
            "spawns",
            "is overdue",
            "ends",
            "has succeeded",
            "says so",
            "dies",
            "falls silent",
            "is reported",
            "is paused",
            "is killed once more",
            "says goodbye",
        ),
    )
]
DUE = [("due", what) for what in ("wakes", "is not resumed", "is not obeyed")]
UNFIT = [("unfit", where) for where in ("ahead", "behind")]
SINGLE: list[Plot] = [
    ("over",),
    ("recalled",),
    ("in_turn",),
    ("outage",),
    ("spoiled",),
    ("drains",),
    ("redriven",),
    ("along",),
    ("rated",),
    ("suspected",),
    ("asked",),
]
AMONG = [
    ("among", what) for what in ("version", "queue", "only", "priority", "returned", "undoing")
]
FRUITS = [
    ("fruits", *about)
    for about in itertools.product(
        ("nothing", "a step", "a checkpoint", "the same checkpoint"), ("buried", "silent")
    )
]
OWES = [
    *[
        ("owes", how, "confirmed")
        for how in ("fails", "sleeps", "strands", "pause", "kill", "halt")
    ],
    ("owes", "is paused while it works", "confirmed"),
    *itertools.product(
        ("owes",),
        ("is given back", "cancel", "is cancelled while it works"),
        ("confirmed", "started", None),
    ),
]
PLOTS = [
    *SINGLE,
    *DUE,
    *UNFIT,
    *LATE,
    *HELD,
    *CHILD,
    *STOP,
    *AMONG,
    *FRUITS,
    *OWES,
    *SUPERVISOR_PLOTS,
    *ORPHAN_PLOTS,
    *BESIDE,
    *UNHEEDED,
    *HARD,
    *NEIGHBOUR,
]


class Plots(OrphanPlots):
    """The moves, and the plots made of several."""

    @initialize(
        runs=st.integers(1, 4),
        workers=st.integers(1, 2),
        plots=st.lists(st.sampled_from(PLOTS), min_size=2, max_size=3),
    )
    def begin_with(self, runs: int, workers: int, plots: list[Plot]) -> None:
        self.begin(runs, workers)
        for plot in plots:
            self.play(plot)

    def play_alone(self, plot: Plot) -> None:
        """Plays each at least once, whatever chance draws, with all that it sends twice."""
        for self.twice in (False, True):
            self.workers, self.runs, self.held = [], [], []
            self.begin(2, 2)
            self.play(plot)
        self.pair.ask()

    @rule(plot=st.sampled_from(PLOTS))
    def play(self, plot: Plot) -> None:
        name, *about = plot
        getattr(self, f"_{name}")(*about)

    # ── the parts of plots ────────────────────────────────────────────────────────────────────

    def _claim_all(self) -> None:
        """Claims everything with a worker that can execute it."""
        if not self._able():
            self.register()
        self.claim(self.workers.index(self._able()[-1]), 9, None, False)

    def _able(self) -> list[str]:
        workers = self.pair.sqlite.workers()
        return [one.id for one in workers if one.state == "live" and not one.draining_at]

    def _own(self) -> Held:
        """A run that was just claimed, unless a stop or limit holds it back."""
        self._start_another()
        self._claim_all()
        return self.held[-1]

    def _start_another(self, *, together: int = 1) -> None:
        new = [f"s{len(self.runs) + number}" for number in range(together)]
        self.runs += new
        self.send(*(Start(run=new_run(name, labels='{"tenant": "t0"}')) for name in new))

    def _give(self, kind: str, run_id: str, **of: Any) -> None:
        self.orders += 1
        name = f"o{self.orders}"
        self.send(Order(id=name, kind=kind, scope="run", name=run_id, within=30.0, **of))

    own, give = _own, _give

    def _try_late(self, held: Held, *messages: Message) -> None:
        self.send(*messages)
        held.look_again(self.pair.sqlite)

    # ── the plots ─────────────────────────────────────────────────────────────────────────────

    def _over(self) -> None:
        """A run ends, and afterwards no message reaches it."""
        held = self._own()
        self.send(self.settlement(held, State.SUCCEEDED, False, False, False))
        self.send(Deliver(run_id=held.id, kind="event", body="1", name="e", message_id="late"))
        self._try_late(held, self.settlement(held, State.FAILED, False, False, False))

    def _recalled(self) -> None:
        """A run ends while a person wants it undone."""
        held = self._own()
        self.send(Recall(run_id=held.id, undoing='{"why": "wrong"}'))
        self._try_late(held, self.settlement(held, State.SUCCEEDED, False, False, False))

    def _late(self, epoch: int) -> None:
        """A former owner writes before the current one; or has its fence, in a replaced database.

        It knows where the journal ends: only its fence is wrong.
        """
        held = self._own()
        if epoch == 0:
            self.send(WorkerGone(worker_id=self.worker_of(held), evidence="it ended"))
            self._claim_all()
        other = self._own()
        owner = next(one for one in reversed(self.held) if one.id == held.id)
        if owner is held:
            owner = Held(held.claimed)
            owner.look_again(self.pair.sqlite)
        held.fence = Fence(held.fence.epoch + epoch, held.fence.counter)
        self._try_late(held, held.append())
        self._try_late(held, held.append(entries=2))
        self._try_late(held, held.append(), other.append())
        # In one commit with the owner's message, as if it continued from there.
        first = owner.append()
        held.seq, held.hash = owner.seq, owner.hash
        self._try_late(held, first, held.append())
        self._try_late(held, self.write(held, kind="effect", state="started", name="pay", key="a"))
        self._try_late(held, Checkpoint(run_id=held.id, fence=held.fence, op=":0", body="1"))
        for state in (State.SUSPENDED, State.QUEUED, State.SUCCEEDED):
            self._try_late(held, self.settlement(held, state, False, False, False))
        held.fence = held.claimed.fence
        for one in (owner, other):
            one.look_again(self.pair.sqlite)

    def _in_turn(self) -> None:
        """The messages of an owner in one commit are carried out in order, whatever their kind.

        An end that came before the others would have them refused.
        """
        for kinds in ("ap", "pap", "cs", "as", "paps", "ppcs"):
            held = self._own()
            made: dict[str, Callable[[Held], Message]] = {
                "p": Held.append,
                "a": self._asking,
                "c": lambda one: Checkpoint(run_id=one.id, fence=one.fence, op=":0", body="1"),
                "s": lambda one: self.settlement(one, State.SUSPENDED, False, False, False),
            }
            row = self.pair.sqlite.run(held.id)
            owns = row is not None and (row.state, row.fence) == ("running", held.fence.counter)
            outcomes = self.send(*(made[kind](held) for kind in kinds))
            refused = [one for one in outcomes if isinstance(one, Exception)]
            if refused and owns:
                raise AssertionError(f"of {kinds} of one owner in one commit: {refused[0]}")
            held.look_again(self.pair.sqlite)

    def _outage(self) -> None:
        """The database was away longer than any lease; the workers come back one by one."""
        self._own()
        self.register()
        self.time_passes(LEASE_SECONDS * 1.5)
        for which in (len(self.workers) - 1, 0):
            self.beat(which)
            self.claim(which, 9, None, False)

    def _spoiled(self) -> None:
        """A value that no database accepts is refused, and does not spoil the commit it shares."""
        held, other = self._own(), self._own()
        for text in ("\0", "\ud800"):
            bad = Checkpoint(run_id=held.id, fence=held.fence, op=":0", body=text)
            outcomes = self.send(bad, other.append(), held.append())
            assert isinstance(outcomes[0], BadInput), f"{text!r} is kept: {outcomes[0]!r}"
            for one in (held, other):
                one.look_again(self.pair.sqlite)

    def _drains(self) -> None:
        """A draining worker claims nothing more, although a run waits."""
        self._start_another()
        if not self._able():
            self.register()
        worker = self._able()[-1]
        self.send(Drain(worker_id=worker, drain='{"why": "SIGTERM"}', ago=0.5))
        before = len(self.held)
        self.claim(self.workers.index(worker), 9, None, False)
        assert len(self.held) == before, f"{worker} drains, and claims {self.held[-1].id}"

    def _due(self, what: str) -> None:
        """Time passes, and the next claim has to act on it, whichever worker makes it."""
        held = self._own()
        match what:
            case "wakes":
                self.send(self.settlement(held, State.SUSPENDED, False, True, False))
            case "is not resumed":
                undo: dict[str, Any] = {"undo": "m:f", "undo_within": 5.0}
                owed = effect(seq=held.seq + 1, kind="compensatable", state="confirmed", **undo)
                self.send(held.append(of={"state": "confirmed"}, effects=(owed,)))
                self.send(self.settlement(held, State.STRANDED, False, False, False))
            case _:
                self._give("pause", held.id)
        self.register()
        self.time_passes(60.0)
        self._claim_all()
        held.look_again(self.pair.sqlite)

    def _unfit(self, where: str) -> None:
        """The owner itself writes entries that do not follow the end of its journal.

        Its earlier message has not arrived, or there is another entry already.
        """
        held, other = self._own(), self._own()
        self.send(held.append())
        head = held.seq, held.hash

        def misled() -> Held:
            held.seq, held.hash = head
            if where == "ahead":
                held.entry(name="lost")
            else:
                held.seq, held.hash = held.seq - 1, "0" * 64
            return held

        self.send(misled().append())
        self.send(misled().append(entries=2))
        self.send(misled().append(), other.append())
        self.send(self.write(misled(), kind="effect", state="started", name="pay", key="a"))
        self.send(misled().append(of={"kind": "event"}, take=0))
        # Alone, and with others that succeed.
        self.send(self.settlement(misled(), State.SUCCEEDED, False, False, False))
        ends = (misled(), State.FAILED), (other, State.SUCCEEDED)
        self.send(*(self.settlement(one, state, False, False, False) for one, state in ends))
        held.seq, held.hash = head
        self.send(held.append())

    def _redriven(self) -> None:
        """A person lets a run resume after seeing another end of its journal than it has."""
        held = self._own()
        self.send(self.settlement(held, State.STRANDED, False, False, False))

        def reopened() -> MoveRun:
            entry = held.entry(kind="retry", state="reopened")
            return MoveRun(run_id=held.id, seen="stranded", state="queued", entries=(entry,))

        held.entry(name="lost")
        [outcome] = self.send(reopened())
        assert isinstance(outcome, Conflict), f"{held.id} goes on behind a gap: {outcome!r}"
        held.look_again(self.pair.sqlite)
        self.send(reopened())
        held.look_again(self.pair.sqlite)

    def _held(self, kind: str, scope: str) -> None:
        """In a held scope nothing starts until the hold is lifted in the way it requires."""
        scope = "fleet" if kind == "halt" else scope
        self.order(0, kind, scope, 30.0)
        self._start_another()
        self._start_another(together=2)
        for hard in (False, True, False):  # refused, if the order was hard and this is not
            self._claim_all()
            self.lift(scope, hard)
        self._claim_all()

    def _child(self, how: str) -> None:
        """A child is executed and ends while its parent sleeps."""
        held = self._own()
        self.spawn_of(held)
        self._claim_all()
        child = self.held[-1]
        self.send(self.settlement(held, State.SUSPENDED, False, False, False))
        match how:
            case "ends":
                self.send(self.settlement(child, State.SUCCEEDED, False, False, False))
            case "dies":
                worker = self.worker_of(child)
                self.send(WorkerGone(worker_id=worker, evidence="it ended", interruption_limit=1))
            case "is cancelled":
                self._give("cancel", child.id)
                self.send(self.settlement(child, State.QUEUED, True, False, False))
            case _:
                self._give("kill", held.id)
        for one in (held, child):
            one.look_again(self.pair.sqlite)

    def _stop(self, kind: str, then: str) -> None:
        """A run that is being executed is stopped; its worker receives the order, or does not."""
        held = self._own()
        worker = self.worker_of(held)
        self._give(kind, held.id)
        match then:
            case "spawns":
                self.spawn_of(held)
            case "is overdue":
                self.time_passes(60.0)
                self._claim_all()
            case "ends":
                self.send(self.settlement(held, State.QUEUED, True, False, False))
            case "has succeeded":
                self.send(self.settlement(held, State.SUCCEEDED, False, False, False))
            case "says so":
                self.send(Ended(worker_id=worker, run_id=held.id, fence=held.fence.counter))
            case "dies" | "says goodbye" | "falls silent":
                self.lose(worker, then)
            case "is paused":
                self._give("pause", held.id)
            case "is killed once more":
                self._give("kill", held.id)
                self.order(0, "kill", "agent", 30.0)
            case _:  # to one of two orders
                self._give("kill", held.id)
                self.report(-2, "verified")
        self.send(MoveRun(run_id=held.id, seen="killed", state="queued", fresh=True))
        self._claim_all()
        self.send(Ended(worker_id=worker, run_id=held.id, fence=held.fence.counter))
        held.look_again(self.pair.sqlite)

    def _among(self, what: str) -> None:
        """Several runs wait; not all of them are for the claiming worker, nor for the next one."""
        new = [f"s{len(self.runs) + number}" for number in range(3)]
        self.runs += new
        of: dict[str, Any] = {"version": "2", "queue": "slow", "priority": 1}
        of = {what: of[what]} if what in of else {}
        for name, more in zip(new, ({}, of, {}), strict=True):
            self.send(Start(run=new_run(name, **more)))
        if not self._able():
            self.register()
        worker = self.workers.index(self._able()[-1])
        wanted: dict[str, Any] = {"only": {"only": (new[1],)}, "queue": {"queues": ("default",)}}
        if what in ("returned", "undoing"):
            self.claim(worker, 1, None, False, only=(new[2],))
            held = self.held[-1]
            if what == "undoing":
                self.send(Recall(run_id=held.id, undoing='{"why": "wrong"}'))
            self.send(self.settlement(held, State.QUEUED, True, False, False))
        agents = {"undoing": (("agent", "2"),)}.get(what, (("agent", "1"),))
        for limit in (1, 3):
            self.claim(worker, limit, None, False, agents=agents, **wanted.get(what, {}))

    def _fruits(self, fruit: str, how: str) -> None:
        """A run's workers die again and again, each time with one step or checkpoint more, or 0."""
        held = self._own()
        for number in range(5):
            written = ("started", "done") if fruit == "a step" else ("started", "retrying")
            for state in written:
                self.send(held.append(of={"state": state}))
            if "checkpoint" in fruit:
                body = "1" if fruit == "the same checkpoint" else str(number)
                self.send(Checkpoint(run_id=held.id, fence=held.fence, op=":9", body=body))
            if how == "buried":
                bury = WorkerGone(worker_id=self.worker_of(held), evidence="", interruption_limit=3)
                self.send(bury)
            else:
                self._outlive()
            self.register()
            self._claim_all()
            held = next(one for one in reversed(self.held) if one.id == held.id)
            held.look_again(self.pair.sqlite)

    def _suspected(self) -> None:
        """Several runs shared a worker when it died: they must not share one again."""
        self._start_another(together=3)
        self._claim_all()
        held = self.held[-1]
        for _ in range(2):
            bury = WorkerGone(
                worker_id=self.worker_of(held), evidence="it ended", interruption_limit=9
            )
            self.send(bury)
            self.register()
            self._claim_all()
            held = self.held[-1]

    def _owes(self, how: str, state: str | None) -> None:
        """A run has effects to undo, unless a person resumes it in time."""
        held = self._own()
        undo: dict[str, Any] = {"undo": "m:f", "undo_within": 20.0}
        if state is not None:
            owed = effect(seq=held.seq + 1, kind="compensatable", state=state, **undo)
            self.send(held.append(of={"state": state}, effects=(owed,)))
        self.send(self._asking(held))
        match how:
            case "is given back":
                self.send(WorkerGone(worker_id=self.worker_of(held), evidence="it ended"))
            case "fails":
                self.send(self.settlement(held, State.QUEUED, False, False, True))
            case "sleeps":
                self.send(self.settlement(held, State.SUSPENDED, False, True, False))
                self.send(Deliver(run_id=held.id, kind="event", body="1", name="e", message_id="e"))
            case "strands":
                self.send(self.settlement(held, State.STRANDED, False, False, False))
                self.send(MoveRun(run_id=held.id, seen="stranded", state="queued"))
            case "halt":
                self.order(0, "halt", "fleet", 30.0)
            case "is paused while it works" | "is cancelled while it works":
                self._give("pause" if "paused" in how else "cancel", held.id)
                self.send(self.settlement(held, State.QUEUED, True, False, False))
            case _:
                self.send(self.settlement(held, State.SUSPENDED, False, True, False))
                self._give(how, held.id)
        self.time_passes(100.0)
        self.register()
        self._claim_all()
        held.look_again(self.pair.sqlite)

    def _along(self) -> None:
        """Values written with an entry, or with an end, are stored with it."""
        held = self._own()
        self.send(Checkpoint(run_id=held.id, fence=held.fence, op=":0", body="1"))
        asking = self._asking(held)
        self.send(asking)
        assert asking.ask is not None
        kept: dict[str, Any] = {
            "blobs": (blob("one"),),
            "close_ask": asking.ask.id,
            "checkpoint_of": ":0",
        }
        self.send(held.append(**kept))
        self.send(self._asking(held))
        ended = held.entry(kind="end", state=State.FAILED, place="", name="")
        undone = effect(seq=held.seq, kind="compensatable", state="compensated", undo="m:f")
        rest: dict[str, Any] = {"effects": (undone,), "blobs": (blob("two"),), "undone": True}
        self.send(held.settle(State.FAILED, entries=(ended,), **rest))

    def _rated(self) -> None:
        """Only a limited number may begin in a period."""
        for scope in ("agent", "label"):
            self.limit(scope, None, 2)
            self._start_another(together=4)
            for seconds in (1.0, 60.0, 1000.0):
                self._claim_all()
                self.time_passes(seconds)
                if self._able():
                    self.beat(self.workers.index(self._able()[-1]))
            self.limit(scope, None, None)

    def _asked(self) -> None:
        """A run has messages, of which it took one, and snapshots."""
        held = self._own()
        for number in range(3):
            named = {"name": "e", "message_id": f"e{number}"}
            self.send(Deliver(run_id=held.id, kind="event", body=str(number), **named))
            self.send(held.append(of={"kind": "snapshot"}))
            self.send(held.append())
        self.take_of(held)

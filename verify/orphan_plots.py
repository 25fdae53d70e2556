"""Plots about orphans: processes that an attempt started and that outlive its execution."""

import itertools
from typing import Any

from tests.store.parts import Held

from andon.core.run import State
from andon.store.messages.stops import Ended, ProcessStarted, TargetReport, WorkerGone
from andon.store.store import Depart, MoveRun
from verify.machine import LEASE_SECONDS
from verify.supervisor_plots import SupervisorPlots

ORPHAN_PLOTS = [
    ("orphan", kind, ended, then)
    for kind, ended, then in itertools.product(
        ("pause", "cancel", "kill"),
        ("settles", "settles and clears", "falls silent", "says goodbye", "is gone from elsewhere"),
        ("is looked for", "is said to be over", "is buried", "nobody looks"),
    )
]
BESIDE = [("beside", kind) for kind in ("pause", "cancel")]
UNHEEDED = [
    ("unheeded", kind, ending)
    for kind, ending in itertools.product(("pause", "cancel"), ("suspends", "ends"))
]
HARD = [
    ("hard", then, spare)
    for then, spare in itertools.product(
        ("says so", "says goodbye", "dies", "is ended"), (None, True, False)
    )
]
NEIGHBOUR = [("neighbour", spare) for spare in (None, True)]
FORSAKEN_SECONDS = 60.0
_marks = itertools.count(1 << 34, 1 << 12)


class OrphanPlots(SupervisorPlots):
    """A run starts a process. Then the run loses its worker, and it is stopped."""

    def launch_of(self, held: Held, *, threads: bool = False) -> int:
        mark = 1 << 62 | next(_marks)
        fence = held.fence.counter
        self.send(ProcessStarted(run_id=held.id, fence=fence, mark=mark, threads=threads))
        return mark

    def lose(self, worker: str, how: str) -> None:
        """A worker falls silent, or is known to have ended."""
        match how:
            case "dies":
                self.send(WorkerGone(worker_id=worker, evidence="it ended"))
            case "is ended":
                self.send(WorkerGone(worker_id=worker, evidence="it was ended", ordered=True))
            case "says goodbye":
                self.send(Depart(worker_id=worker, drain='{"exit": "clean"}', alive=False))
            case "is gone from elsewhere":
                self.register()
                evidence = "process:its lock is free"
                self.claim(
                    len(self.workers) - 1, 0, self.workers.index(worker), False, how=evidence
                )
            case _:
                self._outlive()

    def _outlive(self) -> None:
        """Every worker is silent but one, which is in contact long enough to say so."""
        self.register()
        for _ in range(6):
            self.time_passes(LEASE_SECONDS / 3)
            self.beat(len(self.workers) - 1)
        self.claim(len(self.workers) - 1, 9, None, False)

    def own(self) -> Held:
        raise NotImplementedError

    def give(self, kind: str, run_id: str, **of: Any) -> None:
        raise NotImplementedError

    # ── the plots ─────────────────────────────────────────────────────────────────────────────

    def _orphan(self, kind: str, ended: str, then: str) -> None:
        """The programs it started are looked for before the stop is proved."""
        held = self.own()
        worker = self.worker_of(held)
        self.launch_of(held)
        if ended.startswith("settles"):
            settlement = self.settlement(held, State.SUSPENDED, False, False, False)
            cleared = ended == "settles and clears"
            self.send(settlement.but(cleared=cleared, also="7 sh" if cleared else ""))
        else:
            self.lose(worker, ended)
        self.give(kind, held.id)
        match then:
            case "is looked for":
                for stop_id, target in self.pair.open_targets():
                    evidence = "nothing was left"
                    report = TargetReport(stop_id=stop_id, target=target, stage="verified")
                    self.send(report.but(evidence=evidence))
            case "is said to be over":
                fence = held.fence.counter
                self.send(Ended(worker_id=worker, run_id=held.id, fence=fence, also="7 sh"))
            case "is buried":
                self.send(WorkerGone(worker_id=worker, evidence="it ended"))
            case _:
                self.register()
                self.time_passes(FORSAKEN_SECONDS)
                self.beat(len(self.workers) - 1)
        self.send(MoveRun(run_id=held.id, seen="killed", state="queued", fresh=True))
        self.send(MoveRun(run_id=held.id, seen="paused", state="queued", fresh=True))
        self.register()
        self.claim(len(self.workers) - 1, 9, None, False)
        held.look_again(self.pair.sqlite)

    def _beside(self, kind: str) -> None:
        """Another worker owns the run by then: its release proves nothing about the first."""
        held = self.own()
        self.launch_of(held)
        self._outlive()
        self.register()
        self.claim(len(self.workers) - 1, 9, None, False, only=(held.id,))
        owner = next(one for one in reversed(self.held) if one.id == held.id)
        self.give(kind, held.id)
        self.send(self.settlement(owner, State.QUEUED, True, False, False))
        self.claim(len(self.workers) - 1, 9, None, False)  # not while somebody has to look
        for one in (held, owner):
            one.look_again(self.pair.sqlite)

    def _unheeded(self, kind: str, ending: str) -> None:
        """The attempt ends by itself before it gets the order: its program goes on."""
        held = self.own()
        self.launch_of(held)
        self.give(kind, held.id)
        state = State.SUSPENDED if ending == "suspends" else State.SUCCEEDED
        self.send(self.settlement(held, state, False, False, False))
        for stop_id, target in self.pair.open_targets():
            report = TargetReport(stop_id=stop_id, target=target, stage="verified")
            self.send(report.but(evidence="nothing was left"))
        held.look_again(self.pair.sqlite)

    def _hard(self, then: str, spare: bool | None) -> None:
        """A kill is proved by the end of a process; a worker's word alone leaves it unproved."""
        held = self.own()
        worker = self.worker_of(held)
        self.launch_of(held, threads=spare is True)
        self.give("kill", held.id, spare=spare)
        if then == "says so":
            self.send(Ended(worker_id=worker, run_id=held.id, fence=held.fence.counter))
        else:
            self.lose(worker, then)
        self.send(WorkerGone(worker_id=worker, evidence="it ended", ordered=True))
        held.look_again(self.pair.sqlite)

    def _neighbour(self, spare: bool | None) -> None:
        """A run is killed, and a worker without the order is first to see its owner dead."""
        held, beside = self.own(), self.own()
        worker = self.worker_of(held)
        self.give("kill", held.id, spare=spare)
        self.register()
        self.claim(len(self.workers) - 1, 0, self.workers.index(worker), False)
        beside.look_again(self.pair.sqlite)

"""A seeded store with orders, and workers here, elsewhere and under a supervisor."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.control.seeded_store import SeededStore
from tests.store.parts import Held, do, effect, new_run

from andon.host.proc import start_ticks
from andon.runtime.worker.peers import this_process
from andon.store.messages.stops import Enlist, Order, SupervisorRow
from andon.store.store import Claim, MoveRun, Start


class StopScenario(SeededStore):
    """Every worker is on another host, unless it is made of a process."""

    def begin(self, run: str = "r", worker: str = "w", **changes: Any) -> Held:
        """A run executed by a worker elsewhere."""
        self.worker(worker, host="node-c", pid=48213)
        do(self.store, Start(run=new_run(run, **changes)))
        [held] = self.take(worker, run)
        return held

    def effect(self, held: Held, state: str, **changes: Any) -> None:
        """As in SeededStore; `at` is when its entry says that it happened."""
        at, key = changes.pop("at", None), changes.pop("key", "k")
        plain = {"kind": "effect", "state": state, "name": "pay", "key": key}
        append = held.append(of=plain if at is None else plain | {"at": at})
        [entry] = append.entries
        row = effect(seq=entry.seq, state=state, key=key, fence=held.fence.counter, **changes)
        do(self.store, append.but(effects=(row,)))

    def move(self, run: str, seen: str, state: str) -> None:
        do(self.store, MoveRun(run_id=run, seen=seen, state=state))

    def order(self, kind: str, scope: str = "fleet", name: str = "", **changes: Any) -> str:
        plain: dict[str, Any] = {"id": f"rcp_{kind}{scope}{name}", "by": "bo", "why": "fire"}
        return str(do(self.store, Order(kind=kind, scope=scope, name=name, **plain | changes)))

    def supervisor(self, name: str = "s", *, ticks: int | None = None) -> None:
        here = this_process()
        row = SupervisorRow(
            id=name,
            host=here.host,
            boot=here.boot,
            namespace=here.namespace,
            pid=here.pid,
            start_ticks=here.start_ticks if ticks is None else ticks,
            home="/h",
        )
        do(self.store, Enlist(supervisor=row, lease_seconds=60))

    def kill_silently(self, worker: str, witness: str) -> None:
        """Its lease ends, and nothing more is known."""
        message = Claim(worker_id=witness, agents=(), limit=0, dead=((worker, "silent:overdue"),))
        do(self.store, message)

    @contextmanager
    def process(self, worker: str, **changes: Any) -> Iterator["subprocess.Popen[bytes]"]:
        """A process of this host that the store knows as a worker; it does nothing at all."""
        here = this_process()
        with subprocess.Popen(["sleep", "600"]) as process:
            facts: dict[str, Any] = {
                "host": here.host,
                "boot": here.boot,
                "namespace": here.namespace,
                "pid": process.pid,
                "start_ticks": start_ticks(process.pid),
            }
            self.worker(worker, **facts | changes)
            try:
                yield process
            finally:
                process.kill()

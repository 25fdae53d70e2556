"""Processes that effects start: they act by themselves, whatever becomes of their worker.

The product's own code finds and ends them. Only the kernel is simulated: which processes exist,
with which mark, on which host. A process sees those of its own host only.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from contextvars import Context, copy_context
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from andon.control.stop import processes
from andon.core.lease import Fence
from andon.host import remains
from andon.runtime.processes import attribution

if TYPE_CHECKING:
    from asyncio import Future

    from verify.simulated.fleet import Fleet
    from verify.simulated.process import Process

# Above every pid of this machine: no real process is ever meant.
FIRST_PID = 1 << 24
SIGTERM = 15


class Child:
    """A program that an effect has started."""

    def __init__(self, pid: int, key: str, process: "Process", deaf: bool) -> None:
        self.pid, self.key, self.parent, self.deaf = pid, key, process, deaf
        self.host = process.host
        self.mark = attribution.mark_here() or -1
        self.alive = True
        self.over: Future[int] = process.loop.create_future()

    def end(self, status: int) -> None:
        if self.alive:
            self.alive = False
            if self.parent.alive:
                self.parent.loop.call_soon(self._tell, status, context=Context())

    def _tell(self, status: int) -> None:
        if not self.over.done():
            self.over.set_result(status)


class Children:
    """All processes of the simulated hosts, as their kernels know them."""

    def __init__(self, fleet: "Fleet") -> None:
        self._fleet = fleet
        self._pids = itertools.count(FIRST_PID)
        self._children: dict[int, Child] = {}
        self._workers: dict[int, Process] = {}

    def enlist(self, process: "Process") -> int:
        """A worker's own process; returns its pid, which is its start time too."""
        pid = next(self._pids)
        self._workers[pid] = process
        return pid

    def start(self, what: str, key: str, fence: Fence, seconds: float) -> Child:
        """From here on the program acts after that time, unless it is ended."""
        fleet = self._fleet
        process = fleet.current
        process.refuse_dead()
        deaf = fleet.chance.random() < 0.5
        child = Child(next(self._pids), key, process, deaf)
        self._children[child.pid] = child
        fleet.tell(process, f"starts {child.pid} for {key}, which acts in {seconds:.2f} s")
        act = partial(copy_context().run, self._act, child, what, fence)
        fleet.later(seconds, act)
        return child

    def _act(self, child: Child, what: str, fence: Fence) -> None:
        if child.alive:
            if not child.parent.alive:
                self._fleet.faults["orphan"] += 1
            self._fleet.world.act(what, child.key, fence, child)
            child.end(0)

    def of(self, key: str) -> list[Child]:
        """The programs that may still act for an effect."""
        return [one for one in self._children.values() if one.alive and one.key == key]

    def clear(self, store: Any) -> None:
        """As a command does on the host of the current process; it ends no worker."""
        here = self._fleet.current
        with mock.patch.object(processes, "this_process", return_value=here.row):
            killer = processes.WorkerKiller(store, "kill")
        orders = store.rows(
            "SELECT DISTINCT stop_id FROM andon_targets"
            " WHERE mark IS NOT NULL AND stage IN ('fenced', 'unproved') ORDER BY stop_id"
        )
        for one in (target for (stop_id,) in orders for target in store.targets(stop_id)):
            worker = processes.workers_of(store, {one.worker or ""}).get(one.worker or "")
            if one.mark is not None and worker is not None and killer.is_here(worker):
                killer.clear(one, worker, lambda _: None)

    # ── the answers of a host's kernel ────────────────────────────────────────────────────────

    def _here(self) -> list[Child]:
        host = self._fleet.current.host
        return [one for one in self._children.values() if one.alive and one.host == host]

    def _carriers(self, matches: Callable[[int], bool], found: Callable[[int], None]) -> bool:
        for one in list(self._here()):
            if matches(one.mark):
                found(one.pid)
        return True

    def _alive(self, pid: int, _: int | None = None) -> bool:
        process = self._workers.get(pid)
        if process is not None:
            return process.alive and process.host == self._fleet.current.host
        return any(one.pid == pid for one in self._here())

    def _send(self, pid: int, _: int, number: int) -> bool:
        child = self._children.get(pid)
        if child is None:
            self._fleet.world.wrong(f"process {pid} gets signal {number}, and is a worker's own")
        elif self._alive(pid) and not (number == SIGTERM and child.deaf):
            self._fleet.tell(self._fleet.current, f"ends {pid} by signal {number}")
            child.end(-number)
        return True

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """The product asks these kernels, and marks no real process."""
        fleet = self._fleet
        numbers: Any = itertools.count(1)
        kernel = SimpleNamespace(
            alive=self._alive,
            descendants=lambda _: (),
            start_ticks=lambda pid: pid,
            command=lambda pid: f"program {pid}",
            send=self._send,
        )
        time = SimpleNamespace(monotonic=lambda: fleet.clock.now, sleep=fleet.pass_time)
        marks = SimpleNamespace(own=lambda: -1, put=lambda _: True, has_children=lambda: False)
        replaced: list[tuple[Any, str, Any]] = [
            (remains, "proc", kernel),
            (remains, "mark", SimpleNamespace(carriers=self._carriers)),
            (remains, "time", time),
            (attribution, "follow", lambda: None),
            (attribution, "_numbers", numbers),
            (attribution, "host", marks),
        ]
        with contextlib.ExitStack() as stack:
            for module, name, instead in replaced:
                stack.enter_context(mock.patch.object(module, name, instead))
            yield

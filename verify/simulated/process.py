"""One simulated process: the real worker, without threads.

The product's threads (commits, heartbeats, watching others) are replaced by callbacks of the
process's own loop, so that the simulation decides when each happens, and whether it does.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from andon import points
from andon.core.lease import renew_every
from andon.errors import StoreUnavailable
from andon.runtime import futures
from andon.runtime.attempt import branch
from andon.runtime.processes import attribution
from andon.runtime.worker import cleanup, lease, peers
from andon.runtime.worker import liveness as progress
from andon.runtime.worker import worker as runtime
from andon.settings import Settings
from andon.store.store import Claim, FleetState, Message, WorkerRow
from andon.store.writer import writer as store_writer
from andon.store.writer.writer import Writer
from verify.simulated import scripts
from verify.simulated.clock import Loop
from verify.simulated.store import ProcessStore

if TYPE_CHECKING:
    from verify.simulated.fleet import Fleet


LINGER_SECONDS = 0.5  # how often a program checks whether it can end
# Threads of andon are callbacks here, which no run may be asked to end.
branch._NOBODYS |= {"verify"}


class Crash(BaseException):
    """The process is gone; its remaining code reaches nothing outside."""


class Process:
    """A worker's process, from its start to its end."""

    def __init__(self, fleet: "Fleet", name: str) -> None:
        self.fleet, self.name = fleet, name
        self.alive = True
        self.host = fleet.host_of(name)
        self.pid = fleet.children.enlist(self)
        self.frozen_until = 0.0
        self.incarnations: list[str] = []
        self.row = WorkerRow(
            id="",
            host=self.host,
            boot=self.host,
            namespace="n",
            pid=self.pid,
            start_ticks=self.pid,
        )
        self.rows: dict[str, WorkerRow] = {}  # of the workers that it was
        self.told: set[str] = set()  # whose death was reported to it
        self.threads = 0  # that have been begun and have not ended
        self.leaving = False  # it has received the request to leave
        self.listener: Callable[[], None] | None = None
        self.loop = Loop(fleet.clock)
        self.store = ProcessStore(fleet.store, self)
        self.worker = runtime.Worker(
            self.store, [scripts.AGENT], fleet.settings, embedded=fleet.embedded
        )
        self.loop.call_soon(self._begin)

    def _begin(self) -> None:
        self.main = self.loop.create_task(self.worker.run())
        self.main.add_done_callback(self._exit)

    def _exit(self, _: object = None) -> None:
        """A program may have to wait for code that its worker could not end."""
        others = asyncio.all_tasks(self.loop)
        if self.fleet.lingering and (self.threads or others):
            for task in others:
                task.cancel()
            self.loop.call_later(LINGER_SECONDS, self._exit)
        else:
            self.fleet.ended(self, "exits")

    def refuse_dead(self) -> None:
        if not self.alive:
            raise Crash

    def step(self) -> None:
        self.as_current(self.loop.step)

    def end(self) -> None:
        """Its clean-up code runs as this process, and not as one that is frozen now."""
        self.as_current(self.loop.end)

    def as_current(self, act: Callable[[], None]) -> None:
        """Acts as this process, then as the one before, which may be frozen in a callback."""
        before, self.fleet.current = self.fleet.current, self
        try:
            act()
        finally:
            self.fleet.current = before

    def receive_drain(self, grace: float) -> None:
        self.leaving = True
        self.worker.tell("SIGTERM", grace)

    def stop_listening(self) -> None:
        self.listener = None

    def describe(self) -> WorkerRow:
        """The answer of `this_process`."""
        name = f"{self.name}.{len(self.incarnations) + 1}"
        self.incarnations.append(name)
        self.rows[name] = self.row.but(id=name)
        return self.rows[name]

    def evidence(self, worker_id: str, dead: "Process") -> str:
        """How another worker's process has ended, as far as this one can see it."""
        if dead.host == self.host:
            return peers.end_remains(dead.rows[worker_id], "its process ended")
        return f"{self.fleet.free_means}:its lock is free"


class _Commits(Writer):
    """The writer, with its thread's work done by callbacks."""

    def __init__(self, *args: Any, process: Process, **options: Any) -> None:
        self._process = process
        # The batch being committed, perhaps once more: messages that arrive meanwhile go to the
        # next one.
        self._flight: tuple[list[Any], int] | None = None
        super().__init__(*args, **options)

    async def write(self, message: Message) -> Any:
        worker = self._process.worker
        if isinstance(message, Claim) and worker.draining:
            self._process.fleet.world.wrong(f"{message.worker_id} claims, and was told to go")
        return await super().write(message)

    def _put(self, items: list[Any]) -> None:
        super()._put(items)
        if self._flight is None:
            self._flight = self._take()
            self._soon()

    def _soon(self, most_seconds: float = 0.01) -> None:
        fleet = self._process.fleet
        self._process.loop.call_later(fleet.chance.uniform(0.0, most_seconds), self._turn_over)

    def _turn_over(self) -> None:
        """One pass of the thread: commit what it took, report the outcome, and take what waits."""
        assert self._flight is not None
        batch, taken = self._flight
        try:
            outcomes = self._commit([message for message, _, _ in batch]) if batch else []
        except StoreUnavailable:  # unknown: the same again, before anything else
            self._soon(0.5)
            return
        except Exception as error:  # noqa: BLE001 (as the thread does)
            outcomes = [error] * len(batch)
        self._flight = None
        self._waiting -= taken
        self._settle(batch, outcomes)
        if not self._items.empty():
            self._flight = self._take()
            self._soon()

    def _take(self) -> tuple[list[Any], int]:
        batch, taken = self._again, 0
        self._again = []
        while not self._items.empty():
            batch = batch + (self._items.get() or [])
            taken += 1
        return batch, taken

    def submit_from_thread(self, message: Message) -> "Future[Any]":
        """Heartbeats and announcements: the other thread's commit, at once."""
        future: Future[Any] = Future()
        try:
            [outcome] = self.store.write([message])
        except StoreUnavailable as error:
            future.set_exception(error)
        else:
            store_writer._resolve([(future, outcome)])
        return future

    def close(self, timeout: float | None = None) -> None:
        self._hand_over()
        self._closed = True


class _NoThread:
    """A thread whose work is done by callbacks instead."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def start(self) -> None: ...
    def join(self, timeout: float | None = None) -> None: ...


class _Inline(_NoThread):
    """A thread that has ended before any other code runs."""

    def __init__(self, *, target: Callable[..., None], args: tuple[Any, ...], **_: Any) -> None:
        self._target, self._args = target, args

    def start(self) -> None:
        self._target(*self._args)


class _Heart(_NoThread):
    """Beats by callbacks: each is one turn of the worker's own loop of heartbeats."""

    def __init__(self, *, target: Any, args: tuple[Any], process: Process, **_: Any) -> None:
        self._renew, (self._ended,), self._process = target, args, process

    def start(self) -> None:
        seconds = renew_every(self._process.fleet.lease_seconds)
        self._process.loop.call_later(seconds, self._once)

    def _once(self) -> None:
        if not self._ended.is_set():
            turns = iter((False, True))
            once = SimpleNamespace(wait=lambda _: next(turns))
            self._renew(once)
            self.start()


class _Threads:
    """A pool whose threads are callbacks."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def submit(self, call: Callable[[], Any]) -> "Future[Any]":
        """Begun after a while, and then it takes a while: only a job not yet begun is cancelled."""
        future: Future[Any] = Future()
        self._process.threads += 1
        underway = self._process.fleet.world.underway(_key_in_hand(), self._process)
        underway.__enter__()

        def end() -> None:
            self._process.threads -= 1
            underway.__exit__(None, None, None)

        def begin() -> None:
            if future.set_running_or_notify_cancel():
                self._later(work)

        def work() -> None:
            end()
            try:
                future.set_result(call())
            except Exception as error:  # noqa: BLE001 (the caller gets it)
                future.set_exception(error)

        future.add_done_callback(lambda done: end() if done.cancelled() else None)
        self._later(begin)
        return future

    def _later(self, what: Callable[[], None]) -> None:
        fleet = self._process.fleet
        self._process.loop.call_later(fleet.chance.uniform(0.0, fleet.thread_seconds), what)

    def shutdown(self, **_: Any) -> None: ...


def _key_in_hand() -> str:
    """Of the effect that a thread is for, if it is for one."""
    return getattr(branch.inside.get(), "key", None) or ""


class _Watch:
    """The workers that have died, as far as this process can see."""

    def __init__(self, process: Process, on_death: Callable[[str, str, float], None]) -> None:
        self._process, self._on_death = process, on_death
        self.refresh()

    def refresh(self) -> None:
        for worker_id, dead in self._process.fleet.seen_dead().items():
            if worker_id not in self._process.told:
                self._process.told.add(worker_id)
                self._on_death(worker_id, self._process.evidence(worker_id, dead), 0.0)

    def see(self, _: FleetState) -> None:
        self.refresh()

    def close(self) -> None: ...


@contextlib.contextmanager
def without_threads(fleet: "Fleet") -> Iterator[None]:
    """Code that starts a thread, queries the machine or passes a point calls the simulation."""
    here: Callable[[], Process] = lambda: fleet.current  # noqa: E731 (a name for the answer)
    replaced: list[tuple[Any, str, Any]] = [
        (runtime, "Writer", lambda *a, **k: _Commits(*a, process=here(), **k)),
        (attribution, "Pool", lambda *_: _Threads(here())),
        (runtime, "Peers", lambda store, mine, on_death: _Watch(here(), on_death)),
        (runtime, "this_process", lambda: here().describe()),
        (lease, "threading", _module(lambda **k: _Heart(process=here(), **k))),
        (store_writer, "threading", _module(_NoThread)),
        (futures, "threading", _module(_Inline)),
        (cleanup, "sweep", lambda _: None),
        (progress, "TICK_SECONDS", 1e9),
        (points, "watch", fleet.pass_point),
    ]
    with contextlib.ExitStack() as stack:
        for module, name, instead in replaced:
            stack.enter_context(mock.patch.object(module, name, instead))
        yield


def _module(thread: Any) -> Any:
    return SimpleNamespace(Event=threading.Event, Lock=threading.Lock, Thread=thread)


def settings_of(lease_seconds: float, interruption_limit: int) -> Settings:
    return Settings(
        lease_seconds=lease_seconds,
        poll_seconds=lease_seconds,
        patience_seconds=lease_seconds * 4,
        grace_seconds=lease_seconds * 2,
        concurrency=3,
        interruption_limit=interruption_limit,
    )

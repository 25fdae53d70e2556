"""A fleet of simulated processes, and the faults that hit it: one seed is one story.

First it is drawn which faults occur at all, and how often. They strike at every point of
andon.points, at every commit, and between any two callbacks. Then they cease, and every run must
come to its end.
"""

import contextlib
import gc
import heapq
import itertools
import logging
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import Context
from functools import partial
from typing import Any, NoReturn
from unittest import mock

from andon.core.run import TERMINAL, State
from andon.core.stop import StopKind
from andon.errors import AndonError
from andon.runtime.requests import requests, start
from andon.store.messages.rows import Filter
from andon.store.messages.stops import Order
from andon.store.store import AgentRow, Append, Settle, Start
from verify.simulated import scripts, world
from verify.simulated.children import Children
from verify.simulated.clock import Clock
from verify.simulated.process import Crash, Process, settings_of, without_threads
from verify.simulated.store import MemoryStore

log = logging.getLogger("andon")

LEASE_SECONDS = 4.0
# Each fault is absent, rare or frequent in a story, so that also rare combinations occur in some.
FREQUENCIES: dict[str, tuple[float, ...]] = {
    "crash": (0, 0.01, 0.04),
    "pause": (0, 0.01, 0.04),
    "slow disk": (0, 0, 0.02),
    "lost acknowledgement": (0, 0.02, 0.1),
    "refused commit": (0, 0, 0.05),
    "provider error": (0, 0, 0.15),
    "drain": (0, 0, 0.02),
}
DELAYS = ("pause", "slow disk", "lost acknowledgement", "refused commit")
KINDS_OF_FAULTS = (*FREQUENCIES, "clock jump", "stop order", "damage", "orphan")
# How often a run may kill its worker; in other stories the limit is too high to matter.
POISON_LIMIT, NO_LIMIT = 4, 1000
# After the faults have ceased, in leases: the longest wait is a person's, and some come in a row.
HEALING_LEASES = 150
FAULTY_LEASES = 8
ANEW_LEASES = 5
MESSAGES = {"event": 1, "events": 2, "impatient": 1}  # that a word waits for
SAGAS = 0.1  # of all runs
LATE = 0.3  # of all waits of a caller without patience
HASTE = 0.3  # of all shields, where there are orders at all
AGAIN_SECONDS = 0.01  # about as long as a commit takes
STEPS = 60_000  # callbacks; a story has some hundreds


class Fleet:
    """One simulation."""

    current: Process  # whose callback runs

    def __init__(self, seed: int, *, telling: bool = False) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.clock = Clock()
        self.lease_seconds = LEASE_SECONDS
        self.story: list[str] | None = [] if telling else None
        self.faults: Counter[str] = Counter()
        self.faulty = True
        self.store = MemoryStore(self.clock, self._ring)
        self.world = world.World(self)
        self.children = Children(self)
        self.person = world.Person(self.world)
        self.processes: list[Process] = []  # that are alive
        self.gone: list[Process] = []
        self.dead: dict[str, Process] = {}  # incarnations whose process is gone
        self.jumped_at = -1e9
        self.depth = 0  # how many are frozen in the middle of a callback
        self._started = 0  # of the scripts
        self._news = True  # since the last look whether everything is over
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        draw = self.chance.choice
        self.frequency = {name: draw(among) for name, among in FREQUENCIES.items()}
        self.noticed = draw((True, True, False))  # whether deaths are seen, or only leases end
        self.jumps, self.orders = draw((0, 0, 2)), draw((0, 0, 1, 4))
        self.workers = draw((1, 2, 2, 3))
        self.scripts = {f"r{number}": self._script() for number in range(draw((1, 1, 2, 3)))}
        self.poisoned = any("poison" in script for script in self.scripts.values())
        self.settings = settings_of(LEASE_SECONDS, POISON_LIMIT if self.poisoned else NO_LIMIT)
        self.damages = draw((0,) * 9 + (1,))
        # A thread cannot be ended: a slow one outlives its attempt, and its worker's name.
        self.thread_seconds = draw((0.02, 0.02, 0.02, 1.0))
        self.lingering = draw((False, True))  # whether programs wait for what workers left behind
        self.hosts = draw((1, 2))
        # The proof that a free lock on another host gives about its worker: SQLite's, PostgreSQL's.
        self.free_means = draw(("process", "process", "silent"))
        self.embedded = draw((False, True))
        self.damaged: dict[str, int] = {}  # runs with a damaged journal → their last attempt then

    def _script(self) -> list[str]:
        """Random words; some runs do undoable effects, and fail."""
        length = self.chance.randint(1, 5)
        if self.chance.random() < SAGAS:
            return [*self.chance.choices(scripts.UNDOABLE, k=length), "fail"]
        return self.chance.choices(scripts.WORDS, k=length)

    # ── the story ─────────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        with self._in_force(), _no_collector():
            try:
                self._live()
            finally:
                self._end()

    @contextlib.contextmanager
    def _in_force(self) -> Iterator[None]:
        level, hears = log.level, _ErrorWatch(self)
        log.setLevel(logging.ERROR)
        log.addHandler(hears)
        propagates, log.propagate = log.propagate, False
        drawn = random.Random(self.seed)
        random.seed(self.seed)  # the delays of retries

        def unique() -> uuid.UUID:
            return uuid.UUID(int=drawn.getrandbits(128))

        named = mock.patch.object(uuid, "uuid4", unique)
        try:
            outside = self.world.in_force(), self.children.in_force()
            with self.clock.everywhere(), without_threads(self), outside[0], outside[1], named:
                yield
        finally:
            log.setLevel(level)
            log.removeHandler(hears)
            log.propagate = propagates

    def _live(self) -> None:
        for number in range(self.workers):
            self.start_process(f"w{number}")
        self.current = self.processes[0]
        for run_id, script in self.scripts.items():
            self.later(self.chance.uniform(0.0, 1.0), partial(self._start, run_id, script))
        for _ in range(self.jumps):
            self.later(self._sometime(), self._jump)
        for _ in range(self.orders):
            self.later(self._sometime() / self.chance.choice((1, 10)), self._order)
        for _ in range(self.damages):
            self.later(self._sometime(), self._damage)
        self.every(self.lease_seconds / 2, self.person.look)
        self._until(self.clock.now + FAULTY_LEASES * self.lease_seconds)
        self._heal()
        self._until(self.clock.now + HEALING_LEASES * self.lease_seconds)
        self._look_at_workers()
        self._look_at_ends()

    def _until(self, end: float, *, though_over: bool = False) -> None:
        for _ in range(STEPS):
            if self.clock.now >= end or (self._over() and not though_over):
                return
            self.turn(end)
        self.world.wrong(f"the fleet is busy for ever: {STEPS} callbacks in {end - self.clock.now}")

    def _heal(self) -> None:
        self.tell(None, "the faults cease")
        self.faulty = False
        self.every(self.lease_seconds, self._resume)

    def _over(self) -> bool:
        if self._news:
            rows = self.store.rows("SELECT id, state FROM andon_runs")
            hurt = {(run_id, State.STRANDED) for run_id in self.damaged}
            all_over = all(state in TERMINAL or (name, state) in hurt for name, state in rows)
            self._news = all_over and self._started == len(self.scripts)
        return self._news

    def _end(self) -> None:
        for process in (*self.processes, *self.gone):
            process.alive = False
            process.end()

    # ── time and chance ───────────────────────────────────────────────────────────────────────

    def turn(self, end: float) -> None:
        """One callback of some process, or the time until there is one."""
        now = self.clock.now
        nearest, ready = end, []
        for process in self.processes:
            due = process.loop.due()
            if due is None:
                continue
            due = max(due, process.frozen_until)
            if due <= now:
                ready.append(process)
            elif due < nearest:
                nearest = due
        if self._events and self._events[0][0] <= now:
            Context().run(heapq.heappop(self._events)[2])  # no process' code
        elif ready:
            process = ready[0] if len(ready) == 1 else self.chance.choice(ready)
            self._befall(process)
            if process.alive and process.frozen_until <= self.clock.now:
                process.step()
        else:
            self.clock.now = min(nearest, self._events[0][0]) if self._events else nearest

    def _befall(self, process: Process) -> None:
        """Between two callbacks."""
        if not self.faulty or self.chance.random() > 0.2:
            return
        if self.strikes("crash"):
            self.kill(process)
        elif self.strikes("pause"):
            process.frozen_until = self.clock.now + self._pause_seconds()
            self.tell(process, f"is frozen for {process.frozen_until - self.clock.now:.1f} s")
        elif process.incarnations and self.strikes("drain"):
            self._tell_to_go(process)

    def _tell_to_go(self, process: Process) -> None:
        self.tell(process, "is told to go")
        grace = self.chance.uniform(0.1, 4.0)
        process.loop.call_soon(process.receive_drain, grace, context=Context())

    def pass_point(self, name: str, _about: object = None) -> None:
        """A point of andon.points: the process dies here, or freezes while others go on."""
        process = self.current
        process.refuse_dead()
        if self.strikes("crash"):
            self.tell(process, f"dies at {name}")
            self.crash(process)
        if self.depth < 2 and self.strikes("pause"):
            end = self.clock.now + self._pause_seconds()
            self.tell(process, f"is frozen at {name} for {end - self.clock.now:.1f} s")
            process.frozen_until, self.depth = float("inf"), self.depth + 1
            self._until(end, though_over=True)
            process.frozen_until, self.depth = 0.0, self.depth - 1
            self.tell(process, "wakes up")
            process.refuse_dead()

    def crash(self, process: Process) -> NoReturn:
        """Its own code ends with it."""
        self.kill(process)
        raise Crash

    def strikes(self, fault: str) -> bool:
        if not self.faulty or self.chance.random() >= self.frequency[fault]:
            return False
        self.faults[fault] += 1
        return True

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds

    def _pause_seconds(self) -> float:
        return self.chance.choice((0.5, 1.3, 2.5)) * self.lease_seconds

    def _sometime(self) -> float:
        return self.chance.uniform(0.0, FAULTY_LEASES / 2 * self.lease_seconds)

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.clock.now + seconds, next(self._numbers), what))

    def every(self, seconds: float, what: Callable[[], None]) -> None:
        def again() -> None:
            what()
            self.later(seconds, again)

        self.later(seconds, again)

    def calm(self) -> bool:
        """Whether nothing holds any process up in this story."""
        return not self.jumps and not any(self.frequency[name] for name in DELAYS)

    def undisturbed(self) -> bool:
        """Whether nothing ends any process either."""
        ends = ("crash", "drain", "provider error")
        dies = self.poisoned or any(self.frequency[name] for name in ends)
        return self.calm() and not (self.orders or dies)

    def jumped_lately(self) -> bool:
        return self.clock.now - self.jumped_at < 3 * self.lease_seconds

    def _jump(self) -> None:
        if not self.faulty:
            return
        seconds = self.chance.choice((-0.5, 1.5, 10.0)) * self.lease_seconds
        self.clock.offset += seconds
        self.jumped_at = self.clock.now
        self.faults["clock jump"] += 1
        self.tell(None, f"the store's clock jumps by {seconds:+.1f} s")

    def _damage(self) -> None:
        """A run without an owner loses the end of its journal, or that entry is changed."""
        rows = self.store.rows(
            "SELECT r.id, r.attempt, j.seq, j.kind FROM andon_runs r JOIN andon_journal j"
            " ON j.run_id = r.id AND j.seq = r.head_seq"
            " WHERE r.state IN ('queued', 'suspended') AND r.head_seq > 0 ORDER BY r.id"
        )
        alone = [row for row in rows if "child" not in self.scripts.get(row[0], ("child",))]
        if not self.faulty:
            return
        if not alone:
            self.later(self.lease_seconds / 4, self._damage)
            return
        run_id, self.damaged[run_id], seq, kind = self.chance.choice(alone)
        # Nothing before a snapshot is read, so its own hash is not checked.
        lost = kind == "snapshot" or self.chance.random() < 0.5
        hurt = "DELETE FROM andon_journal" if lost else "UPDATE andon_journal SET since = since + 1"
        self.store.rows(f"{hurt} WHERE run_id = ? AND seq = ?", run_id, seq)
        self.faults["damage"] += 1
        self.tell(None, f"entry {seq} of {run_id} is {'lost' if lost else 'changed'}")

    # ── processes ─────────────────────────────────────────────────────────────────────────────

    def start_process(self, name: str) -> None:
        process = Process(self, name)
        self.processes.append(process)
        self.tell(process, "starts")

    def kill(self, process: Process) -> None:
        self.tell(process, "is dead")
        self.ended(process, "is dead")

    def ended(self, process: Process, how: str) -> None:
        """Its process is gone; a new one is started in its place."""
        if not process.alive:
            return
        process.alive = False
        self.processes.remove(process)
        self.gone.append(process)
        self.dead |= dict.fromkeys(process.incarnations, process)
        if how == "exits":
            self.tell(process, "exits")
        name, _, number = process.name.partition("-")
        again = f"{name}-{int(number or 0) + 1}"
        self.later(
            self.chance.uniform(0.1, 1.5) * self.lease_seconds, lambda: self.start_process(again)
        )
        self.later(self.chance.uniform(0.0, 0.3), self._ring)
        self.later(0.0, process.end)

    def seen_dead(self) -> dict[str, Process]:
        return self.dead if self.noticed or not self.faulty else {}

    def host_of(self, name: str) -> str:
        """A process that is started anew is started on the same host."""
        number = int(name.removeprefix("w").partition("-")[0])
        return f"host{number % self.hosts}"

    def _ring(self) -> None:
        """A write concerns other processes: the notification is a hint, and is sometimes lost."""
        self._news = True
        for process in self.processes:
            if process.listener is not None and self.chance.random() < 0.9:
                process.loop.call_soon(process.listener, context=Context())

    # ── people ────────────────────────────────────────────────────────────────────────────────

    def _start(self, run_id: str, script: list[str]) -> None:
        row: AgentRow = scripts.AGENT.row
        run = start.new_run(row, (script,), {}, run_id=run_id, now=self.clock.store_now())
        self.tell(None, f"a person starts {run_id}: {', '.join(script)}")
        requests.write(self.store, Start(run=run))
        self._started += 1
        for number, what in enumerate(script):
            for given in range(MESSAGES.get(what, 0)):
                self.later(self._sometime(), partial(self._send, run_id, number, given))

    def _send(self, run_id: str, number: int, given: int) -> None:
        """Often sent again with the same id, as by a person whose first answer was lost."""
        name = f"event-{number}"
        with contextlib.suppress(AndonError):  # it is over
            requests.send(self.store, run_id, name, given, id=f"{name}-{given}")
        if self.chance.random() < 0.5:
            again = partial(self._send, run_id, number, given)
            self.later(self.chance.uniform(0.0, AGAIN_SECONDS), again)

    def send_late(self, run_id: str, number: int, seconds: float) -> None:
        """A message often comes when its receiver is about to give up."""
        if self.faulty and self.chance.random() < LATE:
            late = seconds - self.chance.uniform(0.0, 3 * AGAIN_SECONDS)
            self.later(late, partial(self._send, run_id, number, 0))

    def interrupt(self, run_id: str, seconds: float) -> None:
        """A caller often gives up at that moment: rare interruptions would never be timely."""
        if self.orders and self.chance.random() < HASTE:
            self.later(self.chance.uniform(0.0, seconds), partial(self._order, run_id))
        elif self.frequency["drain"] and self.chance.random() < HASTE:
            gone = partial(self._tell_to_go, self.current)
            self.later(self.chance.uniform(0.0, seconds), gone)

    def _order(self, run_id: str | None = None) -> None:
        running = self.store.rows("SELECT id FROM andon_runs WHERE state = 'running' ORDER BY id")
        run_id = run_id or self.chance.choice([one for (one,) in running] or list(self.scripts))
        kind = self.chance.choice(("pause", "kill", "kill", "cancel"))
        row = self.store.run(run_id)
        if not self.faulty or row is None or row.state in TERMINAL:
            return
        self.tell(None, f"a person orders: {kind} {run_id}")
        self.faults["stop order"] += 1
        order = Order(
            id=f"order-{next(self._numbers)}", kind=kind, scope="run", name=run_id, within=2.0
        )
        requests.write(self.store, order)
        if self.chance.random() < 0.5:
            self.later(self.chance.uniform(0.0, self.lease_seconds), self._look_for_remains)
        self.later(self._sometime(), self._resume)

    def _look_for_remains(self) -> None:
        """A command on some host ends the programs that stopped attempts started there."""
        if self.processes:
            somebody = self.chance.choice(self.processes)
            somebody.as_current(lambda: self.children.clear(self.store))

    def _resume(self) -> None:
        """Resumes stopped runs."""
        for row in self.store.runs(Filter(states=(State.STRANDED,))):
            if set(scripts.UNFIT) & set(self.scripts.get(row.id, ())):  # it never fits again
                self.tell(None, f"somebody gives {row.id} up")
                requests.order(self.store, StopKind.CANCEL, row.id)
        for row in self.store.runs(Filter(states=(State.PAUSED, State.KILLED))):
            if row.stop is None:
                self.tell(None, f"a person resumes {row.id}")
                with contextlib.suppress(AndonError):  # it was resumed with its parent
                    requests.resume(self.store, row.id)

    # ── telling the story ─────────────────────────────────────────────────────────────────────

    def tell(self, process: Process | None, what: str) -> None:
        if self.story is not None:
            who = process.name if process is not None else "-"
            self.story.append(f"{self.clock.now - 1000:8.3f} s  {who:6} {what}")

    def note_write(self, process: Process, message: Any, outcome: Any) -> None:
        if self.story is None or not isinstance(message, Append | Settle):
            return
        held = f"{message.run_id} under {message.fence}"
        refused = f" (refused: {type(outcome).__name__})" if isinstance(outcome, Exception) else ""
        if isinstance(message, Append):
            what = ", ".join(f"{one.name} {one.state}" for one in message.entries)
            self.tell(process, f"writes {held}: {what}{refused}")
        else:
            self.tell(process, f"settles {held}: {message.state}{refused}")

    # ── the end ───────────────────────────────────────────────────────────────────────────────

    def _look_at_workers(self) -> None:
        """A worker that lost its lease begins anew, once nothing of the old one executes."""
        end = self.clock.now + ANEW_LEASES * self.lease_seconds
        while self._silent() and self.clock.now < end:
            self._until(self.clock.now + self.lease_seconds / 4, though_over=True)
        for worker_id in self._silent():
            self.world.wrong(f"{worker_id} has lost its lease, and never begins anew")

    def _silent(self) -> list[str]:
        rows = self.store.rows("SELECT id FROM andon_workers WHERE state = 'silent'")
        workers = [one.worker for one in self.processes if not one.worker.draining]
        return [worker.worker_id for worker in workers if (worker.worker_id,) in rows]

    def _look_at_ends(self) -> None:
        from verify.simulated.final_checks import broken

        for wrong in broken(self):
            self.world.wrong(wrong)


@contextlib.contextmanager
def _no_collector() -> Iterator[None]:
    """Garbage is collected after a story, never during one.

    When the collector runs depends on earlier stories, and the files it closes pass points.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _ErrorWatch(logging.Handler):
    """An error inside the runtime itself is a violation, even if the runtime recovers from it."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(logging.ERROR)
        self._fleet = fleet

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, Crash) and self._fleet.current.alive:
            self._fleet.world.wrong(f"the runtime failed: {record.getMessage()}: {error!r}")

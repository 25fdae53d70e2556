"""The world outside: what agents do to it, counted by itself, and the person who is asked.

It trusts nothing that the runtime says. Each act is looked at when it happens: whoever acts must
still be the owner as far as it may know, and nobody acts after its stop was proved.
"""

import contextvars
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from andon.core.lease import Fence
from andon.errors import AndonError
from andon.runtime import requests

if TYPE_CHECKING:
    from asyncio import Future

    from verify.simulated.fleet import Fleet
    from verify.simulated.process import Process

# How many operations may still begin under an order that was heard: one in each branch.
UNDER_WAY = 2
attempt: contextvars.ContextVar[int] = contextvars.ContextVar("attempt", default=0)
_worlds: list["World"] = []  # the last one is in force


class World:
    """What really happened."""

    def __init__(self, fleet: "Fleet") -> None:
        self.fleet = fleet
        self.lines: list[tuple[str, str, int]] = []  # (what, key, attempt), as laws.py takes them
        self.undos: list[tuple[str, int]] = []  # and under which fence
        self.standing: dict[str, int] = {}  # how often an effect happened and was not undone
        self.known: dict[str, int] = {}  # steps whose results an attempt was given, and which one
        self.used: dict[str, str] = {}  # steps → the value that they were executed with
        self.acknowledges: dict[str, str] = {}  # effects → the step that is durable before them
        self.pieces: dict[tuple[str, int], int] = {}  # (step, attempt) → how many it has kept
        self.saves: Counter[tuple[str, int]] = Counter()  # (run, attempt): snapshots it waited for
        self.deaf: Counter[tuple[str, int]] = Counter()  # (run, attempt): begun under an order
        self.flying: dict[str, list[Process]] = {}  # who is inside the call of an effect
        self.left: list[Future[int]] = []  # what agents do not wait for; loops forget such tasks
        self.violations: list[str] = []

    @contextmanager
    def in_force(self) -> Iterator[None]:
        _worlds.append(self)
        try:
            yield
        finally:
            _worlds.pop()

    def record(self, what: str, key: str) -> None:
        self.fleet.current.refuse_dead()
        self.lines.append((what, key, attempt.get()))
        self.fleet.tell(self.fleet.current, f"{what} {key} (attempt {attempt.get()})")
        run_id = key.partition("/")[0]
        if run_id in self.fleet.damaged and attempt.get() > self.fleet.damaged[run_id]:
            self.wrong(f"{run_id} goes on from a journal that is damaged: {what} {key}")

    def wrong(self, text: str) -> None:
        self.fleet.tell(None, f"VIOLATION: {text}")
        self.violations.append(text)

    def step(self, key: str) -> None:
        self.record("step", key)
        self._look_at_orders(key)
        # One that was frozen before it began may yet begin: what it writes is refused.
        if attempt.get() > self.known.get(key, attempt.get()):
            self.wrong(f"{key} executes again although its result was given to the agent")

    def uses(self, key: str, value: str) -> None:
        """What is acted upon was durable before: it is the same in every attempt."""
        self.fleet.current.refuse_dead()
        if self.used.setdefault(key, value) != value:
            self.wrong(f"{key} executes with another value than before")

    def answered(self, key: str) -> None:
        self.known.setdefault(key, attempt.get())

    @contextmanager
    def inside(
        self, key: str, fence: Fence, written: tuple[str, ...] = ("started",)
    ) -> Iterator[None]:
        """The call of an effect, or of its undo: from here on it may happen at any moment."""
        self.fleet.current.refuse_dead()
        self._look_at_owner(self.fleet.current, key, fence)
        self._look_at_journal(key, fence, written)
        self._look_at_orders(key)
        if key in self.acknowledges:
            self.answered(self.acknowledges[key])
        with self.underway(key):
            yield

    @contextmanager
    def underway(self, key: str) -> Iterator[None]:
        process = self.fleet.current
        self.flying.setdefault(key, []).append(process)
        try:
            yield
        finally:
            self.flying[key].remove(process)

    def act(self, what: str, key: str, fence: Fence) -> None:
        self._look_at_stops(key, fence.counter)
        if what == "idempotent" and self.standing.get(key):
            return  # the provider knows the key
        self.record(what, key)
        self.standing[key] = self.standing.get(key, 0) + 1
        if self.standing[key] > 1:
            self.wrong(f"{key} happened twice")

    def undo(self, key: str, fence: Fence) -> None:
        self._look_at_stops(key, fence.counter)
        self.record("undone", key)
        self.undos.append((key, fence.counter))
        self.standing[key] = 0

    def deadly(self, key: str) -> None:
        self.record("deadly", key)
        self.fleet.crash(self.fleet.current)

    def saved(self, run_id: str) -> None:
        """A snapshot that was waited for is durable."""
        self.fleet.current.refuse_dead()
        self.saves[run_id, attempt.get()] += 1
        [(there,)] = self.fleet.store.rows(
            "SELECT count(*) FROM andon_journal j JOIN andon_attempts a USING (run_id, fence)"
            " WHERE run_id = ? AND a.number = ? AND j.kind = 'snapshot'",
            run_id,
            attempt.get(),
        )
        if there < self.saves[run_id, attempt.get()]:
            self.wrong(f"{run_id} goes on, and its snapshot is not durable")

    # ── partial progress ──────────────────────────────────────────────────────────────────────

    def keeps(self, key: str, found: list[int]) -> None:
        self.pieces[key, attempt.get()] = len(found)

    def went_on(self, key: str, found: list[int]) -> None:
        """A step begins with what it was given of itself."""
        self.fleet.current.refuse_dead()
        number = attempt.get() - 1
        kept = [count for (one, _), count in self.pieces.items() if one == key]
        if found != list(range(len(found))) or len(found) > max(kept, default=0):
            self.wrong(f"{key} goes on from {found}, which it never kept")
        ended = self.fleet.store.rows(
            "SELECT ending FROM andon_attempts WHERE run_id = ? AND number = ?",
            key.partition("/")[0],
            number,
        )
        if ended == [("cut",)] and len(found) < self.pieces.get((key, number), 0):
            self.wrong(f"{key} was cut off in attempt {number}, and its partial value is lost")

    def look_at_kept(self, key: str, found: list[int]) -> None:
        """A partial value is durable after a second, if nothing holds the store up."""
        run_id = key.partition("/")[0]
        owned = self.fleet.store.rows(
            "SELECT 1 FROM andon_runs WHERE id = ? AND attempt = ? AND state = 'running'",
            run_id,
            attempt.get(),
        )
        if not self.fleet.calm() or not owned:  # who was killed and has not heard of it is refused
            return
        rows = self.fleet.store.rows("SELECT body FROM andon_checkpoints WHERE run_id = ?", run_id)
        if found not in [json.loads(body) for (body,) in rows]:
            self.wrong(f"{key} has {found} for a second, and it is not kept: {rows}")

    # ── who may act ───────────────────────────────────────────────────────────────────────────

    def _look_at_orders(self, key: str) -> None:
        """Who has said that it heard of an order begins nothing more."""
        run_id = key.partition("/")[0]
        if self.fleet.orders and self.fleet.store.rows(
            "SELECT 1 FROM andon_targets t JOIN andon_attempts a"
            " ON a.run_id = t.run_id AND a.fence = t.fence"
            " WHERE t.run_id = ? AND a.number = ? AND t.stage = 'acknowledged'",
            run_id,
            attempt.get(),
        ):
            self.deaf[run_id, attempt.get()] += 1
            if self.deaf[run_id, attempt.get()] > UNDER_WAY:
                self.wrong(f"{key} begins although its stop was heard of")

    def _look_at_owner(self, process: "Process", key: str, fence: Fence) -> None:
        """Nobody begins an effect after the end of its lease: it must not trust it that long."""
        fleet, run_id = self.fleet, key.partition("/")[0]
        rows = fleet.store.rows(
            "SELECT w.id, w.state, w.lease_until FROM andon_attempts a"
            " JOIN andon_workers w ON w.id = a.worker WHERE a.run_id = ? AND a.fence = ?",
            run_id,
            fence.counter,
        )
        if not rows:
            self.wrong(f"{key} begins under fence {fence}, which nobody was ever given")
            return
        [(worker_id, state, until)] = rows
        over = state == "silent" or until <= fleet.clock.store_now()
        if over and not fleet.jumped_lately():
            self.wrong(f"{worker_id} begins {key} after its lease has ended")

    def _look_at_journal(self, key: str, fence: Fence, written: tuple[str, ...]) -> None:
        """What changes the world is durably written down before it is done, by who does it."""
        last = self.fleet.store.rows(
            "SELECT state FROM andon_journal WHERE run_id = ? AND key = ? AND fence = ?"
            " ORDER BY seq DESC LIMIT 1",
            key.partition("/")[0],
            key,
            fence.counter,
        )
        if last not in [[(state,)] for state in written]:
            self.wrong(f"{key} begins, and what was written of it is {last}, not {written[0]}")

    def _look_at_stops(self, key: str, fence: int) -> None:
        run_id = key.partition("/")[0]
        if self.fleet.store.rows(
            "SELECT 1 FROM andon_targets WHERE run_id = ? AND fence = ? AND stage = 'verified'",
            run_id,
            fence,
        ):
            self.wrong(f"{key} happens after its stop was proved")
        for worker_id, state in self.fleet.store.rows(
            "SELECT w.id, w.state FROM andon_attempts a JOIN andon_workers w ON w.id = a.worker"
            " WHERE a.run_id = ? AND a.fence = ? AND w.state IN ('gone', 'dead')",
            run_id,
            fence,
        ):
            self.wrong(f"{key} happens although {worker_id} is {state} and executes nothing")

    def executes(self, key: str) -> None:
        """Code of a run, at any moment."""
        self.fleet.current.refuse_dead()
        for (fence,) in self.fleet.store.rows(
            "SELECT fence FROM andon_attempts WHERE run_id = ? AND number = ?",
            key.partition("/")[0],
            attempt.get(),
        ):
            self._look_at_stops(key, fence)

    def may_happen(self, key: str) -> bool:
        """Whether somebody is still inside the call, or has a thread that is about to be."""
        inside = any(process.alive for process in self.flying.get(key, ()))
        return inside or any(one.threads for one in self.fleet.processes)


def the_world() -> World:
    return _worlds[-1]


# ── the person ────────────────────────────────────────────────────────────────────────────────


class Person:
    """Answers asks. A careful one: not before nobody can be acting any more."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.seen: dict[tuple[str, str], float] = {}

    def look(self) -> None:
        fleet = self.world.fleet
        for ask in fleet.store.asks():
            since = self.seen.setdefault((ask.run_id, ask.id), fleet.clock.now)
            if fleet.clock.now - since < fleet.lease_seconds * 1.5:
                continue
            key = ask.id.partition("/")[2].rpartition("#")[0]
            if ask.about == "undo":
                decision, given = "try_again", None
            elif self.world.may_happen(key):
                continue
            elif self.world.standing.get(key):
                decision, given = "happened", key
            else:
                decision, given = "did_not_happen", None
            fleet.tell(None, f"a person says about {key}: {decision}")
            try:
                requests.answer(fleet.store, ask.run_id, decision, given, ask=ask.id, by="ann")
            except AndonError as error:
                fleet.tell(None, f"the answer is refused: {error}")

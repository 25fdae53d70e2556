"""The world outside: the effects of agents, counted independently, and the person who is asked.

It trusts nothing that the runtime reports. Each act is checked when it happens: its worker must
still be the owner as far as it can know, and nothing acts after its stop was proved.
"""

import contextvars
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from andon.core.drain import Phase
from andon.core.lease import Fence
from andon.errors import AndonError
from andon.runtime.requests import requests
from andon.runtime.worker.clock import own_time
from andon.store.messages.rows import AskRow
from andon.store.store import EffectRow

if TYPE_CHECKING:
    from asyncio import Future

    from verify.simulated.children import Child
    from verify.simulated.fleet import Fleet
    from verify.simulated.process import Process

# How many operations may still begin under an order that was received: one in each branch.
UNDER_WAY = 2
A_COMMIT = 0.01  # a process knows the store's time as of its last question
attempt: contextvars.ContextVar[int] = contextvars.ContextVar("attempt", default=0)
_worlds: list["World"] = []  # the last one is in force


class World:
    """The effects that really happened."""

    def __init__(self, fleet: "Fleet") -> None:
        self.fleet = fleet
        self.lines: list[tuple[str, str, int]] = []  # (what, key, attempt), as laws.py takes them
        self.undos: list[tuple[str, int]] = []  # and under which fence
        self.standing: dict[str, int] = {}  # how often an effect happened and was not undone
        self.known: dict[str, int] = {}  # steps whose results an attempt got, and which one
        self.used: dict[str, str] = {}  # steps → the value that they were executed with
        self.acknowledges: dict[str, str] = {}  # effects → the step that is durable before them
        self.pieces: dict[tuple[str, int], int] = {}  # (step, attempt) → how many parts it saved
        self.saves: Counter[tuple[str, int]] = Counter()  # (run, attempt): snapshots it waited for
        self.deaf: Counter[tuple[str, int]] = Counter()  # (run, attempt): begun under an order
        self.flying: dict[str, list[Process]] = {}  # the processes inside the call of an effect
        self.shields: dict[tuple[str, int], float] = {}  # (run, attempt) → until when
        self.keys: dict[str, str] = {}  # that andon gave to effects, and which; and the reverse
        self.beds: dict[str, float] = {}  # sleeps → when one was first asked for
        self.woken: dict[str, float] = {}  # and when its code was first answered
        self.said: dict[str, list[tuple[str, Any]]] = {}  # questions → their answers
        self.refused: set[str] = set()  # effects that cannot be undone for now
        self.failed: set[str] = set()  # steps that fail once, and have
        self.mess: dict[tuple[str, int], list[str]] = {}  # (run, attempt) → its clean-ups
        self.left: list[Future[int]] = []  # tasks without a waiter; loops forget those
        self.violations: list[str] = []

    @contextmanager
    def in_force(self) -> Iterator[None]:
        _worlds.append(self)
        try:
            yield
        finally:
            _worlds.pop()

    def record(self, what: str, key: str, child: "Child | None" = None) -> None:
        who = child.parent if child is not None else self.fleet.current
        if child is None:
            who.refuse_dead()
        self.lines.append((what, key, attempt.get()))
        by = f", by {child.pid}" if child is not None else ""
        self.fleet.tell(who, f"{what} {key} (attempt {attempt.get()}{by})")
        run_id = key.partition("/")[0]
        if run_id in self.fleet.damaged and attempt.get() > self.fleet.damaged[run_id]:
            self.wrong(f"{run_id} goes on from a journal that is damaged: {what} {key}")

    def wrong(self, text: str) -> None:
        self.fleet.tell(None, f"VIOLATION: {text}")
        self.violations.append(text)

    def step(self, key: str) -> None:
        self.record("step", key)
        self._look_at_orders(key)
        if key in self.acknowledges:
            self._look_at_result(self.acknowledges[key])
        # A step frozen before it began may yet begin: its result is refused.
        if attempt.get() > self.known.get(key, attempt.get()):
            self.wrong(f"{key} executes again although its result was given to the agent")

    def uses(self, key: str, value: str) -> None:
        """A value that is acted upon was durable before: it is the same in every attempt."""
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
        with self.underway(key, self.fleet.current):
            yield

    @contextmanager
    def underway(self, key: str, process: "Process") -> Iterator[None]:
        self.flying.setdefault(key, []).append(process)
        try:
            yield
        finally:
            self.flying[key].remove(process)

    def act(self, what: str, key: str, fence: Fence, child: "Child | None" = None) -> None:
        """It happens; `child`: by a program, which lives until it is ended."""
        self._look_at_stops(key, fence.counter)
        if what == "idempotent" and self.standing.get(key):
            return  # the provider knows the key
        self.record(what, key, child)
        self.standing[key] = self.standing.get(key, 0) + 1
        if self.standing[key] > 1:
            self.wrong(f"{key} happened twice")

    def look_at_certain(self, process: "Process", effects: Iterable[EffectRow]) -> None:
        """An effect written as certain, or as idle, must not be in progress in its writer."""
        for one in effects:
            open_ = one.state in ("started", "in_doubt", "undoing")
            if one.state == "started" and one.quiet:
                self.wrong(f"{one.key} is begun, and the ledger says that nothing acts")
            if (one.quiet or not open_) and process in self.flying.get(one.key, ()):
                self.wrong(f"{process.name} writes {one.key} {one.state}, and still is about it")
            if (one.quiet or not open_) and (acts := self.fleet.children.of(one.key)):
                self.wrong(f"{process.name} writes {one.key} {one.state}, and {acts[0].pid} acts")

    def undo(self, key: str, fence: Fence) -> None:
        self._look_at_stops(key, fence.counter)
        self.record("undone", key)
        self.undos.append((key, fence.counter))
        self.standing[key] = 0

    def refuses(self, key: str) -> bool:
        """Some cannot be undone automatically, until a person has repaired them."""
        if key not in self.refused and self.fleet.strikes("provider error"):
            self.refused.add(key)
        return key in self.refused

    def undo_by_hand(self, key: str) -> None:
        self.lines.append(("undone", key, 0))
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

    def look_at_given(self, key: str, result: Any) -> None:
        """An undo gets the result of the effect, if that is known."""
        last = self.fleet.store.rows(
            "SELECT state FROM andon_journal WHERE run_id = ? AND key = ?"
            " AND state IN ('started', 'confirmed') ORDER BY seq DESC LIMIT 1",
            key.partition("/")[0],
            key,
        )
        if last == [("confirmed",)] and result != key:
            self.wrong(f"{key} is undone without its result, with {result!r}")

    def named(self, who: str, key: str) -> None:
        """A key that andon gives belongs to one effect, and is always the same."""
        self.fleet.current.refuse_dead()
        if self.keys.setdefault(who, key) != key or self.keys.setdefault(key, who) != who:
            self.wrong(f"{who} has the key {key}, which is {self.keys.get(key)}'s")

    def fails_once(self, key: str) -> None:
        if key not in self.failed:
            self.record("failed", key)
            self.failed.add(key)
            raise ValueError("the first time")

    @contextmanager
    def shield(self, run_id: str, seconds: float) -> Iterator[None]:
        """A block that no polite stop cuts short."""
        process, number = self.fleet.current, attempt.get()
        owned = process.worker.attempts[run_id]
        leaving = owned.exit.reason is not None
        self.fleet.interrupt(run_id, seconds)
        until = self.shields[run_id, number] = process.loop.time() + seconds
        try:
            yield
        except BaseException:
            held = process.loop.time() < until and not leaving and process.alive
            if held and (owned.exit.reason or "") in self._polite(process):
                self.wrong(f"{run_id} has a shield, and leaves: {owned.exit.reason}")
            raise
        finally:
            del self.shields[run_id, number]

    def _polite(self, process: "Process") -> tuple[str, ...]:
        drain = process.worker.drain
        ends = drain.begun_at + drain.plan.ends[Phase.CHECKPOINT]
        early = drain.begun and own_time() < ends
        return ("drained", "paused", "cancelled", *(("stopped",) if early else ()))

    # ── clean-up ──────────────────────────────────────────────────────────────────────────────

    def untidy(self, run_id: str, name: str) -> None:
        self.mess.setdefault((run_id, attempt.get()), []).append(name)

    def tidied(self, run_id: str, number: int, name: str) -> None:
        self.fleet.current.refuse_dead()
        left = self.mess[run_id, number]
        if left[-1:] != [name]:
            self.wrong(f"{run_id} tidies {name} up in attempt {number}, and {left} is left")
        left.remove(name)

    # ── waiting ───────────────────────────────────────────────────────────────────────────────

    def lies_down(self, key: str) -> None:
        self.fleet.current.refuse_dead()
        self.beds.setdefault(key, self.fleet.clock.now)

    def slept(self, key: str, seconds: float) -> None:
        self.fleet.current.refuse_dead()
        if self.fleet.calm() and self.fleet.clock.now < self.beds[key] + seconds - A_COMMIT:
            self.wrong(f"{key} wakes up after {self.fleet.clock.now - self.beds[key]:.2f} s")

    def in_time(self, key: str, seconds: float) -> None:
        """It resumes before that, unless a fault holds it up."""
        self.woken.setdefault(key, self.fleet.clock.now)
        if self.fleet.undisturbed() and self.woken[key] > self.beds[key] + seconds:
            self.wrong(f"{key} is not awake after {seconds} s")

    def got_answer(self, question: str, decision: str, value: Any) -> None:
        self.fleet.current.refuse_dead()
        if (decision, value) not in self.said.get(question, []):
            self.wrong(f"{question}: the code got {decision} {value}, {self.said.get(question)}")

    # ── partial progress ──────────────────────────────────────────────────────────────────────

    def keeps(self, key: str, found: list[int]) -> None:
        self.pieces[key, attempt.get()] = len(found)

    def went_on(self, key: str, found: list[int]) -> None:
        """A step begins with its own partial progress."""
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
        """A partial value is durable after a second, unless a fault delays the store."""
        run_id = key.partition("/")[0]
        owned = self.fleet.store.rows(
            "SELECT 1 FROM andon_runs WHERE id = ? AND attempt = ? AND state = 'running'",
            run_id,
            attempt.get(),
        )
        if not self.fleet.calm() or not owned:  # a killed one without its order is refused
            return
        rows = self.fleet.store.rows("SELECT body FROM andon_checkpoints WHERE run_id = ?", run_id)
        if found not in [json.loads(body) for (body,) in rows]:
            self.wrong(f"{key} has {found} for a second, and it is not kept: {rows}")

    # ── who may act ───────────────────────────────────────────────────────────────────────────

    def _look_at_result(self, key: str) -> None:
        run_id, _, name = key.partition("/")
        if not self.fleet.store.rows(
            "SELECT 1 FROM andon_journal WHERE run_id = ? AND name = ? AND state = 'done'",
            run_id,
            name,
        ):
            self.wrong(f"{key} is not durable, and the next operation begins")

    def _look_at_orders(self, key: str) -> None:
        """A process that acknowledged an order, or that drains, begins nothing more."""
        run_id = key.partition("/")[0]
        if self.shields.get((run_id, attempt.get()), 0.0) > self.fleet.clock.now:
            return
        heard = self.fleet.current.leaving or (
            self.fleet.orders
            and self.fleet.store.rows(
                "SELECT 1 FROM andon_targets t JOIN andon_attempts a"
                " ON a.run_id = t.run_id AND a.fence = t.fence"
                " WHERE t.run_id = ? AND a.number = ? AND t.stage = 'acknowledged'",
                run_id,
                attempt.get(),
            )
        )
        if heard:
            self.deaf[run_id, attempt.get()] += 1
            if self.deaf[run_id, attempt.get()] > UNDER_WAY:
                self.wrong(f"{key} begins after its order was acknowledged")

    def _look_at_owner(self, process: "Process", key: str, fence: Fence) -> None:
        """No process begins an effect after its lease: it must not trust it for that long."""
        fleet, run_id = self.fleet, key.partition("/")[0]
        rows = fleet.store.rows(
            "SELECT w.id, w.state, w.lease_until FROM andon_attempts a"
            " JOIN andon_workers w ON w.id = a.worker WHERE a.run_id = ? AND a.fence = ?",
            run_id,
            fence.counter,
        )
        if not rows:
            self.wrong(f"{key} begins under fence {fence}, which no worker was ever given")
            return
        [(worker_id, state, until)] = rows
        over = state == "silent" or until <= fleet.clock.store_now()
        if over and not fleet.jumped_lately():
            self.wrong(f"{worker_id} begins {key} after its lease has ended")

    def _look_at_journal(self, key: str, fence: Fence, written: tuple[str, ...]) -> None:
        """An effect is durably written down before it is done, by the process that does it."""
        last = self.fleet.store.rows(
            "SELECT state FROM andon_journal WHERE run_id = ? AND key = ? AND fence = ?"
            " ORDER BY seq DESC LIMIT 1",
            key.partition("/")[0],
            key,
            fence.counter,
        )
        if last not in [[(state,)] for state in written]:
            self.wrong(f"{key} begins, and the journal has {last}, not {written[0]}")

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
        """Whether a process is still inside the call, or has a thread or program that acts."""
        inside = any(process.alive for process in self.flying.get(key, ()))
        if inside or self.fleet.children.of(key):
            return True
        return any(one.threads for one in self.fleet.processes)


def the_world() -> World:
    return _worlds[-1]


# ── the person ────────────────────────────────────────────────────────────────────────────────


class Person:
    """Answers asks. Careful: never while a process may still be acting."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.seen: dict[tuple[str, str], float] = {}
        self.ignored: dict[str, bool] = {}  # questions whose deadline the person lets pass

    def look(self) -> None:
        fleet = self.world.fleet
        for ask in fleet.store.asks():
            if ask.about == "value":
                self._decide(ask)
                continue
            since = self.seen.setdefault((ask.run_id, ask.id), fleet.clock.now)
            if fleet.clock.now - since < fleet.lease_seconds * 1.5:
                continue
            key = ask.id.partition("/")[2].rpartition("#")[0]
            self.world.refused.discard(key)
            if ask.about == "undo" and fleet.chance.random() < 0.5:
                decision, given = "try_again", None
            elif self.world.may_happen(key):
                continue
            elif ask.about == "undo":
                self.world.undo_by_hand(key)
                decision, given = "undone", None
            elif self.world.standing.get(key):
                decision, given = "happened", key
            else:
                decision, given = "did_not_happen", None
            fleet.tell(None, f"a person says about {key}: {decision}")
            self._say(ask, decision, given)

    def _decide(self, ask: AskRow) -> None:
        """A question that the code itself asked."""
        if ask.expires_at is not None and self.ignored.setdefault(
            ask.question, self.world.fleet.chance.random() < 0.5
        ):
            return
        number = int(ask.question.rpartition("-")[2])
        decision = self.world.fleet.chance.choice(("approve", "edit"))
        given = number if decision == "approve" else number + 1000
        self.world.said.setdefault(ask.question, []).append((decision, given))
        self._say(ask, decision, None if decision == "approve" else given)

    def _say(self, ask: AskRow, decision: str, given: Any) -> None:
        fleet = self.world.fleet
        try:
            requests.answer(fleet.store, ask.run_id, decision, given, ask=ask.id, by="ann")
        except AndonError as error:
            fleet.tell(None, f"the answer is refused: {error}")

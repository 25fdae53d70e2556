"""The messages sent to the two stores: every message of workers and people, valid and not.

A former owner of a run goes on writing with its old fence now and then, messages are sent twice as
after a lost acknowledgement, and several share a commit.
"""

import json
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from tests.store.parts import AGENT, Held, agent_row, effect, new_run, worker_row

from andon.core.run import State
from andon.store.messages.stops import (
    Ended,
    Escalate,
    Heard,
    Order,
    ProcessStarted,
    Reauthorize,
    Resume,
    TargetReport,
    WorkerGone,
)
from andon.store.store import (
    Append,
    Ask,
    AskDrain,
    Beat,
    Checkpoint,
    Claim,
    Deliver,
    Depart,
    Drain,
    Log,
    Message,
    MoveRun,
    Recall,
    Register,
    SetLimit,
    Settle,
    Start,
)
from verify.store_pair import Pair

LEASE_SECONDS = 100.0
MOST_RUNS = 6

whichever = st.integers(0, 11)  # of those that exist, by its position
EFFECTS = ("started", "confirmed", "in_doubt", "failed", "undoing", "compensated")
ENDS = (State.SUCCEEDED, State.FAILED, State.QUEUED, State.SUSPENDED, State.STRANDED)


def chosen(among: list[Any], which: int) -> Any:
    return among[which % len(among)]


class Machine(RuleBasedStateMachine):
    """Sends the same to both stores, and remembers what a real sender would know."""

    def __init__(self, pair: Pair) -> None:
        super().__init__()
        self.pair = pair
        self.workers: list[str] = []
        self.runs: list[str] = []
        self.held: list[Held] = []
        self.orders = 0
        self.claims = 0
        self.twice = False  # everything is sent once more at once
        self.last: tuple[list[Message], list[Message], list[Any]] | None = None

    def begin(self, runs: int, workers: int) -> None:
        """Some runs have an owner; otherwise nearly every message would be refused."""
        self.pair.empty()
        for _ in range(workers):
            self.register()
        for number in range(runs):
            self.start(number, 0, False)
        self.claim(0, 3, None, False)

    def teardown(self) -> None:
        if self.workers:
            self.pair.ask()

    def send(self, *messages: Message, postgres: tuple[Message, ...] = ()) -> list[Any]:
        both = list(messages), list(postgres or messages)
        outcomes = self.pair.write(*both)
        self.last = *both, outcomes
        if self.twice:
            self.pair.write_again(*self.last)
        return outcomes

    # ── workers ───────────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: len(self.workers) < 4)
    @rule()
    def register(self) -> None:
        name = f"w{len(self.workers)}"
        self.workers.append(name)
        embedded = len(self.workers) % 2 == 0  # every other one is in a program
        row, agents = worker_row(name).but(embedded=embedded), (agent_row(),)
        self.send(Register(worker=row, agents=agents, lease_seconds=LEASE_SECONDS))

    @rule(which=whichever)
    def beat(self, which: int) -> None:
        worker = chosen(self.workers, which)
        self.send(Beat(worker_id=worker, lease_seconds=LEASE_SECONDS, progress="{}"))

    @rule(which=whichever, what=st.sampled_from(("drain", "asked", "leaves", "leaves something")))
    def go(self, which: int, what: str) -> None:
        worker = chosen(self.workers, 1 + which)
        match what:
            case "drain":
                self.send(Drain(worker_id=worker, drain='{"why": "SIGTERM"}', ago=0.5))
            case "asked":
                self.send(AskDrain(worker_id=worker, by="ann"))
            case _:
                alive = what != "leaves"
                self.send(Depart(worker_id=worker, drain='{"exit": "clean"}', alive=alive))

    @rule(which=st.integers(1, 11), limit=st.sampled_from((1, 10)), ordered=st.booleans())
    def bury(self, which: int, limit: int, ordered: bool) -> None:
        worker = chosen(self.workers, which)
        bury = WorkerGone(worker_id=worker, evidence="it ended", interruption_limit=limit)
        self.send(bury.but(ordered=ordered))

    @rule(which=whichever, limit=st.integers(0, 3), dead=st.none() | whichever, again=st.booleans())
    def claim(self, which: int, limit: int, dead: int | None, again: bool, **of: Any) -> None:
        self.claims += not again
        how = of.pop("how", "dead:its process ended")
        gone = () if dead is None else ((chosen(self.workers, dead), how),)
        plain: dict[str, Any] = {"agents": (AGENT,), "limit": limit}
        message = Claim(
            worker_id=chosen(self.workers, which),
            **plain | of,
            dead=gone,
            expire=True,
            lease_seconds=LEASE_SECONDS,
            interruption_limit=3,
            number=self.claims,
        )
        [result] = self.send(message)
        self.held += [Held(run) for run in result.runs]

    @rule(
        which=whichever,
        versions=st.sampled_from(("1", "2", "12")),
        queues=st.sampled_from((None, ("default",), ("slow",))),
        only=st.none() | whichever,
    )
    def claim_some(
        self, which: int, versions: str, queues: tuple[str, ...] | None, only: int | None
    ) -> None:
        """A worker may carry other versions, serve some queues, or execute one run."""
        agents = tuple(("agent", version) for version in versions)
        roots = None if only is None or not self.runs else (chosen(self.runs, only),)
        self.claim(which, 2, None, False, agents=agents, queues=queues, only=roots)

    @rule(which=whichever, dead=whichever, sight=st.sampled_from(("process", "silent")))
    def claim_from_elsewhere(self, which: int, dead: int, sight: str) -> None:
        """From another host a worker can see only that the other worker's lock is free."""
        self.claim(which, 1, dead, False, how=f"{sight}:its lock is free")

    @rule(seconds=st.sampled_from((1.0, 60.0, 150.0, 1000.0)))
    def time_passes(self, seconds: float) -> None:
        self.pair.clock.now += seconds

    # ── runs ──────────────────────────────────────────────────────────────────────────────────

    @rule(which=whichever, priority=st.integers(0, 1), later=st.booleans())
    def start(self, which: int, priority: int, later: bool) -> None:
        name = f"r{which % MOST_RUNS}"
        self.runs = sorted({*self.runs, name})
        labels, delay = json.dumps({"tenant": f"t{which % 2}"}), 100.0 if later else 0.0
        # Runs that not every worker claims.
        other: dict[str, Any] = {4: {"version": "2"}, 5: {"queue": "slow"}}.get(
            which % MOST_RUNS, {}
        )
        plain = {"priority": priority, "labels": labels, "delay_seconds": delay}
        self.send(Start(run=new_run(name, f"input {which}", **plain, **other)))

    def write(self, held: Held, **of: Any) -> Append:
        row: dict[str, Any] = {}
        if of.get("kind") == "effect":
            undo: dict[str, Any] = {"undo": "m:f", "undo_within": 200.0}
            undo = undo if of["key"] == "b" else {}
            known = effect(seq=held.seq + 1, state=of["state"], key=of["key"], **undo)
            row = {"effects": (known,)}
        return held.append(of=of, **row)

    def _holder(self, which: int) -> Held:
        """Mostly a recent owner: a former owner is refused, however often it tries."""
        return chosen(self.held[-4:] if which % 4 else self.held, which // 4)  # type: ignore[no-any-return]

    def _try(self, held: Held, message: Append) -> None:
        """A refused message has not moved its run: the next one begins at the same head."""
        [outcome] = self.send(message)
        if isinstance(outcome, Exception):
            held.look_again(self.pair.sqlite)

    @precondition(lambda self: self.held)
    @rule(which=whichever, entries=st.integers(1, 3))
    def step(self, which: int, entries: int) -> None:
        held = self._holder(which)
        self._try(held, held.append(entries=entries, step="step"))

    @precondition(lambda self: self.held)
    @rule(which=whichever, state=st.sampled_from(EFFECTS), key=st.sampled_from("ab"))
    def act(self, which: int, state: str, key: str) -> None:
        held = self._holder(which)
        self._try(held, self.write(held, kind="effect", state=state, name="pay", key=key))

    @precondition(lambda self: len(self.held) > 1)
    @rule(count=st.integers(2, 5))
    def write_together(self, count: int) -> None:
        """In one commit; each succeeds or is refused alone."""
        writers = self.held[-count:]
        self.send(*(self.write(one, kind="step", state="done") for one in writers))
        for one in writers:
            one.look_again(self.pair.sqlite)

    @precondition(lambda self: self.held)
    @rule(which=whichever)
    def ask(self, which: int) -> None:
        held = self._holder(which)
        self._try(held, self._asking(held))

    def _asking(self, held: Held) -> Append:
        ask = Ask(id=f"a{held.seq}", about="value", question="?", value=None, choices='["approve"]')
        return held.append(of={"kind": "ask", "state": "waiting"}, ask=ask)

    @precondition(lambda self: self.held)
    @rule(which=whichever)
    def spawn(self, which: int) -> None:
        self.spawn_of(self._holder(which))

    def spawn_of(self, held: Held) -> None:
        name = f"{held.id}.{held.seq % 2}"
        child = new_run(name, "child", parent_id=held.id, root_id=held.claimed.root_id)
        self.runs = sorted({*self.runs, name})
        self._try(held, held.append(of={"kind": "child", "state": "waiting"}, spawn=child))

    @precondition(lambda self: self.held)
    @rule(which=whichever)
    def take(self, which: int) -> None:
        self.take_of(self._holder(which))

    def take_of(self, held: Held) -> None:
        """The oldest message; each store has its own numbers."""
        one, other = (
            store.inbox([held.id]).get(held.id, [])
            for store in (self.pair.sqlite, self.pair.postgres)
        )
        assert [(a.kind, a.name, a.body) for a in one] == [(a.kind, a.name, a.body) for a in other]
        if one:
            first = held.append(of={"kind": "event"}, take=one[0].id)
            second = Append(
                run_id=first.run_id, fence=first.fence, entries=first.entries, take=other[0].id
            )
            self.send(first, postgres=(second,))
            held.look_again(self.pair.sqlite)

    @precondition(lambda self: self.held)
    @rule(which=whichever, text=st.sampled_from(("half", "more")))
    def keep(self, which: int, text: str) -> None:
        held = self._holder(which)
        lines = ((1.0, "info", text),)
        self.send(
            Checkpoint(run_id=held.id, fence=held.fence, op=":0", body=json.dumps(text)),
            Log(run_id=held.id, attempt=held.claimed.attempt, lines=lines),
        )

    @precondition(lambda self: self.held)
    @rule(which=whichever, threads=st.booleans())
    def launch(self, which: int, threads: bool) -> None:
        """The run starts a process, or its threads go on. This stays true, whoever owns the run."""
        held = self._holder(which)
        mark = 1 << 62 | held.fence.counter << 12
        fence = held.fence.counter
        self.send(ProcessStarted(run_id=held.id, fence=fence, mark=mark, threads=threads))

    @precondition(lambda self: self.held)
    @rule(
        which=whichever,
        state=st.sampled_from(ENDS),
        returned=st.booleans(),
        wakes=st.booleans(),
        failed=st.booleans(),
        cleared=st.booleans(),
    )
    def settle(
        self, which: int, state: State, returned: bool, wakes: bool, failed: bool, cleared: bool
    ) -> None:
        held = self._holder(which)
        also = "7 sh" if cleared and wakes else ""
        settlement = self.settlement(held, state, returned, wakes, failed)
        self.send(settlement.but(cleared=cleared, also=also))
        held.look_again(self.pair.sqlite)

    def settlement(
        self, held: Held, state: State, returned: bool, wakes: bool, failed: bool
    ) -> Settle:
        over = state in (State.SUCCEEDED, State.FAILED)
        end = (held.entry(kind="end", state=state, place="", name=""),) if over else ()
        sleeps = state == State.SUSPENDED
        return held.settle(
            state,
            entries=end,
            returned=returned and not over,
            failed=failed,
            delay_seconds=0.0 if returned or over else 50.0,
            waits='[{"kind": "event", "name": "e"}]' if sleeps else None,
            wake_at=self.pair.clock.store_now() + 50.0 if sleeps and wakes else None,
        )

    # ── people ────────────────────────────────────────────────────────────────────────────────

    @rule(which=whichever, number=st.integers(0, 2))
    def event(self, which: int, number: int) -> None:
        run_id, named = chosen(self.runs, which), {"name": "e", "message_id": f"m{number}"}
        self.send(Deliver(run_id=run_id, kind="event", body=str(number), **named))

    @rule(which=whichever)
    def answer(self, which: int) -> None:
        run_id = chosen(self.runs, which)
        asks = self.pair.sqlite.asks(run_id)
        name = asks[0].id if asks else "nothing"
        named = {"name": name, "message_id": f"answer:{name}"}
        self.send(Deliver(run_id=run_id, kind="answer", body='{"decision": "approve"}', **named))

    @rule(
        which=whichever,
        kind=st.sampled_from(("pause", "cancel", "kill", "halt")),
        scope=st.sampled_from(("run", "run", "run", "run", "run", "agent", "label", "fleet")),
        within=st.sampled_from((0.0, 30.0)),
        spare=st.sampled_from((None, True, False)),
    )
    def order(
        self, which: int, kind: str, scope: str, within: float, spare: bool | None = None
    ) -> None:
        named = {"run": chosen(self.runs, which), "agent": "agent", "label": "tenant", "fleet": ""}
        if kind == "halt":  # halts are rare here: hardly anything happens after one
            kind, scope = ("halt", "fleet") if which == 0 else ("kill", scope)
        self.orders += 1
        self.send(
            Order(
                id=f"o{self.orders}",
                kind=kind,
                scope=scope,
                name=named[scope],
                value="t0" if scope == "label" else "",
                within=within,
                by="ann",
                why="unease",
                spare=spare,
            )
        )

    def worker_of(self, held: Held) -> str:
        attempts = self.pair.sqlite.attempts(held.id)
        return next(one.worker for one in attempts if one.fence == held.fence.counter)

    @precondition(lambda self: self.held and self.orders)
    @rule(which=whichever, ended=st.booleans())
    def obey(self, which: int, ended: bool) -> None:
        """A worker has seen orders, or reports that nothing of a run executes any more."""
        held = self._holder(which)
        worker = self.worker_of(held)
        if ended:
            self.send(Ended(worker_id=worker, run_id=held.id, fence=held.fence.counter))
        else:
            self.send(Heard(worker_id=worker, run_ids=(held.id,)))

    @precondition(lambda self: self.orders)
    @rule(scope=st.sampled_from(("agent", "label", "fleet")), hard=st.booleans())
    def lift(self, scope: str, hard: bool) -> None:
        name = {"agent": "agent", "label": "tenant", "fleet": ""}[scope]
        value = "t0" if scope == "label" else ""
        whom: dict[str, Any] = {"scope": scope, "name": name, "value": value}
        if hard:
            newest = max((one.epoch for one in self.pair.sqlite.latches()), default=1)
            for epoch in (newest - 1, newest):  # with and without a look at the newest stop
                self.send(Reauthorize(epoch=epoch, by="ann", why="looked", **whom))
        else:
            self.send(Resume(by="ann", why="looked", **whom))

    @precondition(lambda self: self.orders)
    @rule(which=whichever, stage=st.sampled_from(("verified", "unproved")))
    def report(self, which: int, stage: str) -> None:
        """Report a fenced target, like a supervisor that has ended its process."""
        waiting = self.pair.open_targets()
        if waiting:
            stop_id, target = chosen(waiting, which)
            self.send(
                TargetReport(stop_id=stop_id, target=target, stage=stage, evidence="it was ended")
            )

    @precondition(lambda self: self.orders)
    @rule()
    def escalate(self) -> None:
        self.send(Escalate())

    @rule(which=whichever, seen=st.sampled_from(("paused", "killed", "stranded", "suspended")))
    def move(self, which: int, seen: str) -> None:
        """Move a run from the state that a person saw, as `andon resume` does."""
        self.send(MoveRun(run_id=chosen(self.runs, which), seen=seen, state="queued", fresh=True))

    @rule(which=whichever)
    def recall(self, which: int) -> None:
        self.send(Recall(run_id=chosen(self.runs, which), undoing='{"why": "wrong"}'))

    @rule(
        scope=st.sampled_from(("queue", "agent", "label")),
        most=st.none() | st.integers(1, 2),
        rate=st.none() | st.integers(1, 2),
    )
    def limit(self, scope: str, most: int | None, rate: int | None) -> None:
        name = {"queue": "default", "agent": "agent", "label": "tenant"}[scope]
        per = 500.0 if rate else None
        self.send(
            SetLimit(scope=scope, name=name, at_most=most, rate=rate, per_seconds=per, by="ann")
        )

    # ── sent again ────────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: self.last)
    @rule()
    def again(self) -> None:
        """As a writer does whose acknowledgement was lost."""
        assert self.last is not None
        self.pair.write_again(*self.last)
        self.last = None

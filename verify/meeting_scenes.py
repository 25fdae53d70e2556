"""The scenes of meetings.py: batches of messages that two writers of PostgreSQL send at once."""

from collections.abc import Callable
from typing import Any

from tests.store.parts import AGENT, Held, agent_row, effect, new_run, worker_row

from andon.core.run import State
from andon.store.messages.stops import (
    Dismiss,
    Ended,
    Enlist,
    Escalate,
    Order,
    Reauthorize,
    Resume,
    SupervisorRow,
    TargetReport,
    WorkerGone,
)
from andon.store.store import (
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
    Start,
)
from verify.machine import LEASE_SECONDS
from verify.store_pair import Pair

Batch = list[Any]  # of messages
Both = tuple[Batch, Batch, *tuple[Batch, ...]]  # the second one may have more to send, later
Scene = Callable[["Stage"], Both]
What = Callable[..., Batch]  # of a stage, and the owner of a run there


# ── the state before they meet ────────────────────────────────────────────────────────────────


class Stage:
    """Two workers, and the state that a scene begins with."""

    def __init__(self, pair: Pair, *, alone: bool) -> None:
        self.pair, self._alone = pair, alone
        self._claims = self._orders = 0
        for name in ("w0", "w1"):
            self.do(self.registers(name))

    def do(self, *messages: Message) -> list[Any]:
        self.pair.clock.now += 1.0
        self.pair.set_clock()
        outcomes = self.pair.sqlite.write(messages)
        if not self._alone:
            self.pair.postgres.write(messages)
        return outcomes

    def registers(self, name: str) -> Register:
        return Register(worker=worker_row(name), agents=(agent_row(),), lease_seconds=LEASE_SECONDS)

    def start(self, *names: str, **of: Any) -> None:
        self.do(*(Start(run=new_run(name, **of)) for name in names))

    def claims(self, worker: str, limit: int = 1, **of: Any) -> Claim:
        self._claims += 1
        plain = {"expire": True, "lease_seconds": LEASE_SECONDS, "number": self._claims}
        return Claim(worker_id=worker, agents=(AGENT,), limit=limit, **plain | of)

    def own(self, name: str, worker: str = "w0", **of: Any) -> Held:
        self.start(name, **of)
        [result] = self.do(self.claims(worker, only=(of.get("root_id") or name,)))
        return Held(result.runs[0])

    def family(self, *names: str) -> tuple[Held, list[Held]]:
        """A parent and children of it, each of them executed by a worker."""
        parent, children = self.own("p"), []
        for name in names:
            child = new_run(name, parent_id="p", root_id="p")
            self.do(parent.append(of={"kind": "child", "state": "waiting"}, spawn=child))
            [result] = self.do(self.claims("w1", only=("p",)))
            children.append(Held(result.runs[0]))
        return parent, children

    def order(self, kind: str, scope: str = "run", name: str = "", within: float = 30.0) -> Order:
        self._orders += 1
        return Order(id=f"o{self._orders}", kind=kind, scope=scope, name=name, within=within)


def ends(held: Held, state: State = State.SUCCEEDED, **of: Any) -> Message:
    return held.settle(
        state, entries=(held.entry(kind="end", state=state, place="", name=""),), **of
    )


def owing(held: Held) -> Message:
    """It has effects that have to be undone."""
    undo: dict[str, Any] = {"undo": "m:f", "undo_within": 5.0}
    owed = effect(seq=held.seq + 1, kind="compensatable", state="confirmed", **undo)
    return held.append(of={"state": "confirmed"}, effects=(owed,))


def event(run_id: str, number: str = "m") -> Deliver:
    return Deliver(run_id=run_id, kind="event", name="e", body="1", message_id=number)


def slowly(held: Held) -> Batch:
    """An entry whose commit takes more than one statement."""
    log = Log(run_id=held.id, attempt=held.claimed.attempt, lines=((1.0, "info", "text"),))
    return [held.append(), log]


# ── the scenes ────────────────────────────────────────────────────────────────────────────────


def _two_claims(of: Stage) -> Both:
    of.start("r0", "r1", "r2")
    return [of.claims("w0", 2)], [of.claims("w1", 2)]


def _the_same_claim(of: Stage) -> Both:
    of.start("r0", "r1")
    claim = of.claims("w0")
    return [claim], [claim]


def _limited(of: Stage) -> Both:
    of.start("r0", "r1")
    of.do(SetLimit(scope="agent", name="agent", at_most=1))
    return [of.claims("w0")], [of.claims("w1")]


def _limit_and_claim(of: Stage) -> Both:
    of.start("r0", "r1")
    limit = SetLimit(scope="queue", name="default", at_most=1)
    return [limit], [of.claims("w0", 2)]


def _order_and_claim(kind: str, scope: str) -> Scene:
    def scene(of: Stage) -> Both:
        of.start("r0")
        name = {"run": "r0", "agent": "agent"}.get(scope, "")
        return [of.order(kind, scope, name)], [of.claims("w0")]

    return scene


def _order_and(kind: str, scope: str, what: What) -> Scene:
    def scene(of: Stage) -> Both:
        held = of.own("r0")
        of.do(owing(held))
        name = {"run": "r0", "agent": "agent"}.get(scope, "")
        return [of.order(kind, scope, name)], what(of, held)

    return scene


def _spawn(_: Stage, held: Held) -> Batch:
    child = new_run(f"{held.id}.0", parent_id=held.id, root_id=held.id)
    return [held.append(of={"kind": "child", "state": "waiting"}, spawn=child)]


def _bury_and(what: What, limit: int = 10) -> Scene:
    def scene(of: Stage) -> Both:
        held = of.own("r0")
        bury = WorkerGone(worker_id="w0", evidence="it ended", interruption_limit=limit)
        return [bury], what(of, held)

    return scene


def _sleep_and(what: What) -> Scene:
    """A run that goes to sleep meets a message that would wake it."""

    def scene(of: Stage) -> Both:
        held = of.own("r0")
        return [held.settle(State.SUSPENDED, waits="[]")], what(of, held)

    return scene


def _children(of: Stage) -> Both:
    _, (one, other) = of.family("p.0", "p.1")
    return [ends(one)], [ends(other)]


def _child_and_parent(of: Stage) -> Both:
    parent, [child] = of.family("p.0")
    return [ends(child)], [parent.settle(State.SUSPENDED, waits="[]")]


def _last_two(of: Stage) -> Both:
    """Of one order, by two workers."""
    one, other = of.own("r0"), of.own("r1", "w1")
    of.do(of.order("kill", "agent", "agent"))
    said = [
        Ended(worker_id=worker, run_id=held.id, fence=held.fence.counter)
        for worker, held in (("w0", one), ("w1", other))
    ]
    return [said[0]], [said[1]]


def _last_reported(of: Stage) -> Both:
    one, _ = of.own("r0"), of.own("r1", "w1")
    order = of.order("kill", "agent", "agent")
    of.do(order)
    report = TargetReport(
        stop_id=order.id, target="run:r1", stage="verified", evidence="it was ended"
    )
    return [Ended(worker_id="w0", run_id="r0", fence=one.fence.counter)], [report]


def _overdue_and(what: What) -> Scene:
    def scene(of: Stage) -> Both:
        held = of.own("r0")
        of.do(of.order("pause", "run", "r0"))
        of.pair.clock.now += 60.0
        return [Escalate()], what(of, held)

    return scene


def _late_beat(of: Stage) -> Both:
    """Another worker takes it for silent, and it is not."""
    of.own("r0")
    for _ in range(4):
        of.pair.clock.now += LEASE_SECONDS / 3
        of.do(Beat(worker_id="w1", lease_seconds=LEASE_SECONDS))
    return [of.claims("w1")], [Beat(worker_id="w0", lease_seconds=LEASE_SECONDS)]


def _stopped_and(what: What) -> Scene:
    """A hard stop, and a person who lifts it."""

    def scene(of: Stage) -> Both:
        of.start("r0", "r1")
        of.do(of.order("halt", "fleet"))
        lift = Reauthorize(epoch=1, scope="fleet", by="ann", why="looked")
        return [lift], what(of)

    return scene


def _resume_and(what: What) -> Scene:
    def scene(of: Stage) -> Both:
        of.start("r0", "r1")
        of.do(of.order("pause", "agent", "agent"))
        return [Resume(scope="agent", name="agent", by="ann", why="looked")], what(of)

    return scene


def _moved(of: Stage) -> Both:
    held = of.own("r0")
    of.do(held.settle(State.STRANDED))
    moves = [
        MoveRun(run_id="r0", seen="stranded", state="queued", fresh=fresh)
        for fresh in (False, True)
    ]
    return [moves[0]], [moves[1]]


def _asleep(of: Stage) -> None:
    """A sleeping run is due."""
    wake_at = of.pair.clock.store_now() + 5.0
    of.do(of.own("r0").settle(State.SUSPENDED, waits="[]", wake_at=wake_at))


def _unresumed(of: Stage) -> None:
    """The same: one that no person has resumed."""
    held = of.own("r0")
    of.do(owing(held))
    of.do(held.settle(State.STRANDED))


def _due_and(due: Callable[[Stage], None], what: What) -> Scene:
    def scene(of: Stage) -> Both:
        due(of)
        of.pair.clock.now += 10.0
        return [of.claims("w0")], what(of)

    return scene


def _grandchild(kind: str, scope: str) -> Scene:
    """A run that an order reaches begins a child that the order reaches, too."""

    def scene(of: Stage) -> Both:
        _, [child] = of.family("p.0")
        return _spawn(of, child), [of.order(kind, scope, {"run": "p", "agent": "agent"}[scope])]

    return scene


def _crosswise(of: Stage) -> Both:
    """Two batches about the same runs, in another order."""
    one, other = of.own("r0"), of.own("r1")
    logs = [slowly(held)[1] for held in (one, other)]
    batch = [logs[0], event("r0", "a"), event("r1", "a")]
    return batch, [logs[1], event("r1", "b"), event("r0", "b")]


def _supervised(of: Stage) -> Both:
    """A supervisor leaves while it is about to be notified."""
    row = SupervisorRow(
        id="s0", host="here", boot="b", namespace="n", pid=1, start_ticks=2, home="/h"
    )
    of.do(Enlist(supervisor=row, lease_seconds=LEASE_SECONDS))
    return [of.order("halt", "fleet")], [Dismiss(supervisor_id="s0")]


def _registered(of: Stage) -> Both:
    """Under one version, and not the same."""
    rows = [(worker_row(name), agent_row(f'["{name}"]', version="2")) for name in ("w2", "w3")]
    one, other = [
        [Register(worker=worker, agents=(agent,), lease_seconds=LEASE_SECONDS)]
        for worker, agent in rows
    ]
    return one, other


def _newcomer(of: Stage) -> Both:
    """It registers while everything is being halted, and claims."""
    of.start("r0")
    return [of.order("halt", "fleet")], [of.registers("w2")], [of.claims("w2")]


def _checkpoint(_: Stage, held: Held) -> Batch:
    kept = Checkpoint(run_id=held.id, fence=held.fence, op=":0", body="1")
    return [kept, kept]


def _twice(of: Stage) -> Both:
    of.start("r0")
    return [event("r0")], [event("r0")]


def _sender(run_id: str) -> What:
    return lambda *_: [event(run_id)]


SCENES: dict[str, Scene] = {
    "two claim": _two_claims,
    "one claims twice": _the_same_claim,
    "two claim under a limit": _limited,
    "a limit is set while a worker claims": _limit_and_claim,
    **{
        f"{kind} {scope} while a worker claims": _order_and_claim(kind, scope)
        for kind, scope in (
            ("kill", "run"),
            ("cancel", "run"),
            ("pause", "agent"),
            ("kill", "agent"),
            ("pause", "fleet"),
            ("halt", "fleet"),
        )
    },
    **{
        f"{kind} {scope} while its owner {word}": _order_and(kind, scope, what)
        for kind, scope in (("kill", "run"), ("pause", "run"), ("cancel", "run"), ("halt", "fleet"))
        for word, what in (
            ("writes", lambda _, held: slowly(held)),
            ("spawns", _spawn),
            ("ends", lambda _, held: [ends(held)]),
            ("is buried", lambda *_: [WorkerGone(worker_id="w0", evidence="it ended")]),
            ("is killed", lambda of, held: [of.order("kill", "run", held.id)]),
        )
    },
    **{
        f"a worker is buried while it {word}": _bury_and(what, limit)
        for limit in (1, 10)
        for word, what in (
            ("writes", lambda _, held: slowly(held)),
            ("keeps a part", _checkpoint),
            ("ends its run", lambda _, held: [ends(held)]),
            ("claims", lambda of, _: [of.claims("w0")]),
            ("beats", lambda *_: [Beat(worker_id="w0", lease_seconds=LEASE_SECONDS)]),
            ("leaves", lambda *_: [Depart(worker_id="w0")]),
        )
    },
    **{
        f"a run goes to sleep while {word}": _sleep_and(what)
        for word, what in (
            ("it has a message", _sender("r0")),
            ("a person wants it undone", lambda *_: [Recall(run_id="r0", undoing="{}")]),
            ("its worker leaves", lambda *_: [Depart(worker_id="w0")]),
        )
    },
    **{
        f"{kind} run while its owner gives it back": _order_and(
            kind, "run", lambda _, held: [held.settle(State.QUEUED, returned=True)]
        )
        for kind in ("kill", "pause", "cancel")
    },
    "two children end": _children,
    "a child ends while its parent goes to sleep": _child_and_parent,
    "two workers prove the last targets": _last_two,
    "a worker and a supervisor prove the last targets": _last_reported,
    **{
        f"an order becomes hard while its run {word}": _overdue_and(what)
        for word, what in (
            ("ends", lambda _, held: [ends(held)]),
            ("writes", lambda _, held: slowly(held)),
            ("is killed", lambda of, held: [of.order("kill", "run", held.id)]),
        )
    },
    "a worker is taken for silent and beats": _late_beat,
    **{
        f"a halt is lifted while another sender {word}": _stopped_and(what)
        for word, what in (
            ("claims", lambda of: [of.claims("w0")]),
            ("starts", lambda _: [Start(run=new_run("r2"))]),
            ("halts", lambda of: [of.order("kill", "fleet")]),
        )
    },
    **{
        f"an agent is resumed while another sender {word}": _resume_and(what)
        for word, what in (
            ("claims", lambda of: [of.claims("w0", 2)]),
            ("kills one", lambda of: [of.order("kill", "run", "r0")]),
            ("kills all", lambda of: [of.order("kill", "agent", "agent")]),
        )
    },
    "two people resume a run": _moved,
    **{
        f"{word} is due while another sender {other}": _due_and(due, what)
        for word, due in (("a sleeping run", _asleep), ("a run that was not resumed", _unresumed))
        for other, what in (
            ("kills it", lambda of: [of.order("kill", "run", "r0")]),
            ("claims", lambda of: [of.claims("w1")]),
            ("sends it a message", _sender("r0")),
            ("resumes it", lambda _: [MoveRun(run_id="r0", seen="stranded", state="queued")]),
        )
    },
    **{
        f"{kind} {scope} while a child spawns": _grandchild(kind, scope)
        for kind, scope in (("kill", "run"), ("cancel", "run"), ("pause", "run"), ("kill", "agent"))
    },
    "two batches in another order": _crosswise,
    "a supervisor leaves while everything is halted": _supervised,
    "two register what is not the same": _registered,
    "a worker registers and claims while everything is halted": _newcomer,
    "a worker drains while it claims": lambda of: (
        [Drain(worker_id="w0", drain="{}"), AskDrain(worker_id="w1")],
        [of.claims("w0")],
    ),
    "a message is sent twice": _twice,
}

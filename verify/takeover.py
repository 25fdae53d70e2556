"""Every interleaving of two workers and one effect: the moves, and an exhaustive search of them.

The workers do what core.effect.next_move says, and remember what core.journal.Replay folds. They
freeze at any moment and wake up at any later one, their calls raise with or without having had
their effect, leases end, deaths are confirmed or not, and a person is asked. The world outside
checks no fence, as most real services do not.
"""

from collections import deque
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import cache
from typing import NamedTuple

from andon.core.effect import (
    EffectKind,
    EffectMove,
    EffectState,
    Sight,
    Verdict,
    after_answer,
    is_certain,
    next_move,
)
from andon.core.journal import Entry, EntryKind, Record, Replay

MOST_CLAIMS = 3  # the longest accident needs so many
FREE = 0  # no claim has this number


class Doing(StrEnum):
    NOTHING = "nothing"
    DECIDING = "deciding"
    ACTING = "acting"  # its start is written, its call not made
    WAITING = "waiting"  # for the program that it has started
    RETURNED = "returned"  # its call returned
    RAISED = "raised"  # its call raised
    UNDOING = "undoing"
    UNDONE = "undone"


class Condition(StrEnum):
    AWAKE = "awake"
    FROZEN = "frozen"
    DEAD = "dead"


class Worker(NamedTuple):
    """A process, and its beliefs about the effect."""

    doing: Doing = Doing.NOTHING
    condition: Condition = Condition.AWAKE
    fence: int = FREE
    held: frozenset[int] = frozenset()
    state: EffectState | None = None
    quiet: bool = False
    verdict: Verdict = Verdict.NOT_ASKED

    def rest(self) -> "Worker":
        return Worker(condition=self.condition, held=self.held)


class Ledger(NamedTuple):
    """The record of the effect in the store."""

    state: EffectState | None = None
    fence: int = FREE  # which claim started it
    quiet: bool = False  # its owner wrote that itself


class World(NamedTuple):
    workers: tuple[Worker, Worker] = (Worker(), Worker())
    owner: int = FREE
    claims: int = 0
    asking: bool = False
    ledger: Ledger = Ledger()
    gone: frozenset[int] = frozenset()  # claims whose workers certainly execute nothing any more
    programs: frozenset[int] = frozenset()  # claims with a process that acts by itself
    noted: frozenset[int] = frozenset()  # claims of which the store knows that they started one
    calls: int = 0
    happened: int = 0

    def having(self, number: int, worker: Worker) -> "World":
        first, second = self.workers
        return self._replace(workers=(worker, second) if number == 0 else (first, worker))


Steps = Iterator[tuple[str, World]]
Rule = Callable[[EffectState | None, EffectKind, bool, Verdict], EffectMove]
Fold = Callable[[Ledger, EffectState, int], int]
Certain = Callable[[Sight, bool], bool]


def the_rule(
    state: EffectState | None, kind: EffectKind, quiet: bool, verdict: Verdict
) -> EffectMove:
    return next_move(state, kind, quiet=quiet, verdict=verdict)


def the_certainty(sight: Sight, has_started: bool) -> bool:
    return is_certain(sight, has_started=has_started)


@cache
def the_fold(ledger: Ledger, state: EffectState, fence: int) -> int:
    """Under which claim the journal says that the effect was started."""
    written = [] if ledger.state is None else [(ledger.state, ledger.fence)]
    entries = [
        Entry(seq=n, kind=EntryKind.EFFECT, state=mark, place=":0", name="pay", fence=by)
        for n, (mark, by) in enumerate([*written, (state, fence)])
    ]
    record: Record = Replay(entries, run_id="r").records()[0]
    return record.fence


class Model:
    """The rules of the game; each argument takes one of them away.

    `apart`: the effect acts through a program, which can only be ended on its own host.
    """

    def __init__(
        self,
        kind: EffectKind,
        *,
        rule: Rule = the_rule,
        fold: Fold = the_fold,
        provider_knows_keys: bool = True,
        undo_is_written_first: bool = True,
        person_makes_certain: bool = True,
        apart: bool = False,
        certain: Certain = the_certainty,
        programs_are_ended: bool = True,
        programs_are_noted_first: bool = True,
        doubt_ends_programs: bool = True,
        claims: int = MOST_CLAIMS,
    ) -> None:
        self.apart, self.certain = apart, certain
        self.programs_are_ended = programs_are_ended
        self.programs_are_noted_first = programs_are_noted_first
        self.doubt_ends_programs = doubt_ends_programs
        self.kind, self.rule, self.fold, self.claims = kind, rule, fold, claims
        self.deduplicates = provider_knows_keys and kind is EffectKind.IDEMPOTENT
        self.undo_is_written_first = undo_is_written_first
        self.person_makes_certain = person_makes_certain

    def steps(self, world: World) -> Steps:
        for number, name in enumerate("AB"):
            worker = world.workers[number]
            moved = self.worker_steps(world, number, worker)
            yield from ((f"{name} {what}", after) for what, after in moved)
            fate = self.fate_steps(world, number, worker)
            yield from ((f"{name} {what}", after) for what, after in fate)
        for fence in world.programs:
            after = world._replace(programs=world.programs - {fence})
            yield f"the program of claim {fence} acts", self.happens(after)
        if world.asking:
            yield from self.person_steps(world)

    def happens(self, world: World) -> World:
        happened = 1 if self.deduplicates else min(world.happened + 1, 2)
        calls = min(world.calls + 1, 2) if self.deduplicates else 0  # counted where it is of use
        return world._replace(happened=happened, calls=calls)

    # ── the moves of a worker ─────────────────────────────────────────────────────────────────

    def worker_steps(self, world: World, number: int, worker: Worker) -> Steps:
        if worker.condition is not Condition.AWAKE:
            return
        match worker.doing:
            case Doing.NOTHING:
                yield from self.claim(world, number, worker)
            case Doing.DECIDING:
                yield from self.decide(world, number, worker)
            case Doing.ACTING:
                acts = self.launch if self.apart else self.act
                yield from acts(world, number, worker)
            case Doing.WAITING:
                yield from self.wait(world, number, worker)
            case Doing.RETURNED:
                yield "confirms", self.write(world, number, EffectState.CONFIRMED, over=True)
            case Doing.RAISED:
                ended = {worker.fence} if self.doubt_ends_programs else set()
                alone = world._replace(programs=world.programs - ended)
                yield "doubts", self.write(alone, number, EffectState.IN_DOUBT, quiet=True)
            case Doing.UNDOING:
                after = world._replace(happened=0)
                yield "undoes", after.having(number, worker._replace(doing=Doing.UNDONE))
            case Doing.UNDONE:
                yield "notes the undoing", self.write(world, number, EffectState.COMPENSATED)

    def claim(self, world: World, number: int, worker: Worker) -> Steps:
        over = world.ledger.state is EffectState.CONFIRMED
        if world.owner != FREE or world.asking or over or world.claims == self.claims:
            return
        if world.claims == 0 and number > 0:
            return  # the same worlds with the names exchanged
        fence, ledger = world.claims + 1, world.ledger
        noted = ledger.state is EffectState.IN_DOUBT and ledger.quiet
        loaded = worker._replace(
            doing=Doing.DECIDING,
            fence=fence,
            held=worker.held | {fence},
            state=ledger.state,
            quiet=noted or ledger.fence in world.gone,
        )
        yield "claims", world._replace(owner=fence, claims=fence).having(number, loaded)

    def decide(self, world: World, number: int, worker: Worker) -> Steps:
        match self.rule(worker.state, self.kind, worker.quiet, worker.verdict):
            case EffectMove.EXECUTE:
                yield "starts", self.write(world, number, EffectState.STARTED, Doing.ACTING)
            case EffectMove.PROBE:
                found = Verdict.HAPPENED if world.happened else Verdict.DID_NOT_HAPPEN
                for verdict in (found, Verdict.UNKNOWN):
                    yield (
                        f"probes: {verdict}",
                        world.having(number, worker._replace(verdict=verdict)),
                    )
            case EffectMove.RECORD:
                yield "records", self.write(world, number, EffectState.CONFIRMED, over=True)
            case EffectMove.UNDO if self.undo_is_written_first:
                after = self.write(world, number, EffectState.STARTED, Doing.UNDOING)
                yield "writes that it will undo", after
            case EffectMove.UNDO:
                undoing = worker._replace(doing=Doing.UNDOING)
                yield "is about to undo", world.having(number, undoing)
            case EffectMove.ASK:
                doubt = EffectState.IN_DOUBT
                after = self.write(world, number, doubt, quiet=worker.quiet, over=True)
                asking = world.owner == worker.fence
                yield "asks", after._replace(asking=asking or world.asking)
            case EffectMove.ANSWER:
                raise AssertionError("a run that has its outcome was claimed")

    def act(self, world: World, number: int, worker: Worker) -> Steps:
        there = self.happens(world)
        yield "acts", there.having(number, worker._replace(doing=Doing.RETURNED))
        raised = worker._replace(doing=Doing.RAISED)
        yield "acts, and sees an error", there.having(number, raised)
        yield "fails to act, and sees an error", world.having(number, raised)

    def launch(self, world: World, number: int, worker: Worker) -> Steps:
        """The store knows of the program before it executes anything."""
        fences = {worker.fence}
        if self.programs_are_noted_first and worker.fence not in world.noted:
            yield "notes that it starts a program", world._replace(noted=world.noted | fences)
            return
        there = world._replace(programs=world.programs | fences)
        yield "starts a program", there.having(number, worker._replace(doing=Doing.WAITING))

    def wait(self, world: World, number: int, worker: Worker) -> Steps:
        late = world._replace(noted=world.noted | {worker.fence})
        if late != world:
            yield "notes that it has started a program", late
        if worker.fence not in world.programs:
            yield (
                "sees its program end",
                world.having(number, worker._replace(doing=Doing.RETURNED)),
            )
        yield "sees an error", world.having(number, worker._replace(doing=Doing.RAISED))

    def write(
        self,
        world: World,
        number: int,
        state: EffectState,
        then: Doing = Doing.DECIDING,
        *,
        quiet: bool = False,
        over: bool = False,
    ) -> World:
        """A write to the store, which refuses a worker that is no longer the owner."""
        worker = world.workers[number]
        if world.owner != worker.fence:
            return world.having(number, worker.rest())
        fence = self.fold(world.ledger, state, worker.fence)
        after = world._replace(ledger=Ledger(state, fence, quiet))
        if over:
            return after._replace(owner=FREE).having(number, worker.rest())
        believes = worker._replace(doing=then, state=state, quiet=quiet, verdict=Verdict.NOT_ASKED)
        return after.having(number, believes)

    # ── faults of a worker ────────────────────────────────────────────────────────────────────

    def fate_steps(self, world: World, number: int, worker: Worker) -> Steps:
        busy = worker.doing is not Doing.NOTHING
        silent = worker.condition is not Condition.AWAKE
        owns = busy and worker.fence == world.owner
        # A worker without its lease need not freeze to be slow: others simply go first.
        if worker.condition is Condition.AWAKE and owns:
            yield "freezes", world.having(number, worker._replace(condition=Condition.FROZEN))
        if worker.condition is Condition.FROZEN:
            yield "wakes up", world.having(number, worker._replace(condition=Condition.AWAKE))
        if worker.condition is Condition.AWAKE and busy:
            dead = worker.rest()._replace(condition=Condition.DEAD, fence=worker.fence)
            yield "dies", world.having(number, dead)
        if silent and world.owner == worker.fence:
            yield "has its lease end", world._replace(owner=FREE)
        if worker.held and (worker.condition is Condition.DEAD or not busy):
            yield from self.ends(world, number, worker)

    def ends(self, world: World, number: int, worker: Worker) -> Steps:
        """Its process is gone. A worker on its host looks for its programs; others cannot."""
        owner = FREE if world.owner in worker.held else world.owner
        free = world._replace(owner=owner).having(number, Worker())
        for sight, what in (
            (Sight.ALL, "is certainly gone, and replaced"),
            (Sight.PROCESS, "is gone as seen from another host, and replaced"),
        ):
            if not self.apart and sight is Sight.PROCESS:
                continue  # it is the same
            left = free
            if sight is Sight.ALL and self.programs_are_ended:
                left = free._replace(programs=free.programs - worker.held)
            known = bool(worker.held & world.noted)
            gone = worker.held if self.certain(sight, known) else frozenset()
            yield what, left._replace(gone=left.gone | gone)

    def person_steps(self, world: World) -> Steps:
        """A person looks, a careful one when nothing can act any more. Or the run wakes before."""
        yield "another wait of the run ends", world._replace(asking=False)
        at_it = any(worker.doing in (Doing.ACTING, Doing.UNDOING) for worker in world.workers)
        if self.person_makes_certain and (at_it or world.programs):
            return
        verdict = Verdict.HAPPENED if world.happened else Verdict.DID_NOT_HAPPEN
        happened = after_answer(verdict) is EffectMove.RECORD
        state = EffectState.CONFIRMED if happened else EffectState.PLANNED
        ledger = world.ledger._replace(state=state, quiet=False)
        yield f"a person says: {verdict}", world._replace(asking=False, ledger=ledger)


Accident = Callable[[World], bool]


class Search:
    """Every reachable world, the nearest first, until one is an accident."""

    def __init__(self, model: Model, accident: Accident = lambda world: False) -> None:
        start = World()
        self.came_from: dict[World, tuple[str, World] | None] = {start: None}
        self.leads_to: dict[World, list[World]] = {}
        self.accident: list[str] | None = None
        new = deque([start])
        while new and self.accident is None:
            world = new.popleft()
            steps = list(model.steps(world))
            self.leads_to[world] = [after for _, after in steps]
            for label, after in steps:
                if after not in self.came_from:
                    self.came_from[after] = (label, world)
                    new.append(after)
            if accident(world):
                self.accident = self.path(world)

    def path(self, world: World) -> list[str]:
        labels: list[str] = []
        while (step := self.came_from[world]) is not None:
            label, world = step
            labels.append(label)
        return labels[::-1]


def twice(world: World) -> bool:
    return world.happened > 1


def confirmed_in_vain(world: World) -> bool:
    return world.ledger.state is EffectState.CONFIRMED and world.happened == 0


def stuck(search: Search, claims: int) -> list[World]:
    """Worlds from which the effect can never end."""
    can_end = {w for w in search.came_from if w.ledger.state is EffectState.CONFIRMED}
    backwards: dict[World, list[World]] = {}
    for world, afters in search.leads_to.items():
        for after in afters:
            backwards.setdefault(after, []).append(world)
    new = deque(can_end)
    while new:
        for before in backwards.get(new.popleft(), []):
            if before not in can_end:
                can_end.add(before)
                new.append(before)
    # The last claims are left out: the model, unlike the store, runs out of them.
    return [w for w in search.came_from if w not in can_end and w.claims <= claims - 2]


# A pure effect changes nothing outside, so nothing about it can go wrong there.
CHANGING = sorted(set(EffectKind) - {EffectKind.PURE})


# ── searches without a rule ───────────────────────────────────────────────────────────────────────


def always_quiet(
    state: EffectState | None, kind: EffectKind, quiet: bool, verdict: Verdict
) -> EffectMove:
    return next_move(state, kind, quiet=True, verdict=verdict)


def process_is_enough(sight: Sight, has_started: bool) -> bool:
    return sight is not Sight.NOTHING


def repeats(
    state: EffectState | None, kind: EffectKind, quiet: bool, verdict: Verdict
) -> EffectMove:
    return EffectMove.EXECUTE


def last_writer(ledger: Ledger, state: EffectState, fence: int) -> int:
    return fence

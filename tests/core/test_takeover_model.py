"""Every interleaving of two workers and one effect, by exhaustive search.

The workers do what core.effect.next_move says, and remember what core.journal.Replay folds. They
freeze at any moment and wake up at any later one, their calls raise with or without having had
their effect, leases end, deaths are confirmed or not, and a person is asked. The outside checks no
fence, as most of the world does not.

A check that cannot fail proves nothing, so each rule is also taken away, and the search has to
find the accident that the rule prevents.
"""

from collections import deque
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import cache
from typing import NamedTuple

import pytest

from andon.core.effect import OPEN, EffectState, Kind, Move, Verdict, after_answer, next_move
from andon.core.journal import Entry, EntryKind, Record, Replay

MOST_CLAIMS = 3  # the longest accident needs three
FREE = 0  # no claim has this number


class Doing(StrEnum):
    NOTHING = "nothing"
    DECIDING = "deciding"
    ACTING = "acting"  # its start is written, its call not made
    RETURNED = "returned"  # its call returned
    RAISED = "raised"  # its call raised
    UNDOING = "undoing"
    UNDONE = "undone"


class Condition(StrEnum):
    AWAKE = "awake"
    FROZEN = "frozen"
    DEAD = "dead"


class Worker(NamedTuple):
    """A process, and what it believes about the effect."""

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
    """What the store remembers of the effect."""

    state: EffectState | None = None
    fence: int = FREE  # who started it
    quiet: bool = False  # its owner wrote that itself


class World(NamedTuple):
    workers: tuple[Worker, Worker] = (Worker(), Worker())
    owner: int = FREE
    claims: int = 0
    asking: bool = False
    ledger: Ledger = Ledger()
    gone: frozenset[int] = frozenset()  # claims whose workers certainly execute nothing any more
    calls: int = 0
    happened: int = 0

    def having(self, number: int, worker: Worker) -> "World":
        first, second = self.workers
        return self._replace(workers=(worker, second) if number == 0 else (first, worker))


Steps = Iterator[tuple[str, World]]
Rule = Callable[[EffectState | None, Kind, bool, Verdict], Move]
Fold = Callable[[Ledger, EffectState, int], int]


def the_rule(state: EffectState | None, kind: Kind, quiet: bool, verdict: Verdict) -> Move:
    return next_move(state, kind, quiet=quiet, verdict=verdict)


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
    """The rules of the game; each argument takes one of them away."""

    def __init__(
        self,
        kind: Kind,
        *,
        rule: Rule = the_rule,
        fold: Fold = the_fold,
        provider_knows_keys: bool = True,
        undo_is_written_first: bool = True,
        person_makes_certain: bool = True,
    ) -> None:
        self.kind, self.rule, self.fold = kind, rule, fold
        self.deduplicates = provider_knows_keys and kind is Kind.IDEMPOTENT
        self.undo_is_written_first = undo_is_written_first
        self.person_makes_certain = person_makes_certain

    def steps(self, world: World) -> Steps:
        for number, name in enumerate("AB"):
            worker = world.workers[number]
            moved = self.worker_steps(world, number, worker)
            yield from ((f"{name} {what}", after) for what, after in moved)
            fate = self.fate_steps(world, number, worker)
            yield from ((f"{name} {what}", after) for what, after in fate)
        if world.asking:
            yield from self.person_steps(world)

    # ── what a worker does ────────────────────────────────────────────────────────────────────

    def worker_steps(self, world: World, number: int, worker: Worker) -> Steps:
        if worker.condition is not Condition.AWAKE:
            return
        match worker.doing:
            case Doing.NOTHING:
                yield from self.claim(world, number, worker)
            case Doing.DECIDING:
                yield from self.decide(world, number, worker)
            case Doing.ACTING:
                yield from self.act(world, number, worker)
            case Doing.RETURNED:
                yield "confirms", self.write(world, number, EffectState.CONFIRMED, over=True)
            case Doing.RAISED:
                yield "doubts", self.write(world, number, EffectState.IN_DOUBT, quiet=True)
            case Doing.UNDOING:
                after = world._replace(happened=0)
                yield "undoes", after.having(number, worker._replace(doing=Doing.UNDONE))
            case Doing.UNDONE:
                yield "notes the undoing", self.write(world, number, EffectState.COMPENSATED)

    def claim(self, world: World, number: int, worker: Worker) -> Steps:
        over = world.ledger.state is EffectState.CONFIRMED
        if world.owner != FREE or world.asking or over or world.claims == MOST_CLAIMS:
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
            case Move.EXECUTE:
                yield "starts", self.write(world, number, EffectState.STARTED, Doing.ACTING)
            case Move.PROBE:
                found = Verdict.HAPPENED if world.happened else Verdict.DID_NOT_HAPPEN
                for verdict in (found, Verdict.UNKNOWN):
                    yield (
                        f"probes: {verdict}",
                        world.having(number, worker._replace(verdict=verdict)),
                    )
            case Move.RECORD:
                yield "records", self.write(world, number, EffectState.CONFIRMED, over=True)
            case Move.UNDO if self.undo_is_written_first:
                after = self.write(world, number, EffectState.STARTED, Doing.UNDOING)
                yield "writes that it will undo", after
            case Move.UNDO:
                undoing = worker._replace(doing=Doing.UNDOING)
                yield "is about to undo", world.having(number, undoing)
            case Move.ASK:
                doubt = EffectState.IN_DOUBT
                after = self.write(world, number, doubt, quiet=worker.quiet, over=True)
                asking = world.owner == worker.fence
                yield "asks", after._replace(asking=asking or world.asking)
            case Move.ANSWER:
                raise AssertionError("a run that has its outcome was claimed")

    def act(self, world: World, number: int, worker: Worker) -> Steps:
        happened = 1 if self.deduplicates else min(world.happened + 1, 2)
        calls = min(world.calls + 1, 2) if self.deduplicates else 0  # counted where it is of use
        there = world._replace(happened=happened, calls=calls)
        yield "acts", there.having(number, worker._replace(doing=Doing.RETURNED))
        raised = worker._replace(doing=Doing.RAISED)
        yield "acts, and sees an error", there.having(number, raised)
        yield "fails to act, and sees an error", world.having(number, raised)

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
        """A write to the store, which refuses whoever is no longer the owner."""
        worker = world.workers[number]
        if world.owner != worker.fence:
            return world.having(number, worker.rest())
        fence = self.fold(world.ledger, state, worker.fence)
        after = world._replace(ledger=Ledger(state, fence, quiet))
        if over:
            return after._replace(owner=FREE).having(number, worker.rest())
        believes = worker._replace(doing=then, state=state, quiet=quiet, verdict=Verdict.NOT_ASKED)
        return after.having(number, believes)

    # ── what befalls it ───────────────────────────────────────────────────────────────────────

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
            owner = FREE if world.owner in worker.held else world.owner
            after = world._replace(gone=world.gone | worker.held, owner=owner)
            yield "is certainly gone, and replaced", after.having(number, Worker())

    def person_steps(self, world: World) -> Steps:
        """A person looks, a careful one when nobody can act any more. Or the run wakes before."""
        yield "another wait of the run ends", world._replace(asking=False)
        at_it = any(worker.doing in (Doing.ACTING, Doing.UNDOING) for worker in world.workers)
        if self.person_makes_certain and at_it:
            return
        verdict = Verdict.HAPPENED if world.happened else Verdict.DID_NOT_HAPPEN
        happened = after_answer(verdict) is Move.RECORD
        state = EffectState.CONFIRMED if happened else EffectState.PLANNED
        ledger = world.ledger._replace(state=state, quiet=False)
        yield f"a person says: {verdict}", world._replace(asking=False, ledger=ledger)


Accident = Callable[[World], bool]


class Search:
    """Every world that can come about, the nearest first, until one is an accident."""

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


@cache
def searched(kind: Kind) -> Search:
    return Search(Model(kind))


def accident(model: Model, what: Accident) -> list[str]:
    """The shortest way to an accident."""
    found = Search(model, what).accident
    assert found is not None, "the search found no accident"
    return found


def twice(world: World) -> bool:
    return world.happened > 1


def confirmed_in_vain(world: World) -> bool:
    return world.ledger.state is EffectState.CONFIRMED and world.happened == 0


def in_order(path: list[str], *labels: str) -> bool:
    """Whether these happen in the path, in this order."""
    left = iter(path)
    return all(label in left for label in labels)


# A pure effect changes nothing outside, so nothing about it can go wrong there.
CHANGING = sorted(set(Kind) - {Kind.PURE})
every_kind = pytest.mark.parametrize("kind", CHANGING)


# ── the promises ──────────────────────────────────────────────────────────────────────────────────


@every_kind
def test_no_effect_happens_twice(kind: Kind) -> None:
    assert not [w for w in searched(kind).came_from if twice(w)]


@every_kind
def test_what_is_confirmed_did_happen(kind: Kind) -> None:
    assert not [w for w in searched(kind).came_from if confirmed_in_vain(w)]


def test_an_idempotent_effect_is_called_again_and_still_happens_once() -> None:
    worlds = searched(Kind.IDEMPOTENT).came_from
    ended = [world for world in worlds if world.ledger.state is EffectState.CONFIRMED]
    assert {world.happened for world in ended} == {1}
    assert {world.calls for world in ended} == {1, 2}


@every_kind
def test_every_run_can_still_end(kind: Kind) -> None:
    search = searched(kind)
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
    stuck = [w for w in search.came_from if w not in can_end and w.claims <= MOST_CLAIMS - 2]
    assert not stuck, search.path(stuck[0])


@every_kind
def test_only_what_needs_a_person_asks_one(kind: Kind) -> None:
    asked = any(world.asking for world in searched(kind).came_from)
    assert asked == (kind is not Kind.IDEMPOTENT)


def test_the_search_meets_every_state_of_an_open_effect() -> None:
    for kind in CHANGING:
        assert {world.ledger.state for world in searched(kind).came_from} >= OPEN


# ── and what happens without each rule ────────────────────────────────────────────────────────────


def always_quiet(state: EffectState | None, kind: Kind, quiet: bool, verdict: Verdict) -> Move:
    return next_move(state, kind, quiet=True, verdict=verdict)


def test_a_rule_that_ignores_quiet_lets_a_frozen_worker_act_after_the_probe() -> None:
    path = accident(Model(Kind.PROBEABLE, rule=always_quiet), twice)
    assert in_order(
        path,
        "A claims",
        "A starts",
        "A freezes",
        "A has its lease end",
        "B claims",
        "B probes: did_not_happen",
        "B starts",
        "B acts",
    )
    assert in_order(path, "B probes: did_not_happen", "A acts")


def test_a_rule_that_ignores_quiet_lets_a_late_one_follow_an_undoing() -> None:
    path = accident(Model(Kind.COMPENSATABLE, rule=always_quiet), twice)
    assert in_order(path, "A starts", "A freezes", "B claims", "B undoes", "B acts")
    assert in_order(path, "B undoes", "A acts")


def repeats(state: EffectState | None, kind: Kind, quiet: bool, verdict: Verdict) -> Move:
    return Move.EXECUTE


def test_a_rule_that_repeats_an_irreversible_effect_does_it_twice() -> None:
    path = accident(Model(Kind.IRREVERSIBLE, rule=repeats), twice)
    assert in_order(path, "A acts, and sees an error", "A doubts", "A starts", "A acts")


def test_a_provider_that_ignores_keys_makes_an_idempotent_effect_happen_twice() -> None:
    model = Model(Kind.IDEMPOTENT, provider_knows_keys=False)
    assert in_order(accident(model, twice), "A acts, and sees an error", "A acts")


def last_writer(ledger: Ledger, state: EffectState, fence: int) -> int:
    return fence


def test_the_end_of_a_worker_that_only_asked_says_nothing_about_the_one_that_started() -> None:
    path = accident(Model(Kind.PROBEABLE, fold=last_writer), twice)
    assert in_order(
        path,
        "A starts",
        "A freezes",
        "A has its lease end",
        "B claims",
        "B asks",
        "B is certainly gone, and replaced",
        "B claims",
        "B probes: did_not_happen",
        "B acts",
    )
    assert in_order(path, "B probes: did_not_happen", "A acts")


def test_an_undoing_that_is_not_written_first_takes_back_what_another_worker_did() -> None:
    model = Model(Kind.COMPENSATABLE, undo_is_written_first=False)
    path = accident(model, confirmed_in_vain)
    assert in_order(path, "A freezes", "A has its lease end", "B undoes", "B acts", "A undoes")


@pytest.mark.parametrize("kind", [Kind.IRREVERSIBLE, Kind.PROBEABLE, Kind.COMPENSATABLE])
def test_a_person_who_says_no_while_the_first_worker_may_still_act_causes_a_second_one(
    kind: Kind,
) -> None:
    path = accident(Model(kind, person_makes_certain=False), twice)
    assert in_order(
        path, "A starts", "A freezes", "B asks", "a person says: did_not_happen", "A acts"
    )

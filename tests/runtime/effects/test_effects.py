"""Effects are written down before they are executed, and never repeated on a guess."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.runtime.harness import Held, Lab, agent, declare_lost, until

import andon
from andon.core.lease import Fence
from andon.errors import BadInput, NotFound
from andon.runtime.requests import requests
from andon.runtime.worker.worker import Worker
from andon.store.store import Claim

SOON = andon.Retry(2, first_seconds=0.01)


class World:
    """The outside: records the calls and the questions it got."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.probes: list[Any] = []
        self.undone: list[Any] = []
        self.held = Held()
        self.verdict: Callable[[], Any] = andon.unknown

    async def pay(self, amount: int) -> str:
        self.done.append(amount)
        await self.held.here()
        return f"paid {amount}"

    async def probe(self, amount: int) -> Any:
        self.probes.append(amount)
        return self.verdict()

    async def undo(self, result: Any, amount: int) -> None:
        self.undone.append((result, amount))


def options(world: World, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": kind}
    if kind == "probeable":
        found["probe"] = world.probe
    if kind == "compensatable":
        found["undo"] = world.undo
    return found


KINDS = ["pure", "idempotent", "probeable", "compensatable", "irreversible"]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_effect_happens_once_and_is_confirmed(lab: Lab, kind: str) -> None:
    world = World()
    world.held.reached.set()

    async def body(ctx: andon.Context) -> str:
        found: str = await ctx.effect(world.pay, 7, **options(world, kind))
        await ctx.event("go")
        return found

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        assert await lab.replayed(run) == "paid 7"
    assert world.done == [7]
    assert [entry.state for entry in await lab.journal(run, "effect")] == ["started", "confirmed"]
    [row] = lab.store.ledger(run)
    assert (row.name, row.kind, row.state) == ("pay", kind, "confirmed")


async def test_the_default_kind_is_the_safe_one(local: Lab) -> None:
    world = World()
    world.held.reached.set()

    async def body(ctx: andon.Context) -> None:
        await ctx.effect(world.pay, 1, name="bare")
        await ctx.effect(world.pay, 1, name="probed", probe=world.probe)
        await ctx.effect(world.pay, 1, name="undone", undo=world.undo)

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        await local.end(run)
    kinds = {row.name: row.kind for row in local.store.ledger(run)}
    assert kinds == {"bare": "irreversible", "probed": "probeable", "undone": "compensatable"}


# ── its owner is lost while it is executing ───────────────────────────────────────────────────────


async def lose_owner(lab: Lab, world: World, kind: str, evidence: str) -> tuple[str, Any]:
    """Start an effect, lose its worker, and let another one continue; the run, once it rests."""

    async def body(ctx: andon.Context) -> str:
        return str(await ctx.effect(world.pay, 7, key="k", **options(world, kind)))

    one = agent(body)
    async with lab.working(one) as lost:
        run = await lab.client.start(one)
        await world.held.reached.wait()
        async with lab.working(one) as survivor:
            declare_lost(survivor, lost, evidence)
            found = await lab.reach(run, "succeeded", "suspended")
        world.held.release.set()
    return run, found


@pytest.mark.parametrize(
    ("kind", "verdict", "done", "state"),
    [
        ("pure", None, 2, "succeeded"),
        ("idempotent", None, 2, "succeeded"),  # the same key again
        ("probeable", lambda: andon.happened("paid 7"), 1, "succeeded"),
        ("probeable", andon.did_not_happen, 2, "succeeded"),
        ("probeable", andon.unknown, 1, "suspended"),
        ("probeable", lambda: "yes", 1, "suspended"),  # no answer at all
        ("probeable", lambda: andon.happened, 1, "suspended"),  # forgot to call it
        ("compensatable", None, 2, "succeeded"),  # undone, then done again
        ("irreversible", None, 1, "suspended"),
    ],
)
async def test_an_effect_whose_owner_is_certainly_dead_is_settled_by_its_kind(
    lab: Lab, kind: str, verdict: Callable[[], Any] | None, done: int, state: str
) -> None:
    world = World()
    world.verdict = verdict or andon.unknown
    run, found = await lose_owner(lab, world, kind, "dead:its process ended")
    assert found.state == state
    assert len(world.done) == done
    assert len(world.probes) == (kind == "probeable")
    assert world.undone == ([(None, 7)] if kind == "compensatable" else [])
    assert lab.effects(run) == {"pay": "confirmed" if state == "succeeded" else "in_doubt"}
    assert len(lab.store.asks(run)) == (state == "suspended")


@pytest.mark.parametrize("kind", ["probeable", "compensatable", "irreversible"])
async def test_an_effect_whose_owner_is_only_silent_is_not_repeated_after_a_probe(
    lab: Lab, kind: str
) -> None:
    """The owner may wake up after a probe and act: its effect is neither probed nor repeated."""
    world = World()
    world.verdict = andon.did_not_happen
    run, found = await lose_owner(lab, world, kind, "silent:its lease ended")
    assert found.state == "suspended"
    assert world.done == [7]
    assert not world.probes
    assert not world.undone
    assert lab.effects(run) == {"pay": "in_doubt"}


async def test_a_lost_owner_that_wakes_up_confirms_nothing(lab: Lab) -> None:
    world = World()
    run, _ = await lose_owner(lab, world, "irreversible", "silent:its lease ended")
    assert [entry.state for entry in await lab.journal(run, "effect")] == ["started", "in_doubt"]


def at_point(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    action: Callable[[], None],
    where: str = "andon.runtime.effects.effect.point",
) -> None:
    """Run `action` at a named point, the first time that it is reached."""
    reached: list[str] = []

    def point(here: str, about: object = None) -> None:
        if here == name and not reached:
            reached.append(here)
            action()

    monkeypatch.setattr(where, point)


def take_from(lab: Lab, worker: Worker, evidence: str) -> None:
    """Take a worker's runs away while it is frozen, so that it is not notified."""
    worker.lease.trusted_until = 0.0  # it was frozen for long
    claim = Claim(worker_id="-", agents=(), limit=0, dead=((worker.worker_id, evidence),))
    [outcome] = lab.store.write([claim])
    assert outcome.returned == 1


async def test_an_owner_that_was_frozen_before_it_executed_does_not_begin(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The intent is durable; when the worker wakes up it is no longer the owner."""
    world = World()
    world.held.reached.set()

    async def body(ctx: andon.Context) -> str:
        return str(await ctx.effect(world.pay, 7))

    one = agent(body)
    async with lab.working(one) as frozen:
        silent = "silent:its lease ended"
        at_point(monkeypatch, "effect:started", lambda: take_from(lab, frozen, silent))
        run = await lab.client.start(one)
        await lab.asked(run)
    assert world.done == []
    assert [entry.state for entry in await lab.journal(run, "effect")] == ["started", "in_doubt"]
    assert "fenced" in caplog.text


async def test_an_effect_that_was_executed_and_not_confirmed_is_found_by_its_probe(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    world.held.reached.set()
    world.verdict = lambda: andon.happened("found")

    async def body(ctx: andon.Context) -> str:
        return str(await ctx.effect(world.pay, 7, probe=world.probe))

    one = agent(body)
    async with lab.working(one) as lost:
        dead = "dead:its process ended"
        at_point(monkeypatch, "effect:executed", lambda: take_from(lab, lost, dead))
        run = await lab.client.start(one)
        assert await lab.result(run) == "found"
    assert world.done == [7]
    states = [entry.state for entry in await lab.journal(run, "effect")]
    assert states == ["started", "confirmed"]


async def test_a_drain_between_the_intent_and_the_effect_leaves_no_doubt(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    world.held.reached.set()

    async def body(ctx: andon.Context) -> str:
        return str(await ctx.effect(world.pay, 7))

    one = agent(body)
    async with lab.working(one) as worker:

        def drain() -> None:
            worker.draining = True

        at_point(monkeypatch, "effect:started", drain)
        run = await lab.client.start(one)
        await until(lambda: lab.effects(run) == {"pay": "planned"})
    assert world.done == []
    async with lab.working(one):
        assert await lab.result(run) == "paid 7"


async def test_a_second_branch_does_not_ask_about_an_effect_that_the_first_leaves_in_a_drain(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    world.held.reached.set()

    async def body(ctx: andon.Context) -> list[str]:
        both = (ctx.effect(world.pay, 7, key="k") for _ in range(2))
        return list(await asyncio.gather(*both))

    one = agent(body)
    async with lab.working(one) as worker:

        def drain() -> None:
            worker.draining = True

        at_point(monkeypatch, "effect:started", drain)
        run = await lab.client.start(one)
        await until(lambda: lab.effects(run) == {"pay": "planned"})
    assert lab.store.asks(run) == []
    async with lab.working(one):
        assert await lab.result(run) == ["paid 7", "paid 7"]
    assert world.done == [7]


async def test_an_effect_that_is_cancelled_before_it_begins_leaves_no_doubt(lab: Lab) -> None:
    """Its intent is still being written: it certainly did not happen, and no person is asked."""
    world, over = World(), asyncio.Event()

    async def body(ctx: andon.Context) -> str:
        task = asyncio.create_task(ctx.effect(world.pay, 7))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        found: str = await ctx.step(str, task.cancelled())
        await ctx.event("go")
        return found

    @andon.agent
    async def neighbour(ctx: andon.Context) -> None:
        await over.wait()  # with two runs, commits are made by the writer's thread

    one = agent(body)
    async with lab.working(one, neighbour) as worker:
        await lab.client.start(neighbour)
        await until(lambda: len(worker.active) == 1)
        run = await lab.client.start(one)
        await lab.reach(run, "suspended")
        assert lab.effects(run) == {"pay": "planned"}
        assert await lab.replayed(run) == "True"
        over.set()
    assert world.done == []
    states = [entry.state for entry in await lab.journal(run, "effect")]
    assert states == ["started", "cancelled", "planned"]


@pytest.mark.parametrize("fails", [1, 2, 3])
async def test_a_probe_that_raises_is_retried_and_then_a_person_is_asked(
    local: Lab, fails: int
) -> None:
    world = World()

    def verdict() -> Any:
        if len(world.probes) <= fails:
            raise ConnectionError("away")
        return andon.happened("found")

    world.verdict = verdict
    _, found = await lose_owner(local, world, "probeable", "dead:its process ended")
    assert found.state == ("succeeded" if fails < 3 else "suspended")
    assert world.done == [7]


async def test_an_undo_that_raises_leaves_the_effect_open(lab: Lab) -> None:
    """The agent may catch it; but the run does not end before a person has answered."""
    world = World()

    async def undo(result: Any, amount: int) -> None:
        raise ConnectionError("away")

    async def body(ctx: andon.Context) -> str:
        try:
            return str(await ctx.effect(world.pay, 7, undo=undo))
        except ConnectionError:
            return "caught"

    one = agent(body)
    async with lab.working(one) as lost:
        run = await lab.client.start(one)
        await world.held.reached.wait()
        async with lab.working(one) as survivor:
            declare_lost(survivor, lost)
            await lab.asked(run)
            assert lab.effects(run) == {"pay": "in_doubt"}
            await lab.client.answer(run, "happened", "seen")
            assert await lab.result(run) in ("caught", "seen")
        world.held.release.set()
    assert lab.effects(run) == {"pay": "confirmed"}
    assert world.done == [7]


async def test_a_question_that_andon_can_answer_itself_by_now_is_closed(lab: Lab) -> None:
    """The owner was silent and is dead now. The undo that follows is lost with its worker too."""
    world, undoing = World(), Held()

    async def undo(result: Any, amount: int) -> None:
        await undoing.here()

    async def body(ctx: andon.Context) -> Any:
        return await asyncio.gather(ctx.effect(world.pay, 7, undo=undo), ctx.event("go"))

    one = agent(body)
    async with lab.working(one) as owner:
        run = await lab.client.start(one)
        await world.held.reached.wait()
        async with lab.working(one) as second:
            declare_lost(second, owner, "silent:its lease ended")
            await lab.asked(run)
            declare_lost(second, owner)
            await until(lambda: owner.worker_id not in {row.id for row in lab.store.workers()})
            await lab.client.send(run, "go")
            await undoing.reached.wait()
            async with lab.working(one) as third:
                declare_lost(third, second)
                assert await lab.result(run) == ["paid 7", None]
            undoing.release.set()
        world.held.release.set()
    assert lab.effects(run) == {"pay": "confirmed"}
    assert lab.store.asks(run) == []


async def test_a_persons_answer_holds_even_if_the_effect_could_be_undone_by_now(lab: Lab) -> None:
    world = World()

    async def body(ctx: andon.Context) -> str:
        return str(await ctx.effect(world.pay, 7, undo=world.undo))

    one = agent(body)
    async with lab.working(one) as owner:
        run = await lab.client.start(one)
        await world.held.reached.wait()
        async with lab.working(one) as second:
            declare_lost(second, owner, "silent:its lease ended")
            await lab.asked(run)
            declare_lost(second, owner)
            await until(lambda: owner.worker_id not in {row.id for row in lab.store.workers()})
            await lab.client.answer(run, "happened", "seen")
            assert await lab.result(run) == "seen"
        world.held.release.set()
    assert world.undone == []


async def test_an_answer_to_an_earlier_doubt_does_not_answer_a_later_one(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person answers while the effect is about to be undone, so the effect they saw is undone."""
    world, workers = World(), list[Worker]()

    async def undo(result: Any, amount: int) -> None:
        [attempt] = workers[0].attempts.values()
        await until(lambda: "answer" in {message.kind for message in attempt.waits.inbox})
        raise ConnectionError("it may be undone")

    async def pay(ctx: andon.Context) -> str:
        try:
            return str(await ctx.effect(world.pay, 7, undo=undo))
        except ConnectionError:
            return "caught"

    async def body(ctx: andon.Context) -> list[Any]:
        return list(await asyncio.gather(pay(ctx), ctx.event("go")))

    def answer() -> None:
        requests.answer(lab.store, run, "happened", "seen")

    one = agent(body)
    async with lab.working(one) as owner:
        run = await lab.client.start(one)
        await world.held.reached.wait()
        async with lab.working(one) as second:
            workers.append(second)
            declare_lost(second, owner, "silent:its lease ended")
            await lab.asked(run)
            declare_lost(second, owner)
            await until(lambda: owner.worker_id not in {row.id for row in lab.store.workers()})
            at_point(monkeypatch, "attempt:loaded", answer, "andon.runtime.attempt.attempt.point")
            await lab.client.send(run, "look")
            await until(lambda: lab.store.asks(run) == [])
            await lab.client.send(run, "go")
            ask = await lab.asked(run)
            assert lab.effects(run) == {"pay": "in_doubt"}
            await lab.client.answer(run, "happened", "seen again", ask=ask.id)
            assert await lab.result(run) in (["caught", None], ["seen again", None])
        world.held.release.set()


# ── a person is asked ─────────────────────────────────────────────────────────────────────────────


async def test_a_person_says_that_an_effect_happened(lab: Lab) -> None:
    world = World()
    run, _ = await lose_owner(lab, world, "irreversible", "dead:its process ended")
    ask = await lab.asked(run)
    assert ask.about == "effect"
    assert "'pay'" in ask.question
    assert "'k'" in ask.question
    assert ask.value == "[7]"

    async def body(ctx: andon.Context) -> str:
        return str(await ctx.effect(world.pay, 7, key="k"))

    async with lab.working(agent(body)):
        await lab.client.answer(run, "happened", "seen on the bank's page")
        assert await lab.result(run) == "seen on the bank's page"
    assert world.done == [7]
    assert lab.effects(run) == {"pay": "confirmed"}
    assert lab.store.asks(run) == []


async def test_a_person_says_that_an_effect_did_not_happen(lab: Lab) -> None:
    world = World()
    run, _ = await lose_owner(lab, world, "irreversible", "dead:its process ended")

    async def body(ctx: andon.Context) -> str:
        return str(await ctx.effect(world.pay, 7, key="k"))

    async with lab.working(agent(body)):
        await lab.client.answer(run, "did-not-happen")
        assert await lab.result(run) == "paid 7"
    assert world.done == [7, 7]
    assert [entry.state for entry in await lab.journal(run, "effect")] == [
        "started",
        "in_doubt",
        "planned",
        "started",
        "confirmed",
    ]


async def test_a_second_doubt_about_the_same_effect_is_asked_again(lab: Lab) -> None:
    calls: list[int] = []

    async def shaky(ctx_key: str) -> str:
        calls.append(1)
        raise ConnectionError("away")

    async def body(ctx: andon.Context) -> str:
        return str(await ctx.effect(shaky, "x", retries=SOON))

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        for n in (1, 2):
            await until(lambda n=n: len(calls) == n)  # type: ignore[misc]
            await lab.asked(run)
            await lab.client.answer(run, "did_not_happen")
        await until(lambda: len(calls) == 3)
        await lab.asked(run)
        await lab.client.answer(run, "happened", "at last")
        assert await lab.result(run) == "at last"


@dataclass
class Receipt:
    number: int


async def test_an_answer_that_the_code_could_not_read_is_asked_for_again(lab: Lab) -> None:
    """The code expects a Receipt; an answer "happened" without a value gives none."""

    async def order() -> Receipt:
        raise ConnectionError("away")

    async def body(ctx: andon.Context) -> int:
        found: Receipt = await ctx.effect(order)
        return found.number

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        first = await lab.asked(run)
        await lab.client.answer(run, "happened")
        await until(lambda: [ask.id for ask in lab.store.asks(run)] not in ([], [first.id]))
        await lab.asked(run)
        await lab.client.answer(run, "happened", {"number": 5})
        assert await lab.result(run) == 5


@pytest.mark.parametrize(("decision", "value"), [("approve", None), ("edit", 1), ("maybe", None)])
async def test_an_ask_about_an_effect_accepts_only_its_own_decisions(
    local: Lab, decision: str, value: Any
) -> None:
    async def order() -> None:
        raise ConnectionError("away")

    async def body(ctx: andon.Context) -> None:
        await ctx.effect(order)

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        await local.asked(run)
        with pytest.raises(BadInput, match="happened, did_not_happen"):
            await local.client.answer(run, decision, value)
        await local.client.answer(run, "happened")
        with pytest.raises(NotFound, match="no open ask"):
            await local.client.answer(run, "happened")
        await local.end(run)


# ── it raises ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", KINDS)
async def test_an_effect_that_raises_is_in_doubt_by_its_kind(local: Lab, kind: str) -> None:
    world = World()
    world.verdict = andon.did_not_happen

    async def shaky(amount: int) -> str:
        world.done.append(amount)
        raise ConnectionError("reset by peer")

    async def body(ctx: andon.Context) -> str:
        try:
            return str(await ctx.effect(shaky, 7, **options(world, kind)))
        except ConnectionError as error:
            return str(error)

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        found = await local.reach(run, "succeeded", "suspended")
        if kind == "irreversible":
            assert found.state == "suspended"
            assert local.effects(run) == {"shaky": "in_doubt"}
        else:
            assert found.result == "shaky: ConnectionError: reset by peer"
            assert local.effects(run) == {"shaky": "failed"}
    assert world.done == [7]
    assert len(world.probes) == (kind == "probeable")
    assert len(world.undone) == (kind == "compensatable")


@pytest.mark.parametrize("kind", KINDS)
async def test_only_the_effect_itself_can_declare_that_it_did_not_happen(
    local: Lab, kind: str
) -> None:
    world = World()

    async def refused(amount: int) -> str:
        world.done.append(amount)
        raise andon.did_not_happen("card declined")

    async def body(ctx: andon.Context) -> str:
        try:
            await ctx.effect(refused, 7, **options(world, kind))
        except andon.StepFailed as error:
            found = error.message
        await ctx.event("go")
        return found

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        assert await local.replayed(run) == "card declined"
    assert world.done == [7]
    assert not world.probes
    assert not world.undone
    assert local.effects(run) == {"refused": "failed"}


async def test_an_effect_that_did_not_happen_is_retried(local: Lab) -> None:
    calls: list[int] = []

    async def third_time() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise andon.did_not_happen("busy")
        return "done"

    async def body(ctx: andon.Context) -> str:
        return str(await ctx.effect(third_time, retries=SOON))

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        assert await local.result(run) == "done"
    assert len(calls) == 3


async def test_a_sync_effect_that_exceeded_its_timeout_is_still_executing(lab: Lab) -> None:
    """Its thread cannot be ended, so it must not be probed: it may yet happen."""
    go, world = threading.Event(), World()
    world.verdict = andon.did_not_happen

    def slow() -> None:
        world.done.append(1)
        go.wait(20)

    def probe() -> Any:
        world.probes.append(1)
        return andon.did_not_happen()

    async def body(ctx: andon.Context) -> None:
        await ctx.effect(slow, timeout=0.05, probe=probe)

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        await until(lambda: lab.store.asks(run))
        assert world.done == [1]
        assert not world.probes
        assert (await lab.client.get(run)).state == "running"  # as long as its thread acts
        go.set()
        await lab.asked(run)
        assert not world.probes


# ── keys, fences and arguments ────────────────────────────────────────────────────────────────────


async def test_key_and_fence_are_passed_to_functions_that_take_them(lab: Lab) -> None:
    seen: list[Any] = []

    async def takes_both(n: int, *, key: str, fence: Fence) -> None:
        seen.append((n, key, tuple(fence)))

    async def takes_key(n: int, key: str) -> None:
        seen.append((n, key))

    async def takes_none(n: int) -> None:
        seen.append((n,))

    async def body(ctx: andon.Context) -> None:
        await ctx.effect(takes_both, 1, key="a")
        await ctx.effect(takes_key, 2)
        await ctx.effect(takes_none, 3, key="c")

    async with lab.working(agent(body)):
        run = await lab.client.start("agent", id="r1")
        assert (await lab.end(run)).state == "succeeded"
        fence = lab.store.run(run).fence
    # Without a key of its own an effect has one that is unique in the world.
    assert seen == [(1, "a", (1, fence)), (2, "r1/:0"), (3,)]


async def test_a_probe_and_an_undo_get_the_arguments_of_the_effect(local: Lab) -> None:
    seen: list[Any] = []
    held = Held()

    async def send(to: str, *, text: str, key: str) -> None:
        await held.here()

    async def probe(to: str, *, text: str, key: str, fence: Fence) -> Any:
        seen.append(("probe", to, text, key, fence.counter))
        return andon.did_not_happen()

    async def undo(result: Any, to: str, *, text: str) -> None:
        seen.append(("undo", result, to, text))

    async def body(ctx: andon.Context, kind: str) -> None:
        await ctx.effect(send, "a@b", text="hi", key="k", kind=kind, probe=probe, undo=undo)

    one = agent(body)
    for kind in ("probeable", "compensatable"):
        held.reached.clear()
        held.release.clear()
        async with local.working(one) as lost:
            run = await local.client.start(one, kind)
            await held.reached.wait()
            async with local.working(one) as survivor:
                declare_lost(survivor, lost)
                assert (await local.end(run)).state == "succeeded"
            held.release.set()
    assert seen == [("probe", "a@b", "hi", "k", 3), ("undo", None, "a@b", "hi")]


async def test_the_same_key_with_other_arguments_is_refused(local: Lab) -> None:
    world = World()
    world.held.reached.set()

    async def body(ctx: andon.Context) -> None:
        await ctx.effect(world.pay, 1, key="order-1")
        await ctx.effect(world.pay, 2, key="order-1")

    async with local.working(agent(body)):
        run = await local.end(await local.client.start("agent"))
    assert run.state == "stranded"
    assert world.done == [1]


async def test_the_same_key_twice_is_one_effect(lab: Lab) -> None:
    world = World()

    async def body(ctx: andon.Context) -> list[str]:
        both = asyncio.gather(*(ctx.effect(world.pay, 1, key="order-1") for _ in range(2)))
        await world.held.reached.wait()
        world.held.release.set()
        return [*await both, await ctx.effect(world.pay, 1, key="order-1")]

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        assert await lab.result(run) == ["paid 1"] * 3
    assert world.done == [1]
    assert [entry.state for entry in await lab.journal(run, "effect")] == ["started", "confirmed"]


async def test_a_call_that_cannot_work_is_refused_before_it_is_written(local: Lab) -> None:
    world = World()

    async def body(ctx: andon.Context) -> list[str]:
        found = []
        for wrong in (
            lambda: ctx.effect(world.pay),
            lambda: ctx.effect(world.pay, 1, kind="magic"),
            lambda: ctx.effect(world.pay, 1, kind="probeable"),
            lambda: ctx.effect(world.pay, 1, kind="compensatable"),
            lambda: ctx.effect(world.pay, 1, undo=world.undo, undo_within="soon"),
        ):
            try:
                await wrong()  # type: ignore[no-untyped-call]
            except BadInput as error:
                found.append(str(error))
        return found

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        found = await local.result(run)
    assert len(found) == 5
    assert local.store.ledger(run) == []
    assert world.done == []


async def test_a_declaration_stays_with_its_function(local: Lab) -> None:
    async def find(n: int) -> Any:
        return andon.unknown()

    @andon.effect_of(probe=find)
    async def pay(n: int) -> int:
        return n

    async def body(ctx: andon.Context) -> None:
        await ctx.effect(pay, 1, key="a")
        await ctx.effect(pay, 1, key="b", kind="irreversible")

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        await local.end(run)
    assert [row.kind for row in local.store.ledger(run)] == ["probeable", "irreversible"]


# ── results, cancellation, branches ───────────────────────────────────────────────────────────────


async def test_an_effect_whose_result_cannot_be_stored_is_confirmed_and_not_repeated(
    lab: Lab,
) -> None:
    calls: list[int] = []

    async def pay() -> object:
        calls.append(1)
        return object()

    async def body(ctx: andon.Context) -> None:
        await ctx.effect(pay)

    policy = andon.Retry(2, first_seconds=0.01)
    async with lab.working(agent(body, retries=policy)):
        run = await lab.end(await lab.client.start("agent"))
    assert run.state == "dead"
    assert run.error is not None
    assert "'pay'" in run.error["message"]
    assert calls == [1]
    assert lab.effects(run.id) == {"pay": "confirmed"}


async def test_an_effect_that_the_agent_cuts_off_keeps_the_run_until_a_person_answers(
    lab: Lab,
) -> None:
    world = World()

    async def body(ctx: andon.Context) -> str:
        try:
            async with asyncio.timeout(0.05):
                await ctx.effect(world.pay, 7)
        except TimeoutError:
            return str(await ctx.step(str, "gave up"))
        return "paid"

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        await lab.asked(run)
        assert lab.effects(run) == {"pay": "in_doubt"}
        await lab.client.answer(run, "happened", "yes")
        assert await lab.result(run) == "gave up"
    assert world.done == [7]
    assert lab.effects(run) == {"pay": "confirmed"}


async def test_a_cut_off_effect_is_not_forgotten_at_a_snapshot(lab: Lab) -> None:
    world = World()

    async def body(ctx: andon.Context) -> str:
        if ctx.restored is None:
            try:
                async with asyncio.timeout(0.05):
                    await ctx.effect(world.pay, 7)
            except TimeoutError:
                await ctx.snapshot("gave up")
        await ctx.event("go")
        return "over"

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        await lab.reach(run, "suspended")
        await lab.client.send(run, "go")
        await until(lambda: lab.store.asks(run))
        await lab.client.answer(run, "did_not_happen")
        assert await lab.result(run) == "over"
    assert lab.effects(run) == {"pay": "failed"}


async def test_an_effect_in_doubt_of_a_task_that_is_never_awaited_keeps_the_run(local: Lab) -> None:
    async def order() -> None:
        raise ConnectionError("away")

    async def body(ctx: andon.Context) -> str:
        task = asyncio.create_task(ctx.effect(order))
        while local.effects(ctx.run_id).get("order") not in ("in_doubt", "confirmed"):
            await asyncio.sleep(0.001)
        return f"{task.done()}"

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        await local.asked(run)
        await local.client.answer(run, "happened")
        await local.result(run)
    assert local.effects(run) == {"order": "confirmed"}


async def test_one_branch_is_in_doubt_while_the_other_works(lab: Lab) -> None:
    calls: list[int] = []
    answered = asyncio.Event()

    async def order() -> str:
        raise ConnectionError("away")

    async def work(n: int) -> int:
        calls.append(n)
        if n == 2:
            await answered.wait()
        return n

    async def body(ctx: andon.Context) -> list[Any]:
        async def busy() -> list[int]:
            return [await ctx.step(work, n) for n in range(4)]

        return list(await asyncio.gather(ctx.effect(order), busy()))

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        await until(lambda: lab.store.asks(run) and len(calls) == 3)
        await lab.client.answer(run, "happened", "ok")  # while the other branch is in its step
        answered.set()
        assert await lab.result(run) == ["ok", [0, 1, 2, 3]]
    assert calls == [0, 1, 2, 3]


async def test_an_agent_retry_does_not_repeat_an_effect_in_doubt(lab: Lab) -> None:
    """A step fails, its sibling effect is cut off; the retry settles the effect first."""
    world = World()
    calls: list[int] = []

    async def shaky() -> str:
        calls.append(1)
        await world.held.reached.wait()
        if len(calls) == 1:
            raise ValueError("no")
        return "ok"

    async def body(ctx: andon.Context) -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(ctx.step(shaky)),
                group.create_task(ctx.effect(world.pay, 7)),
            ]
        return [task.result() for task in tasks]

    policy = andon.Retry(1, first_seconds=0.01)
    async with lab.working(agent(body, retries=policy)):
        run = await lab.client.start("agent")
        await lab.asked(run)
        await lab.client.answer(run, "happened", "seen")
        assert await lab.result(run) == ["ok", "seen"]
    assert world.done == [7]

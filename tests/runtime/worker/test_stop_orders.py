"""A worker obeys stop orders, and reports an end only when nothing executes any more."""

import asyncio
import contextlib
import threading
from typing import Any

import pytest
from tests.runtime.harness import Held, Lab, agent, claims_again, until

import andon
from andon.errors import Stopped
from andon.runtime.client import Client
from andon.runtime.requests.requests import Receipt
from andon.settings import Settings
from andon.store.messages.stops import Heard, Order, Reauthorize, StopNotice, WorkerGone

SPARED = (
    "its worker reports that it has ended. Its process was spared, so no other process can prove it"
)


async def closed(lab: Lab, receipt_id: str) -> Receipt:
    """Wait for the receipt until every target of it is proved, or cannot be."""
    async with asyncio.timeout(30):
        while (found := await lab.client.receipt(receipt_id)).order.closed_at is None:
            await asyncio.sleep(0.003)
    return found


async def ended_by_report(lab: Lab, receipt_id: str) -> Receipt:
    """Wait for the receipt of a hard stop until the worker has reported that nothing executes.

    That is no proof: this process continues, and no observer outside has looked.
    """
    found = await closed(lab, receipt_id)
    runs = [row for row in found.targets if row.run_id is not None]
    assert {(row.stage, row.evidence) for row in runs} == {("unproved", SPARED)}
    assert (found.verdict, found.proved) == ("unproved", False)
    return found


async def halt(lab: Lab) -> str:
    message = Order(id="rcp_halt", kind="halt", scope="fleet", by="ana", why="unsure")
    [receipt_id] = await asyncio.to_thread(lab.store.write, [message])
    return str(receipt_id)


async def states(lab: Lab, run_id: str, kind: str = "step") -> list[str]:
    return [entry.state for entry in await lab.journal(run_id, kind)]


def stage(lab: Lab, receipt_id: str) -> str:
    """The stage of the attempt itself; processes that libraries start have another target."""
    [row] = [row for row in lab.store.targets(receipt_id) if row.mark is None]
    return str(row.stage)


class ObservedStop:
    """The stop as the agent's code saw it."""

    def __init__(self) -> None:
        self.reached, self.ended = asyncio.Event(), asyncio.Event()
        self.caught: list[BaseException] = []

    async def long(self) -> str:
        self.reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()
        return "never"


# ── pause ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_pause_lets_the_step_in_hand_end_and_takes_effect_at_the_boundary(
    lab: Lab,
) -> None:
    held, executed = Held(), []

    async def first() -> str:
        await held.here()
        executed.append("first")
        return "one"

    async def second() -> str:
        executed.append("second")
        return "two"

    @agent
    async def pair(ctx: andon.Context) -> Any:
        return [await ctx.step(first), await ctx.step(second)]

    async with lab.working(pair):
        run = await lab.client.start(pair)
        await held.reached.wait()
        receipt = await lab.client.pause(run, by="ana", why="unsure")
        await until(lambda: stage(lab, receipt) == "acknowledged")
        held.release.set()
        assert (await closed(lab, receipt)).proved
        assert (await lab.client.get(run)).state == "paused"
        assert (executed, await states(lab, run)) == (["first"], ["done"])
        await lab.client.resume(run)
        assert await lab.result(run) == ["one", "two"]
    assert executed == ["first", "second"]


async def test_a_pause_waits_for_all_branches_in_hand_also_in_a_group(lab: Lab) -> None:
    """The branch that reaches its boundary first must not cancel the others by unwinding."""
    held, quick = Held(), asyncio.Event()

    async def slow() -> str:
        await held.here()
        return "slow"

    async def fast() -> str:
        quick.set()
        return "fast"

    @agent
    async def group(ctx: andon.Context) -> Any:
        async def twice() -> list[str]:
            await held.reached.wait()
            while not ctx.stopping and ctx.attempt == 1:
                await asyncio.sleep(0)
            return [await ctx.step(fast)]

        async with asyncio.TaskGroup() as tasks:
            one = tasks.create_task(ctx.step(slow))
            two = tasks.create_task(twice())
        return [one.result(), two.result()]

    async with lab.working(group):
        run = await lab.client.start(group)
        await held.reached.wait()
        receipt = await lab.client.pause(run)
        await until(lambda: stage(lab, receipt) == "acknowledged")
        held.release.set()
        await closed(lab, receipt)
        assert not quick.is_set()
        assert await states(lab, run) == ["done"], "the slow one ended as if nothing had happened"
        await lab.client.resume(run)
        assert await lab.result(run) == ["slow", ["fast"]]


@pytest.mark.parametrize("kind", ["pause", "cancel"])
async def test_a_shield_ends_before_a_polite_order_takes_effect(lab: Lab, kind: str) -> None:
    held, executed = Held(), []

    async def inside(number: int) -> int:
        executed.append(number)
        return number

    @agent
    async def shielded(ctx: andon.Context) -> list[int]:
        async with ctx.shield("both"):
            found = [await ctx.step(inside, 1)]
            await held.here()  # nothing is in hand here
            found.append(await ctx.step(inside, 2))
        return [*found, await ctx.step(inside, 3)]

    async with lab.working(shielded):
        run = await lab.client.start(shielded)
        await held.reached.wait()
        receipt = await getattr(lab.client, kind)(run)
        await until(lambda: stage(lab, receipt) == "acknowledged")
        held.release.set()
        await closed(lab, receipt)
        assert executed == [1, 2]
        if kind == "pause":
            await lab.client.resume(run)
            assert await lab.result(run) == [1, 2, 3]


async def test_a_run_that_waits_in_memory_is_paused_and_waits_again(lab: Lab) -> None:
    waits = asyncio.Event()

    @agent
    async def waiter(ctx: andon.Context) -> Any:
        waits.set()
        async with asyncio.timeout(600):  # a timer of its own: it is not suspended
            return await ctx.event("go")

    async with lab.working(waiter) as worker:
        run = await lab.client.start(waiter)
        await until(lambda: run in worker.attempts and worker.attempts[run].waits.open)
        await closed(lab, await lab.client.pause(run))
        assert (await lab.client.get(run)).state == "paused"
        await lab.client.send(run, "go", "went")
        await lab.client.resume(run)
        assert await lab.result(run) == "went"


# ── cancel ────────────────────────────────────────────────────────────────────────────────────


async def test_a_cancel_ends_an_async_step_at_once_and_records_no_outcome_of_it(lab: Lab) -> None:
    seen = ObservedStop()

    @agent
    async def long(ctx: andon.Context) -> Any:
        try:
            return await ctx.step(seen.long, retries=3)
        except BaseException as error:
            seen.caught.append(error)
            raise

    async with lab.working(long):
        run = await lab.client.start(long)
        await seen.reached.wait()
        receipt = await lab.client.cancel(run, by="ana", why="unsure")
        assert (await closed(lab, receipt)).proved
    assert seen.ended.is_set()
    [error] = seen.caught
    assert isinstance(error, Stopped)
    assert (error.kind, error.by, error.why, error.order) == ("cancel", "ana", "unsure", receipt)
    row = await lab.client.get(run)
    assert row.state == "cancelled"
    assert await states(lab, run) == []


@pytest.mark.parametrize("answer", ["value", "error"])
async def test_code_that_swallows_its_cancellation_executes_nothing_further(
    lab: Lab, answer: str
) -> None:
    reached, swallowed, later = asyncio.Event(), [], []

    async def stubborn() -> str:
        for _ in range(3):
            reached.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed.append(1)
        if answer == "error":
            raise ValueError("it was cancelled, and says something else")
        return "partial"

    async def after() -> None:
        later.append(1)

    @agent
    async def swallows(ctx: andon.Context) -> Any:
        with contextlib.suppress(BaseException):
            await ctx.step(stubborn, retries=2)
        with contextlib.suppress(BaseException):
            await ctx.step(after)
        return await ctx.step(after)

    async with lab.working(swallows):
        run = await lab.client.start(swallows)
        await reached.wait()
        await closed(lab, await lab.client.cancel(run))
    assert (await lab.client.get(run)).state == "cancelled"
    assert await states(lab, run) == []
    assert (len(swallowed), later) == (3, [])


async def test_code_that_caught_the_stop_gets_no_answer_from_the_journal_either(lab: Lab) -> None:
    seen, answered = ObservedStop(), []

    async def known() -> str:
        return "known"

    @agent
    async def catches(ctx: andon.Context) -> Any:
        await ctx.step(known, key="k")
        with contextlib.suppress(BaseException):
            await ctx.step(seen.long)
        answered.append(await ctx.step(known, key="k"))

    async with lab.working(catches):
        run = await lab.client.start(catches)
        await seen.reached.wait()
        await closed(lab, await lab.client.cancel(run))
    assert answered == []


@pytest.mark.parametrize("kind", ["pause", "cancel"])
async def test_cleanups_end_before_the_run_is_reported_as_stopped(lab: Lab, kind: str) -> None:
    held, stages = Held(), []
    receipts: list[str] = []

    async def step() -> None:
        await held.here()

    @agent
    async def tidy(ctx: andon.Context) -> Any:
        # Not by the answer to the order: the cleanup may run before it arrives.
        ctx.cleanup(lambda: stages.append(stage(lab, lab.store.stops(1)[0].id)))
        await ctx.step(step)
        return await ctx.step(step)

    async with lab.working(tidy):
        run = await lab.client.start(tidy)
        await held.reached.wait()
        receipts.append(await getattr(lab.client, kind)(run))
        await until(lambda: stage(lab, receipts[0]) != "requested")
        held.release.set()
        await closed(lab, receipts[0])
    assert stages in (["requested"], ["acknowledged"])


@pytest.mark.parametrize("ends", ["cancelled", "with a value", "with an error"])
async def test_an_effect_in_hand_ends_and_is_confirmed_before_a_cancel_takes_effect(
    lab: Lab, ends: str
) -> None:
    held, seen = Held(), ObservedStop()

    async def long() -> str:
        try:
            return await seen.long()
        except asyncio.CancelledError:
            if ends == "cancelled":
                raise
            if ends == "with an error":
                raise ValueError("not an outcome") from None
        return "nor is this"

    async def pay() -> str:
        await held.here()
        return "paid"

    @agent
    async def both(ctx: andon.Context) -> Any:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ctx.effect(pay))
            await ctx.step(long, retries=1)

    async with lab.working(both):
        run = await lab.client.start(both)
        await held.reached.wait()
        await seen.reached.wait()
        receipt = await lab.client.cancel(run)
        await seen.ended.wait()
        assert stage(lab, receipt) != "verified"
        held.release.set()
        await closed(lab, receipt)
    assert lab.effects(run) == {"pay": "confirmed"}
    assert await states(lab, run) == []
    assert (await lab.client.get(run)).state == "cancelled"


async def test_a_sync_step_may_end_within_the_window_and_is_kept(lab: Lab) -> None:
    reached, release = threading.Event(), threading.Event()

    def plain() -> str:
        reached.set()
        release.wait(30)
        return "done"

    @agent
    async def thread(ctx: andon.Context) -> Any:
        return [await ctx.step(plain), await ctx.step(plain)]

    async with lab.working(thread):
        run = await lab.client.start(thread)
        await asyncio.to_thread(reached.wait, 30)
        receipt = await lab.client.cancel(run)
        await until(lambda: stage(lab, receipt) == "acknowledged")
        release.set()
        await closed(lab, receipt)
    assert await states(lab, run) == ["done"]
    assert (await lab.client.get(run)).state == "cancelled"


async def test_a_cancelled_run_undoes_its_effects(lab: Lab) -> None:
    seen, undone = ObservedStop(), []

    async def book() -> str:
        return "booked"

    async def release(result: str) -> None:
        undone.append(result)

    @agent
    async def trip(ctx: andon.Context) -> Any:
        await ctx.effect(book, undo=release)
        return await ctx.step(seen.long)

    async with lab.working(trip):
        run = await lab.client.start(trip)
        await seen.reached.wait()
        await lab.client.cancel(run, why="the customer left")
        assert (await lab.end(run)).state == "cancelled"
    assert undone == ["booked"]
    assert lab.effects(run) == {"book": "compensated"}


async def test_a_pause_during_an_undo_lets_the_undo_in_hand_end(lab: Lab) -> None:
    held, undone = Held(), []

    async def book(number: int) -> int:
        return number

    async def release(result: int, number: int) -> None:
        await held.here()
        undone.append(result)

    @agent
    async def fails(ctx: andon.Context) -> None:
        for number in range(2):
            await ctx.effect(book, number, key=str(number), undo=release)
        raise ValueError

    async with lab.working(fails):
        run = await lab.client.start(fails)
        await held.reached.wait()
        receipt = await lab.client.pause(run)
        await until(lambda: stage(lab, receipt) == "acknowledged")
        held.release.set()
        await closed(lab, receipt)
        assert (await lab.client.get(run)).state == "paused"
        assert undone == [1]
        await lab.client.resume(run)
        await lab.end(run)
    assert undone == [1, 0]


async def test_an_order_after_the_end_changes_nothing(lab: Lab) -> None:
    @agent
    async def quick(ctx: andon.Context) -> str:
        return "done"

    async with lab.working(quick):
        run = await lab.client.start(quick)
        await lab.end(run)
        receipt = await lab.client.cancel(run)
        assert (await closed(lab, receipt)).proved
        assert await lab.result(run) == "done"


# ── moments ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["pause", "cancel", "kill"])
async def test_an_order_while_the_run_is_loaded_lets_no_code_begin(lab: Lab, kind: str) -> None:
    loading, go, begun = threading.Event(), threading.Event(), []

    @agent
    async def never(ctx: andon.Context) -> None:
        begun.append(ctx.attempt)
        await ctx.event("go")

    async with lab.working(never) as worker:
        run = await lab.client.start(never)
        await lab.reach(run, "suspended")  # an untouched run is not loaded
        load = worker.store.load

        def held(*args: Any, **options: Any) -> Any:
            loading.set()
            go.wait(30)
            return load(*args, **options)

        worker.store.load = held
        await lab.client.send(run, "go")
        await asyncio.to_thread(loading.wait, 30)
        receipt = await getattr(lab.client, kind)(run)
        await until(lambda: worker.attempts[run].exit.reason is not None)
        go.set()
        if kind == "kill":
            await ended_by_report(lab, receipt)
        else:
            assert (await closed(lab, receipt)).proved
    assert begun == [1]


async def test_an_order_during_a_replay_ends_it(lab: Lab) -> None:
    """The second branch of the replayed code never calls: the first waits for its turn."""
    replaying, count = asyncio.Event(), 0

    async def number(one: int) -> int:
        return one

    @agent
    async def two(ctx: andon.Context) -> Any:
        nonlocal count
        count += 1
        if count == 2:
            replaying.set()
            waits = asyncio.create_task(asyncio.Event().wait())  # it is not known what for
            await ctx.step(number, 2, key="late")
            assert waits.done()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ctx.step(number, 1, key="early"))
            tasks.create_task(ctx.step(number, 2, key="late"))
        return await ctx.event("go")

    async with lab.working(two):
        run = await lab.client.start(two)
        await lab.reach(run, "suspended")
        await lab.client.send(run, "go")
        await replaying.wait()
        await closed(lab, await lab.client.cancel(run))
        assert (await lab.client.get(run)).state == "cancelled"


@pytest.mark.parametrize(("kind", "kept"), [("cancel", ["done"]), ("kill", [])])
async def test_an_order_during_a_transaction_is_all_or_nothing(
    lab: Lab, kind: str, kept: list[str]
) -> None:
    reached, release = threading.Event(), threading.Event()

    def write(connection: Any) -> str:
        reached.set()
        release.wait(30)
        return "written"

    @agent
    async def transacts(ctx: andon.Context) -> Any:
        await ctx.transaction(write)
        return await ctx.event("go")

    if lab.url.startswith("sqlite"):
        return  # the open transaction holds the only write lock: the order comes after it
    async with lab.working(transacts):
        run = await lab.client.start(transacts)
        await asyncio.to_thread(reached.wait, 30)
        receipt = await getattr(lab.client, kind)(run)
        await until(lambda: stage(lab, receipt) in ("acknowledged", "fenced"))
        release.set()
        await closed(lab, receipt)
        assert await states(lab, run) == kept


async def test_an_order_that_is_delivered_repeatedly_is_obeyed_once(lab: Lab) -> None:
    held, ended = Held(), []

    async def step() -> None:
        await held.here()

    @agent
    async def one(ctx: andon.Context) -> None:
        ctx.cleanup(lambda: ended.append(1))
        await ctx.step(step)
        await ctx.step(step)

    async with lab.working(one, poll_seconds=0.01) as worker:
        run = await lab.client.start(one)
        await held.reached.wait()
        submit, said = worker.writer.submit, []

        def noted(message: Any) -> Any:
            said.append(type(message))
            return submit(message)

        worker.writer.submit = noted  # type: ignore[method-assign]
        receipts = {await lab.client.pause(run) for _ in range(3)}
        assert len(receipts) == 1, "the same order, the same receipt"
        await claims_again(worker)
        held.release.set()
        await closed(lab, receipts.pop())
    assert (ended, said.count(Heard)) == ([1], 1)


async def test_a_cancel_after_a_pause_is_a_cancel(lab: Lab) -> None:
    seen = ObservedStop()

    @agent
    async def long(ctx: andon.Context) -> Any:
        return await ctx.step(seen.long)

    async with lab.working(long):
        run = await lab.client.start(long)
        await seen.reached.wait()
        pause = await lab.client.pause(run)
        await until(lambda: stage(lab, pause) == "acknowledged")
        cancel = await lab.client.cancel(run)
        assert (await closed(lab, pause)).proved
        assert (await closed(lab, cancel)).proved
    assert (await lab.client.get(run)).state == "cancelled"


async def test_orders_are_received_when_every_slot_is_taken_and_while_a_worker_drains(
    lab: Lab,
) -> None:
    seen = ObservedStop()

    @agent
    async def long(ctx: andon.Context) -> Any:
        return await ctx.step(seen.long)

    async with lab.working(long, concurrency=1, poll_seconds=30.0, grace_seconds=600.0) as worker:
        run = await lab.client.start(long)
        await seen.reached.wait()
        worker.tell("SIGTERM")
        await until(worker.claiming.done)
        leaving = asyncio.ensure_future(worker.__aexit__())
        await ended_by_report(lab, await lab.client.kill(run))
        assert seen.ended.is_set()
        await leaving


# ── hard ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_kill_ends_everything_of_the_run_and_its_worker_cannot_prove_it(lab: Lab) -> None:
    seen, cleaned = ObservedStop(), []

    async def background() -> None:
        seen.reached.set()
        await asyncio.Event().wait()

    async def spawns() -> None:
        await asyncio.gather(background(), background())

    @agent
    async def long(ctx: andon.Context) -> Any:
        ctx.cleanup(lambda: cleaned.append(1))
        try:
            return await ctx.step(spawns)
        except BaseException as error:
            seen.caught.append(error)
            raise

    async with lab.working(long):
        run = await lab.client.start(long)
        await seen.reached.wait()
        await ended_by_report(lab, await lab.client.kill(run, by="ana"))
        assert (await lab.client.get(run)).state == "killed"
        assert not [task for task in asyncio.all_tasks() if "background" in repr(task)]
    assert cleaned == []
    assert await states(lab, run) == []


async def test_a_running_thread_is_not_reported_as_ended(lab: Lab) -> None:
    reached, release = threading.Event(), threading.Event()

    def plain() -> None:
        reached.set()
        release.wait(30)

    @agent
    async def thread(ctx: andon.Context) -> None:
        await ctx.step(plain)

    async with lab.working(thread, poll_seconds=0.01) as worker:
        run = await lab.client.start(thread)
        await asyncio.to_thread(reached.wait, 30)
        receipt = await lab.client.kill(run)
        await until(lambda: worker.attempts[run].exit.reason == "killed")
        await claims_again(worker)
        assert stage(lab, receipt) == "fenced"
        release.set()
        await ended_by_report(lab, receipt)


@pytest.mark.parametrize("how", ["to_thread", "agent"])
async def test_a_thread_behind_a_cancelled_await_counts_too(lab: Lab, how: str) -> None:
    reached, release = threading.Event(), threading.Event()

    def block() -> None:
        reached.set()
        release.wait(30)

    async def step() -> None:
        await asyncio.to_thread(block)

    async def asynchronous(ctx: andon.Context) -> None:
        await ctx.step(step)

    def plain(ctx: Any) -> None:
        block()

    one = agent(asynchronous if how == "to_thread" else plain)
    async with lab.working(one, poll_seconds=0.01) as worker:
        run = await lab.client.start(one)
        await asyncio.to_thread(reached.wait, 30)
        receipt = await lab.client.kill(run)
        await until(lambda: worker.attempts[run].exit.reason == "killed")
        await claims_again(worker)
        assert stage(lab, receipt) == "fenced"
        release.set()
        await ended_by_report(lab, receipt)


async def test_the_end_of_an_abandoned_attempt_is_confirmed_when_an_order_asks(lab: Lab) -> None:
    """Its own write was refused before the order arrived, and the attempt is no longer in hand."""
    held = Held()

    async def step() -> None:
        await held.here()

    @agent
    async def one(ctx: andon.Context) -> None:
        await ctx.step(step)

    async with lab.working(one, poll_seconds=0.01) as worker:
        run = await lab.client.start(one)
        await held.reached.wait()
        obey, worker.orders.obey = worker.orders.obey, lambda result: None  # type: ignore[method-assign]
        receipt = await lab.client.kill(run)
        held.release.set()
        await until(lambda: run not in worker.attempts)
        assert stage(lab, receipt) == "fenced"
        worker.orders.obey = obey  # type: ignore[method-assign]
        await ended_by_report(lab, receipt)


async def test_an_abandoned_attempt_with_a_running_thread_is_not_confirmed(lab: Lab) -> None:
    held, reached, release = Held(), threading.Event(), threading.Event()

    def block() -> None:
        reached.set()
        release.wait(30)

    async def step() -> None:
        await asyncio.to_thread(reached.wait, 30)
        await held.here()

    @agent
    async def two(ctx: andon.Context) -> None:
        await asyncio.gather(ctx.step(block), ctx.step(step))

    async with lab.working(two, poll_seconds=0.01) as worker:
        run = await lab.client.start(two)
        await held.reached.wait()
        obey, worker.orders.obey = worker.orders.obey, lambda result: None  # type: ignore[method-assign]
        receipt = await lab.client.kill(run)
        held.release.set()
        await until(lambda: run not in worker.attempts)
        worker.orders.obey = obey  # type: ignore[method-assign]
        await claims_again(worker)
        assert stage(lab, receipt) == "fenced"
        release.set()
        await ended_by_report(lab, receipt)


async def test_a_polite_order_that_overruns_becomes_hard(lab: Lab) -> None:
    reached, release = threading.Event(), threading.Event()

    def plain() -> None:
        reached.set()
        release.wait(30)

    @agent
    async def thread(ctx: andon.Context) -> None:
        await ctx.step(plain)

    async with lab.working(thread) as worker:
        run = await lab.client.start(thread)
        await asyncio.to_thread(reached.wait, 30)
        receipt = await lab.client.cancel(run, within=0.05)
        await until(lambda: worker.attempts[run].exit.reason == "killed")
        assert stage(lab, receipt) == "fenced"
        release.set()
        assert (await closed(lab, receipt)).proved
    assert await states(lab, run) == []
    assert (await lab.client.get(run)).state == "cancelled"


async def test_a_sync_agent_gets_the_author_and_reason_of_a_stop(lab: Lab) -> None:
    seen = ObservedStop()

    @agent
    def plain(ctx: Any) -> Any:
        try:
            return ctx.step(seen.long)
        except BaseException as error:
            seen.caught.append(error)
            raise

    async with lab.working(plain):
        run = await lab.client.start(plain)
        await seen.reached.wait()
        await closed(lab, await lab.client.cancel(run, by="ana"))
    [error] = seen.caught
    assert isinstance(error, Stopped)
    assert (error.kind, error.by) == ("cancel", "ana")
    assert (await lab.client.get(run)).state == "cancelled"


async def test_a_workers_report_is_proved_once_its_process_is_gone(lab: Lab) -> None:
    seen = ObservedStop()

    @agent
    async def long(ctx: andon.Context) -> Any:
        return await ctx.step(seen.long)

    async with lab.working(long) as worker:
        run = await lab.client.start(long)
        await seen.reached.wait()
        receipt = await lab.client.kill(run)
        await ended_by_report(lab, receipt)
        worker_gone = WorkerGone(
            worker_id=worker.worker_id, evidence="its process is gone", ordered=True
        )
        await asyncio.to_thread(lab.store.write, [worker_gone])
        found = await closed(lab, receipt)
        assert found.proved
        [row] = found.targets
        assert row.evidence == "its process is gone"


# ── children ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["pause", "cancel", "kill"])
async def test_a_parent_that_waits_for_its_child_is_stopped_with_it(lab: Lab, kind: str) -> None:
    held, went_on = Held(), []

    async def step() -> str:
        await held.here()
        return "done"

    leaf = andon.agent(name="leaf")(_leaf(step))

    @agent
    async def parent(ctx: andon.Context) -> Any:
        async with asyncio.timeout(600):  # it waits in memory
            try:
                return await ctx.child(leaf, id="child")
            except Exception as error:
                went_on.append(error)
                raise

    async with lab.working(parent, leaf):
        run = await lab.client.start(parent)
        await held.reached.wait()
        receipt = await getattr(lab.client, kind)(run)
        if kind == "pause":
            await until(lambda: {row.stage for row in lab.store.targets(receipt)} != {"requested"})
            held.release.set()
        if kind == "kill":
            await ended_by_report(lab, receipt)
        else:
            assert (await closed(lab, receipt)).proved
        found = {(await lab.client.get(one)).state for one in (run, "child")}
        assert found == {{"pause": "paused", "cancel": "cancelled", "kill": "killed"}[kind]}
    assert went_on == []


def _leaf(step: Any) -> Any:
    async def leaf(ctx: andon.Context) -> Any:
        await ctx.step(step)
        return await ctx.event("never")

    return leaf


async def test_a_parent_whose_child_was_cancelled_gets_the_outcome_of_the_child(lab: Lab) -> None:
    seen = ObservedStop()

    @andon.agent
    async def leaf(ctx: andon.Context) -> Any:
        return await ctx.step(seen.long)

    @agent
    async def parent(ctx: andon.Context) -> Any:
        try:
            return await ctx.child(leaf, id="child")
        except andon.StepFailed as error:
            return str(error)

    async with lab.working(parent, leaf):
        run = await lab.client.start(parent)
        await seen.reached.wait()
        await closed(lab, await lab.client.cancel("child", by="ana"))
        assert "cancelled by ana" in await lab.result(run)


# ── halt ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_halted_worker_leaves_its_runs_and_ends(lab: Lab) -> None:
    seen = ObservedStop()
    told: list[StopNotice] = []

    @agent
    async def long(ctx: andon.Context) -> Any:
        return await ctx.step(seen.long)

    async with lab.working(long) as worker:
        worker.on_halted = told.append
        run = await lab.client.start(long)
        await seen.reached.wait()
        receipt = await halt(lab)
        await worker._stopped.wait()
        assert seen.ended.is_set()
    found = await ended_by_report(lab, receipt)
    evidence = "its worker reports that it has left; its process was not seen to end"
    [row] = [row for row in found.targets if row.run_id is None]
    assert (row.stage, row.evidence) == ("unproved", evidence)
    assert [one.kind for one in told] == ["halt"]
    assert (await lab.client.get(run)).state == "killed"


async def test_a_program_with_an_embedded_worker_survives_a_halt_and_holds_nothing(
    lab: Lab,
) -> None:
    seen = ObservedStop()

    @agent
    async def long(ctx: andon.Context) -> Any:
        return await ctx.step(seen.long)

    async with Client(settings=Settings(store=lab.url)) as program:
        running = asyncio.ensure_future(program.run(long, id="mine"))
        await seen.reached.wait()
        receipt = await halt(lab)
        found = await ended_by_report(lab, receipt)
        assert {row.target.partition(":")[0] for row in found.targets} == {"run", "worker"}
        with pytest.raises(andon.StepFailed, match="Killed"):
            await running
        message = Reauthorize(epoch=found.order.epoch, scope="fleet", by="bo", why="looked")
        await asyncio.to_thread(lab.store.write, [message])
        assert program._worker is not None
        assert not program._worker.draining

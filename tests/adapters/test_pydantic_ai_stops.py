"""An agent of Pydantic AI is streamed and stopped: the report matches what happened."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from tests.adapters.buyers import FORMS, buyer
from tests.runtime.harness import Held, Lab, agent, claims_again, until
from tests.runtime.worker.test_stop_orders import closed, stage

import andon
from andon.adapters.pydantic_ai import AndonDurability
from andon.testing import FakeModel, call


async def charge(amount: int) -> str:
    return "ch_1"


# ── streams ───────────────────────────────────────────────────────────────────────────────────


async def by_stream(one: Any) -> tuple[str, str]:
    async with one.run_stream("buy") as result:
        return "".join([text async for text in result.stream_text(delta=True)]), ""


async def by_handler(one: Any) -> tuple[str, str]:
    seen: list[str] = []

    async def handler(_: Any, events: Any) -> None:
        seen.extend([event.event_kind async for event in events])

    found = await one.run("buy", event_stream_handler=handler)
    return found.output, "function_tool_call" if "function_tool_call" in seen else ""


async def by_nodes(one: Any) -> tuple[str, str]:
    async with one.iter("buy") as nodes:
        names = [type(node).__name__ async for node in nodes]
    return nodes.result.output, names[-1]


WAYS = {"stream": by_stream, "handler": by_handler, "nodes": by_nodes}


@pytest.mark.parametrize(
    ("way", "form"), [*zip(WAYS, FORMS, strict=True), ("stream", "chat"), ("stream", "responses")]
)
async def test_a_streamed_answer_is_in_the_journal(local: Lab, way: str, form: str) -> None:
    called: list[int] = []

    async def charge(amount: int) -> str:
        called.append(amount)
        return "ch_1"

    with FakeModel([call("charge", amount=10), "All is done."]) as fake:
        one = buyer(fake.url, charge, form=form)

        async def body(ctx: andon.Context) -> Any:
            found = await WAYS[way](one)
            await ctx.event("go")
            return found

        async with local.working(agent(body)):
            run_id = await local.client.start("agent")
            output, seen = await local.replayed(run_id)
        assert output == "All is done."
        assert seen == {"stream": "", "handler": "function_tool_call", "nodes": "End"}[way]
        assert called == [10]
        assert [request.status for request in fake.requests] == [200, 200]


async def test_the_agents_event_handler_gets_the_stream_while_the_model_answers(local: Lab) -> None:
    heard: list[str] = []

    async def handler(_: Any, events: Any) -> None:
        heard.extend([event.event_kind async for event in events])

    with FakeModel([call("charge", amount=10), "All is done."]) as fake:
        one = buyer(fake.url, charge, options={"event_stream_handler": handler})

        async def body(ctx: andon.Context) -> Any:
            found = (await one.run("buy")).output
            await ctx.event("go")
            return found

        async with local.working(agent(body)):
            run_id = await local.client.start("agent")
            await local.reach(run_id, "suspended")
            before = list(heard)
            assert await local.replayed(run_id) == "All is done."
    assert {"part_start", "part_delta", "function_tool_call"} <= set(before)
    assert heard == before, "each event is delivered once"


class Speaking:
    """A model that stops in the middle of a sentence, the first time."""

    def __init__(self) -> None:
        self.held, self.seen, self.ended = Held(), [], 0  # type: ignore[var-annotated]

    async def __call__(self, *_: Any) -> AsyncIterator[str]:
        self.seen.append(andon.current().partial)
        try:
            for word in ("All ", "is ", "done."):
                yield word
                if word == "is ":
                    await self.held.here()
        finally:
            self.ended += 1

    @property
    def agent(self) -> Any:
        model = FunctionModel(stream_function=self)
        return Agent(model, name="buyer", capabilities=[AndonDurability()])


async def test_a_drain_keeps_the_partial_answer_of_the_model(lab: Lab) -> None:
    speaking = Speaking()

    async def body(ctx: andon.Context) -> Any:
        return await by_stream(speaking.agent)

    async with lab.working(agent(body), grace_seconds=0.05):
        run_id = await lab.client.start("agent")
        await speaking.held.reached.wait()
    async with lab.working(agent(body)):
        assert (await lab.result(run_id))[0] == "All is done."
    assert speaking.seen == [None, "All is "]


# ── stops ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("way", ["stream", "handler"])
async def test_a_cancel_ends_a_streaming_model(lab: Lab, way: str) -> None:
    speaking, caught = Speaking(), []

    async def body(ctx: andon.Context) -> Any:
        try:
            return await WAYS[way](speaking.agent)
        except BaseException as error:
            caught.append(error)
            raise

    async with lab.working(agent(body)):
        run_id = await lab.client.start("agent")
        await speaking.held.reached.wait()
        receipt = await lab.client.cancel(run_id, by="ana", why="unsure")
        assert (await closed(lab, receipt)).proved
        assert (await lab.client.get(run_id)).state == "cancelled"
    assert speaking.ended == 1
    [error] = caught
    assert isinstance(error, andon.Stopped | asyncio.CancelledError), (
        "the framework must not see an error"
    )
    assert [entry.state for entry in await lab.journal(run_id, "step")] == []


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("order", ["cancel", "pause"])
async def test_a_tool_in_hand_ends_and_is_confirmed_before_an_order_takes_effect(
    lab: Lab, order: str, plain: bool
) -> None:
    reached, release, done = threading.Event(), threading.Event(), []

    def pay(amount: int) -> str:
        reached.set()
        release.wait(30)
        done.append(amount)
        return "paid"

    async def pay_here(amount: int) -> str:
        reached.set()
        while not release.is_set():
            await asyncio.sleep(0.002)
        done.append(amount)
        return "paid"

    with FakeModel([call("pay", amount=10), "All is done."]) as fake:
        one = buyer(fake.url)
        one.tool_plain(name="pay")(pay if plain else pay_here)

        async def body(ctx: andon.Context) -> Any:
            return (await one.run("buy")).output

        async with lab.working(agent(body)):
            run_id = await lab.client.start("agent")
            await asyncio.to_thread(reached.wait, 30)
            receipt = await getattr(lab.client, order)(run_id)
            await until(lambda: stage(lab, receipt) in ("acknowledged", "fenced"))
            release.set()
            assert (await closed(lab, receipt)).proved
        assert len(fake.requests) == 1, "nothing may be executed after the order"
    assert done == [10]
    assert lab.effects(run_id) == {"pay": "confirmed"}
    expected = {"cancel": "cancelled", "pause": "paused"}
    assert (await lab.client.get(run_id)).state == expected[order]


async def test_a_tools_thread_that_is_still_running_is_not_reported_as_ended(lab: Lab) -> None:
    reached, release = threading.Event(), threading.Event()

    def pay(amount: int) -> str:
        reached.set()
        release.wait(30)
        return "paid"

    with FakeModel([call("pay", amount=10), "All is done."]) as fake:
        one = buyer(fake.url, pay)

        async def body(ctx: andon.Context) -> Any:
            return (await one.run("buy")).output

        async with lab.working(agent(body), poll_seconds=0.01) as worker:
            run_id = await lab.client.start("agent")
            await asyncio.to_thread(reached.wait, 30)
            receipt = await lab.client.kill(run_id)
            await until(lambda: worker.attempts[run_id].exit.reason == "killed")
            await claims_again(worker)
            assert stage(lab, receipt) == "fenced"
            release.set()
            found = await closed(lab, receipt)
            assert found.verdict == "unproved", "the worker itself reports that, and continues"
            [row] = [row for row in found.targets if row.mark is None]
            assert str(row.evidence).startswith("its worker reports that it has ended")


@pytest.mark.parametrize("plain", [False, True])
async def test_a_worker_that_has_to_leave_leaves_a_tool_in_doubt_and_never_repeats_it(
    lab: Lab, plain: bool
) -> None:
    """A thread may still execute it, so neither the worker nor a probe may guess its outcome."""
    reached, release, probed = threading.Event(), threading.Event(), []

    def find(amount: int) -> Any:
        probed.append(amount)
        return andon.did_not_happen()

    def pay(amount: int) -> str:
        reached.set()
        release.wait(30)
        return "paid"

    async def pay_here(amount: int) -> str:
        if reached.is_set():
            return "paid"
        reached.set()
        await asyncio.Event().wait()
        return "never"

    with FakeModel([call("pay", amount=10), "All is done."]) as fake:
        one = buyer(fake.url, options={"effects": {"pay": andon.effect_of(probe=find)}})
        one.tool_plain(name="pay")(pay if plain else pay_here)

        async def body(ctx: andon.Context) -> Any:
            return (await one.run("buy")).output

        async with lab.working(agent(body), grace_seconds=0.05):
            run_id = await lab.client.start("agent")
            await asyncio.to_thread(reached.wait, 30)
        async with lab.working(agent(body)):
            if plain:
                await lab.asked(run_id)
                assert probed == []
                release.set()
                await lab.client.answer(run_id, "happened", "paid")
            assert await lab.result(run_id) == "All is done."
    assert probed == ([] if plain else [10])


async def test_tool_calls_of_a_streamed_answer_are_planned_with_it(local: Lab) -> None:
    """The calls of a stream are planned with it, like those of an answer."""

    async def say(messages: Any, _: Any) -> AsyncIterator[Any]:
        if len(messages) > 1:
            yield "done"
        else:
            yield {0: DeltaToolCall(name="charge", json_args='{"amount": 10}', tool_call_id="c1")}

    model = FunctionModel(stream_function=say)
    one = Agent(model, name="buyer", tools=[charge], capabilities=[AndonDurability()])

    async def body(ctx: andon.Context) -> Any:
        return await by_stream(one)

    async with local.working(agent(body)):
        run_id = await local.client.start("agent")
        await local.result(run_id)
    entries = [(entry.kind, entry.state, entry.key) for entry in await local.journal(run_id)]
    assert entries[2:5] == [
        ("effect", "planned", "c1"),
        ("effect", "started", "c1"),
        ("effect", "confirmed", "c1"),
    ]

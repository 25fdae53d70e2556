"""A streaming model that is stopped in the middle: its words are neither lost nor acted on."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.runtime.harness import Held, Lab, agent

import andon
from andon import transcript
from andon.testing import FakeModel
from andon.testing.model.wire import ModelToolCall, Turn
from andon.transcript import Call as Planned

SAID = "I charge Ann now, and tell you what the bank said."
TALK: list[Any] = [{"role": "user", "content": "charge Ann"}]


@pytest.fixture
def fake() -> Iterator[FakeModel]:
    script: list[Any] = [Turn(text=SAID, calls=(ModelToolCall("charge", {"eur": 10}),)), "Done."]
    with FakeModel(script) as found:
        yield found


class Clerk:
    """A loop on Anthropic's own stream, held after its third piece of text."""

    def __init__(self, fake: FakeModel) -> None:
        self.url = fake.url
        self.held = Held()
        self.found: list[Any] = []  # the partial answer that each attempt found
        self.charged = 0
        self.agent = agent(self.body)

    async def charge(self, eur: int) -> str:
        self.charged += 1
        return "charged"

    async def body(self, ctx: andon.Context) -> str:
        anthropic = pytest.importorskip("anthropic")

        async def ask(messages: list[Any]) -> Any:
            if len(messages) == 1:
                self.found.append(ctx.partial)
            said = ""
            async with (
                anthropic.AsyncAnthropic(base_url=self.url, api_key="fake") as client,
                client.messages.stream(model="m", max_tokens=100, messages=messages) as stream,
            ):
                async for text in stream.text_stream:
                    said += text
                    ctx.checkpoint(said)
                    if len(said) == 36:
                        await self.held.here()
                return await stream.get_final_message()

        messages = list(TALK)
        while True:
            answer = await ctx.model(ask, messages)
            results = await ctx.tools(answer, [self.charge])
            if not results:
                return transcript.text(answer)
            messages += [*transcript.turn(answer), *results]


async def test_a_drain_in_the_middle_keeps_the_partial_answer(lab: Lab, fake: FakeModel) -> None:
    clerk = Clerk(fake)
    async with lab.working(clerk.agent, grace_seconds=0.05):
        run = await lab.client.start(clerk.agent)
        await clerk.held.reached.wait()
    assert clerk.charged == 0
    assert lab.store.ledger(run) == []  # an incomplete answer plans nothing
    clerk.held.release.set()
    async with lab.working(clerk.agent):
        assert await lab.result(run) == "Done."
    assert clerk.found == [None, SAID[:36]]
    assert clerk.charged == 1


async def test_a_cancel_in_the_middle_ends_the_stream_and_no_tool_is_called(
    lab: Lab, fake: FakeModel
) -> None:
    clerk = Clerk(fake)
    async with lab.working(clerk.agent):
        run = await lab.client.start(clerk.agent)
        await clerk.held.reached.wait()
        await lab.client.cancel(run, by="Ann", why="wrong card")
        assert (await lab.end(run)).state == "cancelled"
    assert clerk.charged == 0
    assert len(fake.requests) == 1
    assert lab.store.ledger(run) == []


async def test_a_custom_reader_plans_the_calls_of_an_answer_of_another_form(lab: Lab) -> None:
    def planned(answer: Any) -> list[Planned]:
        return [Planned(one, "work", {}, 0) for one in answer["wants"]]

    async def ask() -> Any:
        return {"wants": ["x-1", "x-2"]}

    async def work() -> str:
        return "worked"

    async def body(ctx: andon.Context) -> Any:
        answer = await ctx.model(ask, calls=planned)
        await ctx.event("go")
        return [await ctx.tool(one, "work", {}, work) for one in answer["wants"]]

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        await lab.reach(run, "suspended")
        states = {row.key: row.state for row in lab.store.ledger(run)}
        assert states == {"x-1": "planned", "x-2": "planned"}
        assert await lab.replayed(run) == ["worked", "worked"]
    assert {row.state for row in lab.store.ledger(run)} == {"confirmed"}

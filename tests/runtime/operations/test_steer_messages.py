"""Instructions of people to a running run: delivered in order, once, the same on replay."""

from typing import Any

import pytest
from tests.runtime.harness import Held, Lab, agent, declare_lost

import andon
from andon.errors import BadInput, IllegalTransition, NotFound


def contents(words: list[Any]) -> list[tuple[str, str]]:
    return [(one.change, one.text) for one in words]


async def test_an_instruction_is_delivered_once_at_the_next_boundary(lab: Lab) -> None:
    held = Held()

    async def body(ctx: andon.Context) -> Any:
        first = await ctx.steered()
        await ctx.step(held.here)
        second = await ctx.steered()
        third = await ctx.steered()
        await ctx.event("go")
        return [contents(first), contents(second), contents(third)]

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        await held.reached.wait()
        added = await lab.client.steer(run, "be brief", by="Ann")
        await lab.client.steer(run, "in English", revise=added.id)
        await lab.client.steer(run, retract=added.id)
        held.release.set()
        found = await lab.replayed(run)
    assert found == [
        [],
        [["add", "be brief"], ["revise", "in English"], ["retract", ""]],
        [],
    ]


async def test_an_instruction_survives_the_loss_of_the_worker_that_received_it(
    lab: Lab,
) -> None:
    held = Held()

    async def body(ctx: andon.Context) -> Any:
        said = [one.message["content"] for one in await ctx.steered()]
        await ctx.step(held.here)
        return said

    one = agent(body)
    run = await lab.client.start(one)
    await lab.client.steer(run, "be brief", by="Ann")
    async with lab.working(one) as lost:
        await held.reached.wait()
        async with lab.working(one) as survivor:
            declare_lost(survivor, lost)
            assert await lab.result(run) == ["A new goal (from Ann): be brief"]
        held.release.set()


async def test_an_invalid_instruction_is_refused(local: Lab) -> None:
    async def body(ctx: andon.Context) -> None:
        await ctx.event("go")

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        with pytest.raises(BadInput, match="expected a text, found none"):
            await local.client.steer(run, " ")
        with pytest.raises(NotFound, match="under the id 'x'; known: none"):
            await local.client.steer(run, "other", revise="x")
        known = await local.client.steer(run, "one")
        with pytest.raises(NotFound, match=f"known: {known.id}"):
            await local.client.steer(run, retract="x")
        with pytest.raises(BadInput, match="takes no text"):
            await local.client.steer(run, "text", retract=known.id)
        with pytest.raises(BadInput, match="found both"):
            await local.client.steer(run, "text", retract=known.id, revise=known.id)
        await local.client.send(run, "go")
        await local.end(run)
        with pytest.raises(IllegalTransition, match="while succeeded"):
            await local.client.steer(run, "too late")


async def test_a_revision_quotes_the_current_text_of_the_instruction(local: Lab) -> None:
    async def body(ctx: andon.Context) -> Any:
        await ctx.event("go")
        return [one.message["content"] for one in await ctx.steered()]

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        first = await local.client.steer(run, "be brief")
        second = await local.client.steer(run, "be polite", revise=first.id)
        await local.client.steer(run, "be both", revise=first.id)
        await local.client.steer(run, retract=second.id)
        with pytest.raises(NotFound, match="no instruction is in force"):
            await local.client.steer(run, "again", revise=first.id)
        assert await local.replayed(run) == [
            "A new goal: be brief",
            "Instead of 'be brief': be polite",
            "Instead of 'be polite': be both",
            "No longer: be both",
        ]

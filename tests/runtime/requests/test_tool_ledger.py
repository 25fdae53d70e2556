"""The ledger of a finished run, for a transcript repair: every uncertain call is in doubt."""

import contextlib
from typing import Any

import pytest
from tests.runtime.harness import Lab, agent

import andon
from andon import transcript
from andon.errors import Refused
from andon.runtime.requests.tool_ledger import take_over
from andon.transcript import IN_DOUBT, NOT_STARTED, Call, Done


async def answered(*names: str) -> Any:
    return {"content": [tool_use(name) for name in names]}


def tool_use(name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"id_{name}", "name": name, "input": {}}


async def fine() -> str:
    return "receipt 1"


async def declined() -> None:
    raise andon.did_not_happen("card declined")


async def lost() -> None:
    raise TimeoutError("nobody knows")


def taken_back(_: str) -> None:
    """Its undo."""


@andon.effect_of(undo=taken_back)
async def booked() -> str:
    return "booking 1"


async def given_up(lab: Lab, *tools: Any, asked: bool = False) -> Any:
    """The ledger of a run that was cancelled after it had called these."""

    async def body(ctx: andon.Context) -> None:
        await ctx.model(answered, "fine", "declined", "booked", "lost")
        for one in tools:
            with contextlib.suppress(andon.StepFailed):
                await ctx.tool(f"id_{one.__name__}", one.__name__, {}, one)
        await ctx.event("never")

    one = agent(body)
    async with lab.working(one):
        run = await lab.client.start(one)
        await lab.reach(run, "suspended")
        assert bool(lab.store.asks(run)) is asked
        with pytest.raises(Refused, match="it may still call its tools"):
            await lab.client.ledger(run)
        await lab.client.cancel(run)
        await lab.end(run)
        return await lab.client.ledger(run)


def call(name: str) -> Call:
    return Call(f"id_{name}", name, {}, 1)


async def test_the_ledger_knows_the_outcome_of_each_call(lab: Lab) -> None:
    ledger = await given_up(lab, fine, declined, booked)
    assert ledger(call("fine")) == Done("receipt 1")
    assert ledger(call("declined")) == Done("DidNotHappen: card declined", error=True)
    assert ledger(call("booked")) == Done(
        "Undone: whatever this tool call had done was taken back.", error=True
    )
    assert ledger(call("lost")) is NOT_STARTED
    assert ledger(call("never seen")) is None


async def test_an_effect_in_doubt_is_in_doubt_in_the_ledger(lab: Lab) -> None:
    ledger = await given_up(lab, lost, asked=True)
    assert ledger(call("lost")) is IN_DOUBT


async def test_a_run_whose_conversation_continues_elsewhere_does_not_act_any_more(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> str:
        answer = await ctx.model(answered, "fine", "booked")
        await ctx.tool("id_booked", "booked", {}, booked)
        await ctx.event("go")
        return str(await ctx.tools(answer, [fine]))

    one = agent(body)
    async with lab.working(one):
        old, heir = await lab.client.start(one), await lab.client.start(one)
        await lab.reach(old, "suspended")
        await lab.reach(heir, "suspended")
        take_over(lab.store, old, old)
        take_over(lab.store, "never seen", heir)
        assert (await lab.client.get(old)).state == "suspended"
        take_over(lab.store, old, heir)
        take_over(lab.store, old, heir)
        assert (await lab.client.get(old)).state == "killed"
        await lab.client.send(heir, "go")
        await lab.result(heir)
        take_over(lab.store, heir, old)
    assert (await lab.client.get(heir)).state == "succeeded"
    ledger = await lab.client.ledger(old)
    assert ledger(call("fine")) is NOT_STARTED
    assert ledger(call("booked")) == Done("booking 1")  # and not undone


async def test_a_repair_from_the_ledger_of_a_run_is_complete(lab: Lab) -> None:
    ledger = await given_up(lab, fine, declined, booked)
    answer = await answered("fine", "lost")
    talk = [{"role": "user", "content": "go"}, *transcript.turn(answer)]
    found = transcript.repair([*talk, {"role": "user", "content": "Hello?"}], ledger=ledger)
    assert [one.name for one in found.to_run] == ["lost"]
    whole = transcript.repair(found.messages, ledger={"id_lost": Done("at last")}).messages
    assert not transcript.check(whole)
    results = [block["content"] for block in whole[2]["content"] if "tool_use_id" in block]
    assert results == ["receipt 1", "at last"]

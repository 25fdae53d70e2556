"""`andon resume`: a stranded run resumes once the code fits its journal again."""

import asyncio
from typing import Any

import pytest

import andon
from andon.errors import Conflict, IllegalTransition
from andon.runtime.client import Client
from andon.runtime.requests import requests
from andon.store import open_store
from andon.store.store import MoveRun


async def step(number: int) -> int:
    return number


def agent_with(argument: int, gate: asyncio.Event) -> Any:
    @andon.agent(name="changing")
    async def changing(ctx: andon.Context) -> int:
        found: int = await ctx.step(step, argument)
        await gate.wait()
        return found + int(await ctx.step(step, 100))

    return changing


async def strand(url: str) -> str:
    shut, open_ = asyncio.Event(), asyncio.Event()
    open_.set()
    async with Client(url) as client:
        run_id = await client.start(agent_with(1, shut))
        task = asyncio.ensure_future(client.run(agent_with(1, shut), id=run_id))
        while len(await client.journal(run_id)) < 2:
            await asyncio.sleep(0.01)
        task.cancel()
    async with Client(url) as client:
        with pytest.raises(andon.StepFailed, match="Diverged"):
            await client.run(agent_with(2, open_), id=run_id)
    return run_id


def test_a_stranded_run_resumes_with_code_that_fits(store_url: str) -> None:
    async def main() -> None:
        run_id = await strand(store_url)
        open_ = asyncio.Event()
        open_.set()
        async with Client(store_url) as client:
            assert (await client.get(run_id)).state == "stranded"
            await client.resume(run_id)
            assert await client.run(agent_with(1, open_), id=run_id) == 101
            assert (await client.get(run_id)).error is None

    asyncio.run(main())


def test_a_run_that_is_not_stranded_is_not_resumed(store_url: str) -> None:
    store = open_store(store_url)
    run_id = requests.start(store, agent_with(1, asyncio.Event()))
    with pytest.raises(IllegalTransition, match="cannot resume while queued"):
        requests.resume(store, run_id)
    [refused] = store.write([MoveRun(run_id=run_id, seen="stranded", state="queued")])
    assert isinstance(refused, Conflict)
    store.close()

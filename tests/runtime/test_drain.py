"""Leaving, from inside: what is in flight when a worker is told to go."""

import asyncio
import json
import threading
import time
from typing import Any

import pytest
from tests.runtime.harness import Lab, agent, until

import andon
from andon.runtime.worker import Worker
from andon.settings import Settings
from andon.store import open_store
from andon.store.store import Claim


def told_at_the_claim(worker: Worker) -> None:
    """Tell it to go once its claim is committed, and before it knows."""
    write = worker.store.write

    def writes(batch: Any) -> Any:
        outcomes = write(batch)
        if any(getattr(outcome, "runs", None) for outcome in outcomes):
            worker.tell("test")
        return outcomes

    worker.store.write = writes


# ── a claim in flight ─────────────────────────────────────────────────────────────────────────────


async def test_what_a_leaving_worker_has_just_claimed_goes_back_to_where_it_waited(
    lab: Lab,
) -> None:
    called: list[str] = []

    async def body(ctx: andon.Context) -> None:
        called.append(ctx.run_id)

    one = agent(body)
    run_id = await lab.client.start(one)
    before = lab.store.run(run_id)
    for _ in range(2):
        async with lab.working(one, poll_seconds=60) as worker:
            told_at_the_claim(worker)
            await until(lambda worker=worker: worker.drain.told)
    assert not called, "nothing of it was executed"
    after = lab.store.run(run_id)
    assert (after.state, after.available_at) == ("queued", before.available_at)
    assert [one.ending for one in lab.store.attempts(run_id)] == ["untouched"] * 2
    urgent = await lab.client.start(one, priority=1)
    async with lab.working(one, concurrency=1):
        await lab.end(run_id)
    assert called == [urgent, run_id], "it is not ahead of what is more urgent"

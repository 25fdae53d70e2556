"""Leases: a worker that lost its lease writes nothing, reports that, and registers anew."""

import asyncio
import os
import subprocess
import time
from typing import Any

import pytest
from tests.runtime.harness import Held, Lab, agent, until

import andon
from andon.errors import StoreError
from andon.host import proc
from andon.runtime.worker.worker import Worker
from andon.store.sqlite.store import SqliteStore
from andon.store.store import Append, Beat, Claim, Settle


def declare_silent(lab: Lab, worker: Worker) -> None:
    """Declare it silent, as another worker does when a lease has ended."""
    message = Claim(
        worker_id="witness",
        agents=(),
        limit=0,
        dead=((worker.worker_id, "silent:its lease ended"),),
    )
    [outcome] = lab.store.write([message])
    assert outcome.returned >= 1


async def test_a_worker_that_lost_its_lease_writes_nothing_and_registers_anew(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    held = Held()
    calls: list[str] = []

    async def work() -> str:
        calls.append("work")
        await held.here()
        return "worked"

    async def pay() -> None:
        calls.append("pay")

    async def body(ctx: andon.Context) -> str:
        found = str(await ctx.step(work))
        await ctx.effect(pay)
        return found

    one = agent(body)
    async with lab.working(one, lease_seconds=600) as worker:
        before = worker.worker_id
        run = await lab.client.start(one)
        await held.reached.wait()
        declare_silent(lab, worker)
        written = len(await lab.journal(run))
        held.release.set()
        # The same process under another name: it claims the run again and continues.
        await until(lambda: worker.worker_id != before)
        assert await lab.result(run) == "worked"
        entries = await lab.journal(run)
    assert calls == ["work", "work", "pay"]
    fences = {entry.fence for entry in entries[written:]}
    assert len(fences) == 1  # nothing under the old one
    assert "fenced" in caplog.text
    assert [row.ending for row in lab.store.attempts(run)] == ["interrupted", "succeeded"]


async def test_a_refused_heartbeat_ends_everything_in_hand(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    """The code is cancelled although it does not access the store."""
    cancelled: list[int] = []
    held = asyncio.Event()

    async def endless(attempt: int) -> str:
        if attempt > 1:
            return "over"
        held.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(1)
            raise
        return "never"

    async def body(ctx: andon.Context) -> str:
        number = ctx.attempt

        async def work() -> str:
            return await endless(number)

        return str(await ctx.step(work))

    one = agent(body)
    async with lab.working(one, lease_seconds=0.4) as worker:
        run = await lab.client.start(one)
        await held.wait()
        declare_silent(lab, worker)
        assert await lab.result(run) == "over"
    assert cancelled == [1]
    assert "is fenced: its lease ended. It starts over." in caplog.text


async def test_no_effect_is_started_after_the_lease_has_ended(lab: Lab) -> None:
    """Trust ends before the lease does; then the lease is renewed first, or nothing is started."""
    calls: list[int] = []
    held = Held()

    async def pay() -> str:
        calls.append(1)
        return "paid"

    async def body(ctx: andon.Context) -> str:
        await ctx.step(held.here)
        return str(await ctx.effect(pay))

    one = agent(body)
    async with lab.working(one, lease_seconds=600) as worker:
        run = await lab.client.start(one)
        await held.reached.wait()
        write = worker.store.write
        beats: list[Beat] = []

        def watched(batch: Any) -> Any:
            beats.extend(message for message in batch if isinstance(message, Beat))
            return write(batch)

        worker.store.write = watched
        worker.lease.trusted_until = 0.0  # as after a freeze
        held.release.set()
        assert await lab.result(run) == "paid"
        assert beats
    assert calls == [1]


async def test_a_worker_that_was_frozen_during_a_renewal_renews_again(lab: Lab) -> None:
    """The answer grants the lease; by the time the worker reads it, the lease may be over."""
    renewals: list[int] = []
    trusted: list[bool] = []
    held = Held()

    async def pay() -> str:
        trusted.append(worker.lease.trusted)
        return "paid"

    async def body(ctx: andon.Context) -> str:
        await ctx.step(held.here)
        return str(await ctx.effect(pay))

    one = agent(body)
    async with lab.working(one, lease_seconds=600) as worker:
        run = await lab.client.start(one)
        await held.reached.wait()
        renew = worker.lease.renew

        def frozen() -> None:
            renew()
            renewals.append(1)
            if len(renewals) < 5:
                worker.lease.trusted_until = 0.0

        worker.lease.renew = frozen  # type: ignore[method-assign]
        worker.lease.trusted_until = 0.0
        held.release.set()
        assert await lab.result(run) == "paid"
    assert trusted == [True]


async def test_blocking_the_loop_for_longer_than_the_lease_keeps_it(lab: Lab) -> None:
    """Heartbeats come from a thread of their own."""
    calls: list[int] = []

    async def rude() -> str:
        calls.append(1)
        time.sleep(1.5)  # noqa: ASYNC251 (that is the point)
        return "done"

    async def body(ctx: andon.Context) -> str:
        return str(await ctx.step(rude))

    async def nothing(ctx: andon.Context) -> None: ...

    one = agent(body)
    async with lab.working(one, lease_seconds=0.6) as worker:
        before = worker.worker_id
        run = await lab.client.start(one)
        assert await lab.result(run) == "done"
        assert worker.worker_id == before
        lease = next(row.lease_until for row in lab.store.workers() if row.id == before)
        assert lease > lab.store.now()
    assert calls == [1]
    assert len(lab.store.attempts(run)) == 1


async def test_a_jump_of_the_clock_changes_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(ctx: andon.Context) -> float:
        before = ctx.now()
        monkeypatch.setattr(time, "time", lambda: real() + 86_400 * 365)
        await ctx.sleep(0.05)
        after = ctx.now()
        monkeypatch.setattr(time, "time", lambda: real() - 86_400 * 365)
        await ctx.step(str, 1)
        return (after - before).total_seconds()

    real = time.time
    one = agent(body)
    async with lab.working(one, lease_seconds=0.6) as worker:
        before = worker.worker_id
        run = await lab.client.start(one)
        assert 0.04 < await lab.result(run) < 30
        assert worker.worker_id == before
    monkeypatch.undo()
    assert len(lab.store.attempts(run)) == 1


async def test_a_silent_worker_is_replaced_when_its_lease_ends(lab: Lab) -> None:
    held = Held()

    async def body(ctx: andon.Context) -> str:
        await ctx.step(held.here)
        return "over"

    one = agent(body)
    async with lab.working(one, lease_seconds=0.4) as frozen:
        run = await lab.client.start(one)
        await held.reached.wait()
        frozen.lease.ended.set()  # its heart stops, and nothing else
        async with lab.working(one, lease_seconds=0.4, poll_seconds=0.05):
            assert await lab.result(run) == "over"
        held.release.set()
    states = [row.ending for row in lab.store.attempts(run)]
    assert states == ["interrupted", "succeeded"]


def test_a_zombie_worker_counts_as_gone() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert os.path.exists(f"/proc/{process.pid}/stat")
        assert not proc.alive(process.pid)


async def test_a_run_whose_last_writes_all_failed_is_not_held_for_ever(
    local: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later writes build on one that did not arrive: refused. Then the disk fails once more."""
    failed: list[str] = []
    write = SqliteStore._write

    def unreliable(store: SqliteStore, batch: Any) -> Any:
        for message in batch:
            bare = isinstance(message, Settle) and not message.entries
            kind = "return" if bare else "start" if isinstance(message, Append) else ""
            if kind and kind not in failed:
                failed.append(kind)
                raise StoreError("disk I/O error")
        return write(store, batch)

    async def pay() -> str:
        return "paid"

    async def body(ctx: andon.Context) -> str:
        return str(await ctx.effect(pay))

    one = agent(body)
    monkeypatch.setattr(SqliteStore, "_write", unreliable)
    async with local.working(one):
        assert await local.result(await local.client.start(one)) == "paid"
    assert failed == ["start", "return"]

"""Transactions: the user's writes and the journal entry are one commit, exactly once."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.runtime.harness import Lab, agent, declare_lost, until

import andon


def sql(lab: Lab, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement on a connection that is independent of andon."""
    if lab.url.startswith("sqlite"):
        import apsw

        with apsw.Connection(str(lab.store.path)) as db:
            db.set_busy_timeout(10_000)
            return list(db.execute(statement))
    import psycopg

    with psycopg.connect(lab.url, autocommit=True) as db:
        cursor = db.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


@pytest.fixture(autouse=True)
def _orders(request: pytest.FixtureRequest) -> None:
    lab = request.getfixturevalue("lab" if "lab" in request.fixturenames else "local")
    sql(lab, "CREATE TABLE IF NOT EXISTS orders (n INTEGER PRIMARY KEY)")
    sql(lab, "DELETE FROM orders")


def numbers(lab: Lab) -> list[int]:
    return sorted(row[0] for row in sql(lab, "SELECT n FROM orders"))


def insert(connection: Any, n: int) -> dict[str, int]:
    connection.execute(f"INSERT INTO orders VALUES ({n})")
    return {"inserted": n}


async def test_the_writes_and_the_result_are_stored_once(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> list[Any]:
        found = [await ctx.transaction(insert, n) for n in (1, 2)]
        await ctx.event("go")
        return found

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        assert await lab.replayed(run) == [{"inserted": 1}, {"inserted": 2}]
    assert numbers(lab) == [1, 2]
    assert [entry.state for entry in await lab.journal(run, "step")] == ["done", "done"]


async def test_an_error_rolls_the_writes_back(lab: Lab) -> None:
    def half(connection: Any) -> None:
        insert(connection, 1)
        raise ValueError("changed my mind")

    async def body(ctx: andon.Context) -> str:
        try:
            await ctx.transaction(half)
        except ValueError as error:
            found = str(error)
        await ctx.step(str, "and goes on")
        await ctx.event("go")
        return found

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        assert await lab.replayed(run) == "half: ValueError: changed my mind"
    assert numbers(lab) == []


async def test_a_result_that_cannot_be_stored_rolls_the_writes_back(lab: Lab) -> None:
    def odd(connection: Any) -> object:
        insert(connection, 1)
        return object()

    async def body(ctx: andon.Context) -> str:
        try:
            await ctx.transaction(odd)
        except andon.StepFailed as error:
            return error.error
        return "stored"

    async with lab.working(agent(body)):
        assert await lab.result(await lab.client.start("agent")) == "NotStorable"
    assert numbers(lab) == []


async def test_a_transaction_is_retried_as_a_whole(lab: Lab) -> None:
    calls: list[int] = []

    def third_time(connection: Any) -> int:
        calls.append(1)
        insert(connection, len(calls))
        if len(calls) < 3:
            raise ValueError("again")
        return len(calls)

    async def body(ctx: andon.Context) -> int:
        return int(await ctx.transaction(third_time, retries=andon.Retry(5, first_seconds=0.01)))

    async with lab.working(agent(body)):
        assert await lab.result(await lab.client.start("agent")) == 3
    assert numbers(lab) == [3]


def commit(connection: Any) -> None:
    insert(connection, 1)
    connection.execute("COMMIT")


def roll_back(connection: Any) -> None:
    insert(connection, 1)
    connection.execute("ROLLBACK")


@pytest.mark.parametrize("end", [commit, roll_back])
async def test_the_user_cannot_end_the_transaction(lab: Lab, end: Callable[..., None]) -> None:
    """Otherwise the writes could be stored without the entry, and be repeated."""

    async def body(ctx: andon.Context) -> str:
        try:
            await ctx.transaction(end)
        except andon.StepFailed as error:
            found = str(await ctx.step(str, error.name))
        await ctx.event("go")
        return found

    async with lab.working(agent(body)):
        assert await lab.replayed(await lab.client.start("agent")) == end.__name__
    if lab.url.startswith("sqlite"):
        assert numbers(lab) == []


async def test_the_user_cannot_write_to_andons_tables(local: Lab) -> None:
    """With PostgreSQL its own privileges decide that."""

    def forge(connection: Any) -> None:
        connection.execute("UPDATE andon_runs SET state = 'succeeded'")

    async def body(ctx: andon.Context) -> str:
        try:
            await ctx.transaction(forge)
        except andon.StepFailed as error:
            return error.message
        return "forged"

    async with local.working(agent(body)):
        assert "not authorized" in await local.result(await local.client.start("agent"))


async def test_a_database_error_that_the_function_swallows_fails_the_step(lab: Lab) -> None:
    """On PostgreSQL the transaction is lost with it: that must not look like an outage."""

    def swallow(connection: Any) -> str:
        insert(connection, 1)
        try:
            insert(connection, 1)
        except Exception:  # noqa: BLE001
            return "swallowed"
        return "twice"

    async def body(ctx: andon.Context) -> str:
        try:
            return str(await ctx.transaction(swallow))
        except andon.StepFailed:
            return "failed"

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        found = await lab.result(run)
    sqlite = lab.url.startswith("sqlite")
    assert found == ("swallowed" if sqlite else "failed")
    assert numbers(lab) == ([1] if sqlite else [])
    assert len(lab.store.attempts(run)) == 1


async def test_a_fenced_owner_writes_nothing(lab: Lab) -> None:
    """Frozen before its transaction begins; it wakes up when another worker has done it."""
    reached, go = threading.Event(), threading.Event()
    calls: list[int] = []

    def number(connection: Any) -> int:
        calls.append(1)
        insert(connection, len(calls))
        return len(calls)

    async def body(ctx: andon.Context) -> int:
        return int(await ctx.transaction(number))

    one = agent(body)
    async with lab.working(one) as lost:
        transact = lost.store.transact

        def frozen(append: Any) -> None:
            reached.set()
            go.wait(20)
            transact(append)

        lost.store.transact = frozen
        run = await lab.client.start(one)
        await until(reached.is_set)
        async with lab.working(one) as survivor:
            declare_lost(survivor, lost)
            assert await lab.result(run) == 1
        go.set()
        await until(lambda: not lost.active)
    assert len(calls) == 2
    assert numbers(lab) == [1]
    assert [entry.state for entry in await lab.journal(run, "step")] == ["done"]


async def test_other_branches_write_before_and_after_it(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> list[Any]:
        async def steps(n: int) -> list[int]:
            return [await ctx.step(int, 10 * n + m) for m in range(10)]

        async def inserts(n: int) -> list[Any]:
            return [await ctx.transaction(insert, 10 * n + m) for m in range(5)]

        found = await asyncio.gather(steps(0), inserts(0), steps(1), inserts(1), steps(2))
        ctx.uuid()
        await ctx.event("go")
        return [len(one) for one in found]

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        assert await lab.replayed(run) == [10, 5, 10, 5, 10]
    assert numbers(lab) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]


async def test_a_transaction_waits_for_earlier_entries_in_flight(lab: Lab) -> None:
    """Its entry comes after theirs, so it must not be committed before them."""
    over = asyncio.Event()

    async def body(ctx: andon.Context) -> None:
        step = asyncio.create_task(ctx.step(str, 1))
        while not ctx._attempt.journal._flying:
            await asyncio.sleep(0)
        await ctx.transaction(insert, 1)
        await step

    @andon.agent
    async def neighbour(ctx: andon.Context) -> None:
        await over.wait()  # with two runs, commits are made by the writer's thread

    one = agent(body)
    async with lab.working(one, neighbour) as worker:
        await lab.client.start(neighbour)
        await until(lambda: len(worker.active) == 1)
        write = worker.store.write

        def slow(batch: Any) -> Any:
            time.sleep(0.05)
            return write(batch)

        worker.store.write = slow
        assert (await lab.end(await lab.client.start(one))).state == "succeeded"
        over.set()
    assert numbers(lab) == [1]


async def test_a_timeout_around_a_transaction_neither_tears_it_nor_repeats_it(lab: Lab) -> None:
    go = threading.Event()

    def slow(connection: Any) -> None:
        insert(connection, 1)
        go.wait(20)

    async def body(ctx: andon.Context) -> str:
        try:
            async with asyncio.timeout(0.05):
                await ctx.transaction(slow)
        except TimeoutError:
            found = str(await ctx.step(str, "timed out"))
        await ctx.event("go")
        return found

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        asyncio.get_running_loop().call_later(0.2, go.set)
        assert await lab.replayed(run) == "timed out"
    assert numbers(lab) == [1]


async def test_an_async_function_is_refused(lab: Lab) -> None:
    async def insert_too(connection: Any) -> None: ...

    async def body(ctx: andon.Context) -> str:
        try:
            await ctx.transaction(insert_too)
        except andon.Refused as error:
            return str(error)
        return "executed"

    async with lab.working(agent(body)):
        assert "plain function" in await lab.result(await lab.client.start("agent"))

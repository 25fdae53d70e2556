"""The client: starting, finding and waiting for runs."""

import asyncio
import datetime as dt
import threading
import time
from typing import Any

import pytest
from tests.runtime.harness import Lab, agent, until

import andon
from andon.errors import BadInput, Conflict, NotFound, StoreError, StoreUnavailable
from andon.runtime.agent import Agent
from andon.runtime.client import Client
from andon.runtime.requests import requests
from andon.settings import Settings


async def hello(ctx: andon.Context, name: str = "world", *, times: int = 1) -> str:
    return f"hello {name} " * times


async def everything(ctx: andon.Context, **anything: Any) -> dict[str, Any]:
    return anything


async def test_a_run_is_started_by_agent_or_by_name(lab: Lab) -> None:
    one = agent(hello)
    first = await lab.client.start(one, "a")  # no worker has registered it yet
    async with lab.working(one):
        second = await lab.client.start("agent", name="b", times=2)
        assert await lab.result(first) == "hello a "
        assert await lab.result(second) == "hello b hello b "


async def test_runs_that_are_started_at_the_same_time_share_a_commit(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, sizes, write = agent(hello), [], lab.client._store.write

    def counted(batch: list[Any]) -> Any:
        sizes.append(len(batch))
        return write(batch)

    monkeypatch.setattr(lab.client._store, "write", counted)
    starts = [lab.client.start(one, str(number), id=f"r-{number % 9}") for number in range(10)]
    *ids, other = await asyncio.gather(*starts, return_exceptions=True)
    assert sizes == [10]
    assert ids == [f"r-{number}" for number in range(9)]
    assert isinstance(other, Conflict)  # of two inputs under one id the first counts


async def test_concurrent_starts_look_an_agent_name_up_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lab.working(Agent(hello, name="agent", version="1")):
        pass
    asked, agents = [], lab.client._store.agents

    def counted(name: str) -> Any:
        asked.append(name)
        return agents(name)

    monkeypatch.setattr(lab.client._store, "agents", counted)
    given_up = asyncio.ensure_future(lab.client.start("agent", "a"))
    starts = asyncio.gather(*(lab.client.start("agent", str(number)) for number in range(10)))
    await asyncio.sleep(0)
    given_up.cancel()  # the other starts still need the answer
    first = await starts
    assert asked == ["agent"]
    async with lab.working(Agent(hello, name="agent", version="2")):
        pass
    second = await lab.client.start("agent", "b")
    assert asked == ["agent", "agent"], "an earlier lookup may be out of date"
    versions = [(await lab.client.get(run_id)).version for run_id in (*first, second)]
    assert versions == ["1"] * 10 + ["2"]


async def test_starting_is_idempotent_on_the_id(lab: Lab) -> None:
    one = agent(hello)
    assert await lab.client.start(one, "a", id="r-7") == "r-7"
    assert await lab.client.start(one, "a", id="r-7") == "r-7"
    assert await lab.client.start(one, name="a", id="r-7") == "r-7"  # the same input
    with pytest.raises(Conflict, match="r-7"):
        await lab.client.start(one, "b", id="r-7")
    with pytest.raises(Conflict, match="r-7"):
        await lab.client.start(agent(hello, name="other"), "a", id="r-7")
    assert len(await lab.client.list()) == 1


async def test_arguments_that_do_not_fit_are_refused(local: Lab) -> None:
    async def strict(ctx: andon.Context, order: str, *, limit: int) -> None: ...

    one = agent(strict)
    async with local.working(one, andon.agent(everything)):
        for args, kwargs, words in (
            ((), {}, "missing argument 'order', 'limit'"),
            (("a",), {}, "missing argument 'limit'"),
            (("a", 1, 2), {}, "at most 2"),
            (("a",), {"limit": 1, "order": "b"}, "given twice"),
            (("a",), {"limt": 1}, "did you mean 'limit'"),
        ):
            for target in (one, "agent"):
                with pytest.raises(BadInput, match=words):
                    await local.client.start(target, *args, **kwargs)
        run = await local.client.start("everything", a=1, b=[2])
        assert await local.result(run) == {"a": 1, "b": [2]}


async def test_an_argument_of_the_wrong_type_is_refused_with_its_name(local: Lab) -> None:
    async def typed(ctx: andon.Context, when: dt.date) -> str:
        return when.isoformat()

    async with local.working(agent(typed)):
        assert await local.result(await local.client.start("agent", "2026-01-02")) == "2026-01-02"
        with pytest.raises(andon.errors.BadInput, match="argument when: expected date"):
            await local.client.start("agent", "tomorrow")


@pytest.mark.parametrize(
    "options",
    [
        {"id": ""},
        {"id": "x" * 201},
        {"id": "a\nb"},
        {"id": "a\0"},
        {"priority": "high"},
        {"priority": 1.5},
        {"priority": True},
        {"priority": 2**40},
        {"labels": {"a": 1}},
        {"labels": {"a": "\0"}},
        {"labels": {1: "a"}},
    ],
)
async def test_contradictory_options_are_refused(lab: Lab, options: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        await lab.client.start(agent(hello), **options)
    assert await lab.client.list() == []


async def test_an_unknown_agent_is_refused_with_a_hint(lab: Lab) -> None:
    with pytest.raises(NotFound, match="no worker has registered"):
        await lab.client.start("refunds")
    async with lab.working(agent(hello, name="refunds")):
        with pytest.raises(NotFound, match="did you mean 'refunds'"):
            await lab.client.start("refund")


@pytest.mark.parametrize("kind", ["seconds", "datetime"])
async def test_a_run_may_start_later(lab: Lab, kind: str) -> None:
    one = agent(hello)
    async with lab.working(one):
        at = time.time() + 0.4
        when = at if kind == "seconds" else dt.datetime.fromtimestamp(at, dt.UTC)
        run = await lab.client.start(one, at=when)
        assert lab.store.run(run).state == "queued"
        await lab.result(run)
        [attempt] = lab.store.attempts(run)
    assert at <= attempt.claimed_at < at + 2


async def test_higher_priority_goes_first(lab: Lab) -> None:
    order: list[str] = []

    async def note(ctx: andon.Context, name: str) -> None:
        order.append(name)

    one = agent(note)
    for name, priority in (("low", -1), ("normal", 0), ("high", 5), ("normal too", 0)):
        await lab.client.start(one, name, priority=priority)
        now = lab.store.now()  # in SQLite it counts milliseconds
        await until(lambda: lab.store.now() > now)  # noqa: B023
    async with lab.working(one, concurrency=1):
        await until(lambda: len(order) == 4)
    assert order == ["high", "normal", "normal too", "low"]


async def test_labels_reach_the_agent_and_the_list(lab: Lab) -> None:
    async def show(ctx: andon.Context) -> dict[str, str]:
        return ctx.labels

    one = agent(show)
    async with lab.working(one):
        run = await lab.client.start(one, labels={"team": "blau ü", "tier": "1"})
        assert await lab.result(run) == {"team": "blau ü", "tier": "1"}
    await lab.client.start(one, labels={"team": "red"})
    assert [found.id for found in await lab.client.list(label=("team", "blau ü"))] == [run]
    assert await lab.client.list(label=("team", "green")) == []


async def test_runs_are_listed_by_pages_and_filters(lab: Lab) -> None:
    one, other = agent(hello), agent(hello, name="other")
    started = [await lab.client.start(one, id=f"r{n}") for n in range(7)]
    await lab.client.start(other, id="x")
    pages: list[list[str]] = []
    before = None
    while page := await lab.client.list(agent="agent", limit=3, before=before):
        pages.append([run.id for run in page])
        before = page[-1]
    assert pages == [["r6", "r5", "r4"], ["r3", "r2", "r1"], ["r0"]]
    async with lab.working(other):
        await lab.end("x")
    assert [run.id for run in await lab.client.list(states=("succeeded",))] == ["x"]
    queued = await lab.client.list(states=("queued", "running"))
    assert sorted(run.id for run in queued) == started
    with pytest.raises(BadInput, match="expected one of"):
        await lab.client.list(states=("done",))


async def test_waiting_for_a_run_has_a_limit(lab: Lab) -> None:
    run = await lab.client.start(agent(hello))
    with pytest.raises(andon.Unresolved, match=r"within 0\.05 s"):
        await lab.client.wait(run, timeout=0.05)
    with pytest.raises(NotFound):
        await lab.client.wait("nobody", timeout=1)


async def test_a_cancellation_that_coincides_with_the_end_of_the_run_ends_the_wait(
    local: Lab,
) -> None:
    async with local.working(agent(hello)):
        for turns in range(12):
            run = await local.client.start("agent")
            waiting = asyncio.ensure_future(local.client.wait(run))
            other = asyncio.ensure_future(local.client.wait(run))
            await asyncio.wait({other}, timeout=20)
            for _ in range(turns):
                await asyncio.sleep(0)
            waiting.cancel()
            done, _ = await asyncio.wait({waiting}, timeout=5)
            assert done


async def test_concurrent_waits_share_one_listener(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listener for each would be a connection for each, and a server has a hundred."""
    listeners: list[Any] = []
    listen_on = lab.client._store.listen_on

    def counted(*given: Any) -> Any:
        listeners.append(given)
        return listen_on(*given)

    monkeypatch.setattr(lab.client._store, "listen_on", counted)
    runs = [await lab.client.start(agent(hello)) for _ in range(20)]
    waiting = asyncio.gather(*(lab.client.wait(run) for run in runs * 2))
    await until(lambda: len(lab.client._ends._ends) == 20)
    async with lab.working(agent(hello)):
        assert {run.state for run in await waiting} == {"succeeded"}
        assert (await lab.client.wait(await lab.client.start("agent"))).state == "succeeded"
    assert len(listeners) == 1


async def test_a_lost_notification_delays_a_wait_only_for_a_moment(
    local: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local.client._store, "listen_on", lambda *_: lambda: None)
    run = await local.client.start(agent(hello))
    waiting = asyncio.ensure_future(local.client.wait(run))
    await until(lambda: bool(local.client._ends._ends))
    async with local.working(agent(hello)):
        assert (await waiting).state == "succeeded"


async def test_a_wait_raises_if_the_store_is_away_for_too_long_and_may_be_repeated(
    local: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> Any:
        raise StoreUnavailable("away")

    run = await local.client.start(agent(hello))
    monkeypatch.setattr(local.client._ends, "_patience_seconds", -1.0)
    with monkeypatch.context() as patch:
        patch.setattr(requests, "over", away)
        waiting = [local.client.wait(run) for _ in range(3)]
        heard = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(one) for one in heard] == [StoreUnavailable] * 3
    async with local.working(agent(hello)):
        assert (await local.client.wait(run)).state == "succeeded"


async def test_closing_the_client_ends_its_waits_with_an_error(local: Lab) -> None:
    async with andon.Client(local.url) as client:
        run = await client.start(agent(hello))
        waiting = asyncio.ensure_future(client.wait(run))
        await until(lambda: bool(client._ends._ends))
    with pytest.raises(StoreError, match="closed"):
        await waiting


async def test_a_client_that_is_closed_before_it_listens_does_not_listen_for_ever(
    local: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer, ended = threading.Event(), threading.Event(), threading.Event()

    def listen_on(*_: Any) -> Any:
        asked.set()
        answer.wait(20)
        return ended.set

    async with andon.Client(local.url) as client:
        run = await client.start(agent(hello))
        monkeypatch.setattr(client._store, "listen_on", listen_on)
        waiting = asyncio.ensure_future(client.wait(run))
        await until(asked.is_set)
        waiting.cancel()
        asyncio.get_running_loop().call_later(0.01, answer.set)
    assert ended.is_set()


async def test_an_agent_that_waits_for_a_run_has_no_branch_for_it(lab: Lab) -> None:
    async def waits(ctx: andon.Context, other: str) -> str:
        state = (await lab.client.wait(other)).state
        return str(await ctx.step(str, state))

    other = await lab.client.start(agent(hello), id="other")
    async with lab.working(agent(waits, name="waits"), agent(hello)):
        run = await lab.client.start("waits", other)
        await lab.end(run)
    [entry] = await lab.journal(run, "step")
    assert entry.place == ":0"


async def test_a_run_is_found_by_a_prefix_of_its_id(lab: Lab) -> None:
    one = agent(hello)
    await lab.client.start(one, id="abc-1")
    await lab.client.start(one, id="abd-1")
    assert (await lab.client.get("abc")).id == "abc-1"
    with pytest.raises(NotFound, match=r"ambiguous id; matches: ab[cd]-1, ab[cd]-1"):
        await lab.client.get("ab")
    with pytest.raises(NotFound):
        await lab.client.get("")


async def test_the_client_reads_the_whole_journal(lab: Lab) -> None:
    async def steps(ctx: andon.Context) -> None:
        await asyncio.gather(*(ctx.step(int, n) for n in range(1100)))

    async with lab.working(agent(steps)):
        run = await lab.client.start("agent")
        await lab.end(run)
    assert len(await lab.journal(run, "step")) == 1100


async def test_a_stranded_run_is_resumed(lab: Lab) -> None:
    async def right(ctx: andon.Context) -> str:
        await ctx.step(str, 1)
        await ctx.event("go")
        return "right"

    async def wrong(ctx: andon.Context) -> None:
        await ctx.step(str, 2)

    async with lab.working(agent(right)):
        run = await lab.client.start("agent")
        await lab.reach(run, "suspended")
    async with lab.working(agent(wrong)):
        await lab.client.send(run, "go")
        assert (await lab.end(run)).state == "stranded"
    async with lab.working(agent(right)):
        await lab.client.resume(run)
        assert await lab.result(run) == "right"


def test_the_sync_client_has_the_same_methods(sqlite_url: str) -> None:
    one = agent(hello)
    with andon.Client.sync(sqlite_url) as client:
        run = client.start(one, "a", id="r")
        assert client.get("r").state == "queued"
        with pytest.raises(andon.Unresolved):
            client.wait(run, timeout=0.01)
        assert client.run(one, "a", id="r") == "hello a "
        assert client.wait(run).result == "hello a "
        assert [found.id for found in client.list()] == ["r"]
        with pytest.raises(NotFound):
            client.send("nobody", "word")
        assert [entry.kind for entry in client.journal("r")] == ["start", "end"]


def test_a_sync_client_of_a_store_that_cannot_be_opened_raises(tmp_path: Any) -> None:
    with (
        pytest.raises(andon.AndonError, match="folder"),
        andon.Client.sync(f"sqlite:///{tmp_path}"),
    ):
        pass


def test_a_given_store_wins_over_the_configured_one(sqlite_url: str) -> None:
    client = Client(sqlite_url, settings=Settings(concurrency=3))
    assert client.settings.store == sqlite_url
    assert client.settings.concurrency == 3


async def test_a_run_is_started_within_the_callers_transaction(lab: Lab) -> None:
    one = agent(hello)
    if lab.url.startswith("sqlite"):
        with pytest.raises(BadInput, match="PostgreSQL"):
            await lab.client.start(one, connection=object())
        return
    import psycopg

    for kind in ("plain", "async"):
        for verdict in ("commit", "rollback"):
            run_id = f"{kind}-{verdict}"
            if kind == "plain":
                connection = psycopg.connect(lab.url)
                await lab.client.start(one, id=run_id, connection=connection)
                getattr(connection, verdict)()
                connection.close()
            else:
                link = await psycopg.AsyncConnection.connect(lab.url)
                await lab.client.start(one, id=run_id, connection=link)
                await getattr(link, verdict)()
                await link.close()
    found = sorted(run.id for run in await lab.client.list())
    assert found == ["async-commit", "plain-commit"]

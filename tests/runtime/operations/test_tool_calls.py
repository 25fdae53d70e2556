"""An agent loop on the providers' own clients: no call and no model request happens twice."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.runtime.harness import Held, Lab, agent, declare_lost, until

import andon
from andon import points, transcript
from andon.store.messages.rows import Filter
from andon.testing import FakeModel, call

FORMATS = ("anthropic", "chat", "responses")
SCRIPT: list[Any] = [[call("charge", amount=10), call("mail", to="ann")], call("log"), "All done."]
NOT_CALLED = "the tool 'work' was not called: it was rejected"
HELLO: list[Any] = [{"role": "user", "content": "hello"}]


@pytest.fixture
def fake() -> Iterator[FakeModel]:
    with FakeModel(SCRIPT) as found:
        yield found


@pytest.fixture(params=FORMATS)
def ask(request: pytest.FixtureRequest, fake: FakeModel) -> Callable[..., Any]:
    return asker(request.param, fake)


def asker(form: str, fake: FakeModel) -> Callable[..., Any]:
    """The provider's own client, called with a list of messages."""
    anthropic, openai = pytest.importorskip("anthropic"), pytest.importorskip("openai")

    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        if form == "anthropic":
            async with anthropic.AsyncAnthropic(
                base_url=fake.url, api_key="fake", max_retries=0
            ) as client:
                yield lambda messages: client.messages.create(
                    model="m", max_tokens=100, messages=messages
                )
            return
        async with openai.AsyncOpenAI(
            base_url=f"{fake.url}/v1", api_key="fake", max_retries=0
        ) as client:
            if form == "chat":
                yield lambda messages: client.chat.completions.create(model="m", messages=messages)
            else:
                yield lambda messages: client.responses.create(model="m", input=messages)

    async def ask(messages: list[Any]) -> Any:
        async with opened() as create:
            return await create(messages)

    return ask


class Shop:
    """The tools, and a record of what they did."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.held = Held()
        self.held.reached.set()

    async def charge(self, amount: int) -> str:
        self.done.append(f"charged {amount}")
        return "ch_1"

    async def mail(self, to: str) -> str:
        self.done.append(f"mailed {to}")
        await self.held.here()
        return "sent"

    async def log(self) -> str:
        self.done.append("logged")
        return "ok"

    @property
    def tools(self) -> list[Callable[..., Any]]:
        return [self.charge, self.mail, self.log]


def looping(shop: Shop, ask: Callable[..., Any], **options: Any) -> Any:
    async def body(ctx: andon.Context) -> str:
        messages = list(HELLO)
        while True:
            answer = await ctx.model(ask, messages)
            messages += transcript.turn(answer)
            results = await ctx.tools(answer, shop.tools, **options)
            if not results:
                return transcript.text(answer)
            messages += results

    return agent(body)


async def test_a_loop_on_each_client_calls_each_tool_once(
    lab: Lab, ask: Callable[..., Any], fake: FakeModel
) -> None:
    shop = Shop()
    async with lab.working(looping(shop, ask)):
        run = await lab.client.start("agent")
        assert await lab.result(run) == "All done."
    assert sorted(shop.done) == ["charged 10", "logged", "mailed ann"]
    assert lab.effects(run) == dict.fromkeys(("charge", "mail", "log"), "confirmed")
    assert [request.status for request in fake.requests] == [200, 200, 200]


async def test_the_answer_and_the_calls_it_plans_are_one_commit(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []  # how much of it is there after each commit

    def look(name: str, _: Any) -> None:
        if name == "writer:after-commit":
            runs = lab.store.runs(Filter())
            found.append(len(lab.store.load(runs[0].id).entries) if runs else 0)

    monkeypatch.setattr(points, "watch", look)

    async def body(ctx: andon.Context) -> None:
        await ctx.model(answered, {"content": [tool_use("a"), tool_use("b")]})
        await ctx.event("never")

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        await lab.reach(run, "suspended")
    entries = [(one.kind, one.state, one.key) for one in await lab.journal(run)]
    assert entries[1:4] == [
        ("step", "done", None),
        ("effect", "planned", "a"),
        ("effect", "planned", "b"),
    ]
    assert found[-1] == len(entries)
    assert {1, 4} <= set(found)
    assert not {2, 3} & set(found)
    rows = lab.store.ledger(run)
    assert {(row.name, row.key, row.state) for row in rows} == {
        ("work", "a", "planned"),
        ("work", "b", "planned"),
    }


@pytest.mark.parametrize("declared", ["idempotent", None])
async def test_a_worker_that_is_lost_inside_a_tool_repeats_no_call(
    lab: Lab, ask: Callable[..., Any], fake: FakeModel, declared: str | None
) -> None:
    """Neither the lost call, nor the finished one beside it, nor the model request is repeated."""
    shop = Shop()
    shop.held = Held()
    one = looping(shop, ask, effect=declared)
    async with lab.working(one) as lost:
        run = await lab.client.start(one)
        await shop.held.reached.wait()
        await until(lambda: lab.effects(run)["charge"] == "confirmed")
        async with lab.working(one) as survivor:
            declare_lost(survivor, lost)
            if declared is None:
                await lab.asked(run)
                await lab.client.answer(run, "happened", "sent, says the server")
            assert await lab.result(run) == "All done."
        shop.held.release.set()
    mailed = 2 if declared else 1
    assert sorted(shop.done) == ["charged 10", "logged", *["mailed ann"] * mailed]
    assert [request.status for request in fake.requests] == [200, 200, 200]


async def answered(answer: Any) -> Any:
    return answer


def tool_use(name: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": "work", "input": given}


@pytest.mark.parametrize(
    ("decision", "value", "result"),
    [
        ("approve", None, {"content": "10"}),
        ("edit", {"amount": 7}, {"content": "7"}),
        ("reject", None, {"content": f"{NOT_CALLED} by Eve", "is_error": True}),
        ("respond", "too much", {"content": f"{NOT_CALLED} by Eve: too much", "is_error": True}),
    ],
)
async def test_a_person_is_asked_before_a_tool_is_called(
    lab: Lab, decision: str, value: Any, result: dict[str, Any]
) -> None:
    called: list[int] = []

    async def work(amount: int) -> int:
        called.append(amount)
        return amount

    async def body(ctx: andon.Context) -> Any:
        answer = await ctx.model(answered, {"content": [tool_use("a", amount=10)]})
        found = await ctx.tools(answer, [work], approve=["work"])
        await ctx.event("go")
        return found

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        ask = await lab.asked(run)
        assert called == []
        assert ask.value == '{"amount":10}'
        await lab.client.answer(run, decision, value, by="Eve")
        [message] = await lab.replayed(run)
    [block] = message["content"]
    assert block == {"type": "tool_result", "tool_use_id": "a", **result}
    assert called == ([] if "is_error" in result else [int(result["content"])])
    [row] = lab.store.ledger(run)
    assert row.state == ("failed" if "is_error" in result else "confirmed")


async def test_a_call_that_cannot_be_made_is_reported_to_the_model(local: Lab) -> None:
    def work(amount: int) -> int:
        raise AssertionError

    def broken() -> None:
        raise KeyError("no such thing")

    content = [
        {"type": "text", "text": "hm"},
        tool_use("a", amont=1),
        {**tool_use("b"), "name": "wrok"},
        {**tool_use("c"), "input": '{"amount": 1'},
        {**tool_use("d"), "name": "broken"},
    ]

    async def body(ctx: andon.Context) -> Any:
        answer = await ctx.model(answered, {"content": content})
        return await ctx.tools(answer, {"work": work, "broken": broken}, effect="pure")

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        [message] = await local.result(run)
    texts = {block["tool_use_id"]: block["content"] for block in message["content"]}
    assert all(block["is_error"] for block in message["content"])
    assert "missing a required argument: 'amount'" in texts["a"]
    assert texts["b"] == "There is no tool 'wrok'; there are: work, broken."
    assert "expected an object of arguments" in texts["c"]
    assert "KeyError: 'no such thing'" in texts["d"]
    states = {row.key: row.state for row in local.store.ledger(run)}
    assert states == {"a": "planned", "b": "planned", "c": "planned", "d": "failed"}


async def test_call_ids_that_a_provider_reuses_are_different_calls(lab: Lab) -> None:
    called: list[int] = []

    async def work(amount: int) -> int:
        called.append(amount)
        return amount

    async def body(ctx: andon.Context) -> Any:
        found = []
        for amount in (1, 2, 3):
            answer = await ctx.model(answered, {"content": [tool_use("call_0", amount=amount)]})
            found += await ctx.tools(answer, [work])
        await ctx.event("go")
        return [message["content"][0]["content"] for message in found]

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        assert await lab.replayed(run) == ["1", "2", "3"]
    assert called == [1, 2, 3]


async def test_an_invalid_answer_of_the_model_is_refused(local: Lab) -> None:
    async def body(ctx: andon.Context) -> Any:
        await ctx.model(answered, {"text": "hello"})

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        found = await local.end(run)
    assert found.state == "failed"
    assert "expected a model's answer" in str(found.error)

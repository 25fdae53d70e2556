"""An agent of Pydantic AI under andon: no request or tool call twice, none unrecorded."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    ApprovalRequired,
    DeferredToolRequests,
    DeferredToolResults,
    ModelRetry,
    RunContext,
    ToolApproved,
)
from pydantic_ai.capabilities import AbstractCapability, durable_operation
from pydantic_ai.durable_exec import DurableOperation
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.toolsets import AbstractToolset, DynamicToolset, FunctionToolset, ToolsetTool
from tests.adapters.buyers import FORMS, SCRIPT, buyer, model_of
from tests.runtime.harness import Held, Lab, agent, declare_lost, until

import andon
from andon.adapters import pydantic_ai as adapter
from andon.adapters.pydantic_ai import AndonDurability, run
from andon.errors import BadInput
from andon.testing import FakeModel, call


@pytest.fixture
def fake() -> Iterator[FakeModel]:
    with FakeModel(SCRIPT) as found:
        yield found


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

    def log(self) -> str:
        self.done.append("logged")
        return "ok"

    @property
    def tools(self) -> list[Any]:
        return [self.charge, self.mail, self.log]


def asking(one: Any, prompt: str = "buy", **given: Any) -> Any:
    """An agent of andon that calls one of Pydantic AI, and waits for an event before it ends."""

    async def body(ctx: andon.Context) -> Any:
        result = await one.run(prompt, **given)
        if ctx.labels.get("then") == "wait":
            await ctx.event("go")
        return {"output": result.output, "messages": json.loads(result.all_messages_json())}

    return agent(body)


WAIT = {"then": "wait"}


def results_shown(messages: list[Any]) -> dict[str, Any]:
    """The results of its calls that the model was shown."""
    parts = [part for message in messages for part in message["parts"]]
    return {p["tool_name"]: p["content"] for p in parts if p["part_kind"] == "tool-return"}


@pytest.mark.parametrize("form", FORMS)
async def test_an_agent_on_each_client_is_replayed(lab: Lab, fake: FakeModel, form: str) -> None:
    shop = Shop()
    one = asking(buyer(fake.url, *shop.tools, form=form))
    async with lab.working(one):
        run_id = await lab.client.start(one, labels=WAIT)
        found = await lab.replayed(run_id)
    assert found["output"] == "All done."
    assert results_shown(found["messages"]) == {"charge": "ch_1", "mail": "sent", "log": "ok"}
    assert sorted(shop.done) == ["charged 10", "logged", "mailed ann"]
    assert lab.effects(run_id) == dict.fromkeys(("charge", "mail", "log"), "confirmed")
    assert [request.status for request in fake.requests] == [200, 200, 200]


async def test_the_answer_and_the_calls_it_plans_are_one_commit(
    local: Lab, fake: FakeModel
) -> None:
    shop = Shop()
    one = asking(buyer(fake.url, *shop.tools))
    async with local.working(one):
        run_id = await local.client.start(one)
        await local.result(run_id)
    entries = [(one.kind, one.state, one.name) for one in await local.journal(run_id)]
    planned = [("effect", "planned", "charge"), ("effect", "planned", "mail")]
    assert entries[1:4] == [("step", "done", "model"), *planned]


async def test_parallel_tools_stay_parallel(local: Lab) -> None:
    met = asyncio.Barrier(2)

    async def charge(amount: int) -> str:
        await met.wait()
        return "ch_1"

    async def mail(to: str) -> str:
        await met.wait()
        return "sent"

    with FakeModel([SCRIPT[0], "All done."]) as fake:
        one = asking(buyer(fake.url, charge, mail))
        async with local.working(one):
            run_id = await local.client.start(one, labels=WAIT)
            found = await local.replayed(run_id)
    assert results_shown(found["messages"]) == {"charge": "ch_1", "mail": "sent"}


@pytest.mark.parametrize("declared", ["idempotent", None])
async def test_a_worker_that_is_lost_inside_a_tool_repeats_no_call(
    lab: Lab, fake: FakeModel, declared: str | None
) -> None:
    """Neither the lost call, nor the finished one beside it, nor the model request is repeated."""
    shop = Shop()
    shop.held = Held()
    effects = {"mail": declared} if declared else {}
    one = asking(buyer(fake.url, *shop.tools, options={"effects": effects}))
    async with lab.working(one) as lost:
        run_id = await lab.client.start(one)
        await shop.held.reached.wait()
        await until(lambda: lab.effects(run_id)["charge"] == "confirmed")
        async with lab.working(one) as survivor:
            declare_lost(survivor, lost)
            if declared is None:
                await lab.asked(run_id)
                await lab.client.answer(run_id, "happened", "sent, says the server")
            found = await lab.result(run_id)
        shop.held.release.set()
    sent = "sent" if declared else "sent, says the server"
    assert results_shown(found["messages"]) == {"charge": "ch_1", "mail": sent, "log": "ok"}
    mailed = 2 if declared else 1
    assert sorted(shop.done) == ["charged 10", "logged", *["mailed ann"] * mailed]
    assert [request.status for request in fake.requests] == [200, 200, 200]


async def test_a_function_declares_its_own_kind_and_its_probe_is_called(
    lab: Lab, fake: FakeModel
) -> None:
    shop = Shop()
    shop.held = Held()
    keys: list[str] = []

    async def find(to: str, *, key: str) -> Any:
        return andon.happened("sent before") if key in keys else andon.did_not_happen()

    @andon.effect_of(probe=find)
    async def mail(ctx: RunContext[None], to: str) -> str:
        keys.append(str(ctx.tool_call_id))
        return await shop.mail(to)

    tools = [shop.charge, mail, shop.log]
    one = asking(buyer(fake.url, *tools, options={"effects": {"mail": "idempotent"}}))
    async with lab.working(one) as lost:
        run_id = await lab.client.start(one)
        await shop.held.reached.wait()
        async with lab.working(one) as survivor:
            declare_lost(survivor, lost)
            found = await lab.result(run_id)
        shop.held.release.set()
    assert results_shown(found["messages"])["mail"] == "sent before"
    assert len(keys) == 1


# ── results of tools ──────────────────────────────────────────────────────────────────────────


async def test_a_tool_that_asks_for_another_try_does_so_on_replay(lab: Lab) -> None:
    tried: list[int] = []

    async def charge(amount: int) -> str:
        tried.append(amount)
        if amount > 7:
            raise ModelRetry("at most 7")
        return "ch_1"

    with FakeModel([call("charge", amount=10), call("charge", amount=7), "All done."]) as fake:
        one = asking(buyer(fake.url, charge))
        async with lab.working(one):
            run_id = await lab.client.start(one, labels=WAIT)
            found = await lab.replayed(run_id)
    parts = [part for message in found["messages"] for part in message["parts"]]
    [retry] = [part for part in parts if part.get("content") == "at most 7"]
    assert retry["tool_name"] == "charge"
    assert tried == [10, 7]
    assert len(fake.requests) == 3


@pytest.mark.parametrize("kind", ["pure", "irreversible"])
async def test_an_error_of_a_tool_is_never_reported_to_the_model(local: Lab, kind: str) -> None:
    """The framework does the same; but if the tool may have acted, a person is asked first."""

    def charge(amount: int) -> str:
        raise KeyError("no such card")

    with FakeModel([call("charge", amount=10), "All done."]) as fake:
        one = asking(buyer(fake.url, charge, options={"effects": {"charge": kind}}))
        async with local.working(one):
            run_id = await local.client.start(one)
            if kind == "irreversible":
                assert "raised KeyError" in (await local.asked(run_id)).question
                await local.client.answer(run_id, "did_not_happen")
            found = await local.end(run_id)
    assert found.state == "failed"
    assert "KeyError" in str(found.error)
    assert len(fake.requests) == 1


async def test_a_result_that_cannot_be_stored_is_confirmed_nevertheless(local: Lab) -> None:
    async def charge(amount: int) -> object:
        return object()

    with FakeModel([call("charge", amount=10), "All done."]) as fake:
        one = asking(buyer(fake.url, charge))
        async with local.working(one):
            run_id = await local.client.start(one)
            found = await local.end(run_id)
    assert (found.state, found.error and found.error["type"]) == ("failed", "NotStorable")
    assert local.effects(run_id) == {"charge": "confirmed"}


# ── approvals ─────────────────────────────────────────────────────────────────────────────────

NOT_CALLED = "the tool 'charge' was not called: it was rejected by Eve"


@pytest.mark.parametrize(
    ("decision", "value", "told", "outcome"),
    [
        ("approve", None, "10 paid", "success"),
        ("edit", {"amount": 7}, "7 paid", "success"),
        ("reject", None, NOT_CALLED, "denied"),
        ("respond", "too much", f"{NOT_CALLED}: too much", "denied"),
    ],
)
async def test_a_person_is_asked_before_a_tool_is_called(
    lab: Lab, decision: str, value: Any, told: str, outcome: str
) -> None:
    called: list[int] = []

    async def charge(amount: int) -> str:
        called.append(amount)
        return f"{amount} paid"

    with FakeModel([call("charge", amount=10), "All done."]) as fake:
        one = asking(buyer(fake.url, charge, options={"approve": ["charge"]}))
        async with lab.working(one):
            run_id = await lab.client.start(one, labels=WAIT)
            ask = await lab.asked(run_id)
            assert (called, ask.value) == ([], '{"amount":10}')
            await lab.client.answer(run_id, decision, value, by="Eve")
            found = await lab.replayed(run_id)
    parts = [part for message in found["messages"] for part in message["parts"]]
    [result] = [part for part in parts if part["part_kind"] == "tool-return"]
    assert (result["content"], result["outcome"]) == (told, outcome)
    assert [f"{amount} paid" for amount in called] == [told] * (outcome == "success")


@pytest.mark.parametrize("asks", ["always", "itself"])
@pytest.mark.parametrize("edited", [None, {"amount": 7}])
async def test_deferred_approvals_of_the_framework_work(
    lab: Lab, asks: str, edited: dict[str, Any] | None
) -> None:
    called: list[int] = []

    async def charge(ctx: RunContext[None], amount: int) -> str:
        if asks == "itself" and not ctx.tool_call_approved:
            raise ApprovalRequired(metadata={"limit": 5})
        called.append(amount)
        return f"{amount} paid"

    with FakeModel([call("charge", amount=10), "All done."]) as fake:
        toolset = FunctionToolset[None](id="shop")
        toolset.add_function(charge, requires_approval=asks == "always")
        one = buyer(fake.url, toolsets=[toolset], output_type=[str, DeferredToolRequests])

        async def body(ctx: andon.Context) -> Any:
            first = await one.run("buy")
            assert isinstance(first.output, DeferredToolRequests)
            [wanted] = first.output.approvals
            await ctx.event("go")
            given = ToolApproved(override_args=edited)
            results = DeferredToolResults(approvals={wanted.tool_call_id: given})
            then = await one.run(
                message_history=first.all_messages(), deferred_tool_results=results
            )
            await ctx.event("go")
            return [then.output, json.loads(then.all_messages_json())]

        async with lab.working(agent(body)):
            run_id = await lab.client.start("agent")
            await lab.waits_for(run_id, "go")
            assert called == []
            await lab.client.send(run_id, "go")
            await until(lambda: len(fake.requests) == 2)
            output, messages = await lab.replayed(run_id)
    amount = 7 if edited else 10
    assert (output, called) == ("All done.", [amount])
    assert results_shown(messages) == {"charge": f"{amount} paid"}
    assert len(fake.requests) == 2


# ── refusals ──────────────────────────────────────────────────────────────────────────────────


async def test_outside_of_a_run_nothing_is_executed(fake: FakeModel) -> None:
    shop = Shop()
    one = buyer(fake.url, *shop.tools)
    with pytest.raises(BadInput, match="outside of a run"):
        await one.run("buy")
    with pytest.raises(BadInput, match="outside of a run"):
        async with one.run_stream("buy"):
            pass
    with pytest.raises(BadInput, match="outside of a run"):
        async with one.iter("buy") as nodes:
            [node async for node in nodes]
    assert (shop.done, fake.requests) == ([], [])


def test_outside_of_a_run_a_sync_program_executes_nothing(fake: FakeModel) -> None:
    loop = asyncio.new_event_loop()  # the framework would make one, and leave it open
    asyncio.set_event_loop(loop)
    with pytest.raises(BadInput, match="outside of a run"):
        buyer(fake.url, *Shop().tools).run_sync("buy")
    loop.close()
    assert fake.requests == []


async def test_inside_a_step_and_inside_a_thread_nothing_is_executed(
    local: Lab, fake: FakeModel
) -> None:
    shop = Shop()
    one = buyer(fake.url, *shop.tools)

    async def stepping(ctx: andon.Context) -> Any:
        await ctx.step(one.run, "buy")

    def plain(ctx: Any) -> Any:
        asyncio.run(one.run("buy"))

    for body in (stepping, plain):
        async with local.working(agent(body, name=body.__name__)):
            found = await local.end(await local.client.start(body.__name__))
            assert "outside of a run" in str(found.error)
    assert (shop.done, fake.requests) == ([], [])


async def test_another_prompt_on_replay_is_a_divergence(local: Lab, fake: FakeModel) -> None:
    said = ["buy"]
    one = buyer(fake.url, *Shop().tools)

    async def body(ctx: andon.Context) -> Any:
        await one.run(said[0])
        await ctx.event("go")

    async with local.working(agent(body)):
        run_id = await local.client.start("agent")
        await local.reach(run_id, "suspended")
        said[0] = "sell"
        await local.client.send(run_id, "go")
        found = await local.end(run_id)
    assert found.state == "stranded"
    assert len(fake.requests) == 3


class OwnToolset(AbstractToolset[Any]):
    """A toolset of the user's own, which the framework's engines do not know."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop

    @property
    def id(self) -> str:
        return "own"

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        inner = FunctionToolset[Any](self.shop.tools)
        tools = await inner.get_tools(ctx)
        return {
            name: ToolsetTool(
                toolset=self,
                tool_def=tool.tool_def,
                max_retries=1,
                args_validator=tool.args_validator,
            )
            for name, tool in tools.items()
        }

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: Any
    ) -> Any:
        found = getattr(self.shop, name)(**tool_args)
        return await found if asyncio.iscoroutine(found) else found


async def test_the_tools_of_every_toolset_are_operations(local: Lab, fake: FakeModel) -> None:
    shop = Shop()

    def made(_: RunContext[Any]) -> Any:
        return FunctionToolset[Any](shop.tools, id="inner")

    dynamic = DynamicToolset[Any](made, id="dynamic")
    agents = {
        "own": buyer(fake.url, toolsets=[OwnToolset(shop)]),
        "made": buyer(fake.url, toolsets=[dynamic]),
    }
    for one in agents.values():
        async with local.working(asking(one)):
            run_id = await local.client.start("agent", labels=WAIT)
            assert (await local.replayed(run_id))["output"] == "All done."
        assert local.effects(run_id) == dict.fromkeys(("charge", "mail", "log"), "confirmed")
        assert sorted(shop.done) == ["charged 10", "logged", "mailed ann"]
        shop.done.clear()


@pytest.mark.parametrize("kind", ["own", "function"])
async def test_a_toolset_that_is_added_at_run_time_is_refused(
    local: Lab, fake: FakeModel, kind: str
) -> None:
    shop = Shop()
    late: Any = OwnToolset(shop) if kind == "own" else FunctionToolset[Any](shop.tools, id="late")
    async with local.working(asking(buyer(fake.url), toolsets=[late])):
        found = await local.end(await local.client.start("agent"))
    assert "at run" in str(found.error)
    assert (shop.done, fake.requests) == ([], [])


async def test_an_operation_of_an_unknown_kind_is_refused(local: Lab, fake: FakeModel) -> None:
    acted: list[str] = []

    async def handler(_: Any) -> None:
        acted.append("acted")

    unknown: Any = DurableOperation(
        operation_id="of a later version",  # type: ignore[arg-type]
        handler=handler,
        parameter_transport=None,  # type: ignore[arg-type]
        cache_identity=None,  # type: ignore[arg-type]
        result_codec=None,  # type: ignore[arg-type]
        config_role="tool",
    )
    backend = AndonDurability(name="x").get_durable_operation_backend()

    async def body(ctx: andon.Context) -> Any:
        await backend.bind(unknown)(None)

    async with local.working(agent(body)):
        found = await local.end(await local.client.start("agent"))
    assert "does not know the operation" in str(found.error)
    assert acted == []


def test_an_invalid_declaration_is_refused() -> None:
    with pytest.raises(BadInput, match="expected one of"):
        AndonDurability(effects={"charge": "perhaps"})
    with pytest.raises(BadInput, match="expected a kind or"):
        AndonDurability(effects={"charge": lambda function: function})
    with pytest.raises(BadInput, match="expected the names of tools"):
        AndonDurability(approve="charge")


# ── run() in one call ─────────────────────────────────────────────────────────────────────────


class Receipt(BaseModel):
    total: int


class Offer(BaseModel):
    total: int


async def test_a_run_is_started_with_one_call(lab: Lab, fake: FakeModel) -> None:
    shop = Shop()
    one = buyer(fake.url, *shop.tools)
    first = await run(one, "buy", run_id="order-1", store=lab.url)
    again = await run(one, "buy", run_id="order-1", store=lab.url)
    assert (first.output, again.output) == ("All done.", "All done.")
    assert first.all_messages() == again.all_messages()
    assert first.usage == again.usage
    assert first.run_id == again.run_id
    assert sorted(shop.done) == ["charged 10", "logged", "mailed ann"]
    assert len(fake.requests) == 3


@pytest.mark.parametrize("number", [0, 1])
async def test_the_output_is_restored_with_its_type(local: Lab, number: int) -> None:
    kinds: list[Any] = [Receipt, Offer]
    name = f"final_result_{kinds[number].__name__}"
    with FakeModel([call(name, total=7)]) as fake:
        one = buyer(fake.url, output_type=kinds)
        for _ in range(2):
            found = await run(one, "buy", run_id="order-1", store=local.url)
            assert type(found.output) is kinds[number]
            assert found.output.total == 7
        assert len(fake.requests) == 1
    assert local.effects("order-1") == {}, "an output tool is not an effect"


async def test_a_call_inside_a_run_is_a_part_of_that_run(local: Lab, fake: FakeModel) -> None:
    one = buyer(fake.url, *Shop().tools)

    async def body(ctx: andon.Context) -> Any:
        return (await run(one, "buy")).output

    async with local.working(agent(body)):
        run_id = await local.client.start("agent")
        assert await local.result(run_id) == "All done."
    assert set(local.effects(run_id)) == {"charge", "mail", "log"}


def test_a_sync_program_can_start_a_run(sqlite_url: str, fake: FakeModel) -> None:
    one = buyer(fake.url, *Shop().tools)
    for _ in range(2):
        found = adapter.run_sync(one, "buy", run_id="order-1", store=sqlite_url)
        assert found.output == "All done."
    assert len(fake.requests) == 3


async def test_an_agent_that_a_tool_calls_is_a_part_of_that_tool(local: Lab) -> None:
    with FakeModel(["It is blue."]) as inner, FakeModel([call("ask"), "Blue."]) as fake:
        helper = Agent(model_of("chat", inner.url), name="helper", capabilities=[AndonDurability()])

        async def ask() -> str:
            return (await helper.run("Which colour?")).output

        async with local.working(asking(buyer(fake.url, ask))):
            run_id = await local.client.start("agent", labels=WAIT)
            found = await local.replayed(run_id)
        assert results_shown(found["messages"]) == {"ask": "It is blue."}
        assert len(inner.requests) == 1


# ── other access to the outside ───────────────────────────────────────────────────────────────


async def test_a_tool_of_a_server_has_the_kind_that_the_server_declares(lab: Lab) -> None:
    """Where the user declares nothing, the server's description of its tools counts."""
    called: list[str] = []

    async def look() -> str:
        called.append("looked")
        return "7 left"

    async def charge(amount: int) -> str:
        called.append(f"charged {amount}")
        return "ch_1"

    server = MCPServer("shop")
    server.tool(annotations=ToolAnnotations(read_only_hint=True))(look)
    server.tool()(charge)
    with FakeModel([[call("look"), call("charge", amount=10)], "All done."]) as fake:
        one = asking(buyer(fake.url, toolsets=[MCPToolset(server, id="shop")]))
        async with lab.working(one):
            run_id = await lab.client.start(one, labels=WAIT)
            found = await lab.replayed(run_id)
        assert len(fake.requests) == 2
    assert results_shown(found["messages"]) == {"look": "7 left", "charge": "ch_1"}
    assert sorted(called) == ["charged 10", "looked"]
    kinds = {row.name: row.kind for row in lab.store.ledger(run_id)}
    assert kinds == {"look": "pure", "charge": "irreversible"}
    listed = [
        entry.name for entry in await lab.journal(run_id, "step") if "get_tools" in entry.name
    ]
    assert listed == ["buyer__mcp_server__shop.get_tools"]


async def test_a_durable_operation_of_a_capability_is_an_effect(local: Lab) -> None:
    acted: list[str] = []

    class Noting(AbstractCapability[Any]):
        id = "noting"

        @durable_operation("note")
        async def note(self, ctx: RunContext[Any]) -> str:
            acted.append("noted")
            return "noted"

        async def before_run(self, ctx: RunContext[Any]) -> None:
            await self.note(ctx)

    with FakeModel(["All done."]) as fake:
        capabilities = [AndonDurability(), Noting()]
        one = Agent(model_of("chat", fake.url), name="buyer", capabilities=capabilities)
        async with local.working(asking(one)):
            run_id = await local.client.start("agent", labels=WAIT)
            await local.replayed(run_id)
    assert acted == ["noted"]
    assert local.effects(run_id) == {"noting.note": "confirmed"}

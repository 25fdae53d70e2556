"""Arguments are checked against the agent's annotations before the run exists."""

import dataclasses
import json
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel
from tests.runtime.harness import Lab, agent

import andon
from andon.errors import BadInput, StepFailed
from andon.runtime.requests import requests


class Order(msgspec.Struct):
    number: int


class Model(BaseModel):
    number: int


@dataclasses.dataclass
class Basket:
    orders: list[Order]


async def desk(
    ctx: andon.Context,
    topic: str,
    items: int = 1,
    order: Order | None = None,
    model: Model | None = None,
    limit: float | None = None,
    unknown: "Nowhere" = 7,  # type: ignore[name-defined] # noqa: F821
    **more: int,
) -> list[str]:
    return [type(one).__name__ for one in (topic, items, order, model, limit)]


async def sorter(ctx: andon.Context, topic: str, items: int = 1, *, basket: Any = None) -> str:
    return f"{topic} {items}"


async def typed(
    ctx: andon.Context, order: Order, basket: Basket, model: Model, names: list[str] | None = None
) -> list[Any]:
    return [type(order).__name__, type(basket).__name__, type(model).__name__, names]


GOOD: dict[str, Any] = {"order": {"number": 1}, "basket": {"orders": []}, "model": {"number": 1}}
BAD: list[tuple[dict[str, Any], str]] = [
    ({**GOOD, "order": {"number": "x"}}, "argument order.number: expected int, found 'x'"),
    ({**GOOD, "order": 7}, "argument order: expected Order, found 7"),
    ({**GOOD, "basket": {"orders": [{}]}}, "argument basket.orders[0]: expected Order, found no"),
    ({**GOOD, "names": ["a", 1]}, "argument names: expected list[str] or None, found ['a', 1]"),
]


@pytest.mark.parametrize("by_name", [True, False])
async def test_arguments_that_do_not_fit_are_refused_before_the_run_exists(
    lab: Lab, by_name: bool
) -> None:
    one = agent(typed)
    async with lab.working(one):
        for given, why in BAD:
            with pytest.raises(BadInput) as refused:
                await lab.client.start("agent" if by_name else one, **given)
            assert why in str(refused.value)
            with pytest.raises(BadInput):
                requests.start(lab.store, "agent" if by_name else one, kwargs=given)
        assert await lab.client.list() == []
        run = await lab.client.start("agent", **GOOD)
        assert await lab.result(run) == ["Order", "Basket", "Model", None]


async def test_an_agent_in_the_same_program_is_checked_by_its_code_too(local: Lab) -> None:
    with pytest.raises(BadInput, match="argument 'model'"):
        await local.client.run(agent(typed), **{**GOOD, "model": {"number": "many"}})
    assert await local.client.list() == []


async def test_the_arguments_of_a_child_are_checked_too(lab: Lab) -> None:
    async def parent(ctx: andon.Context) -> str:
        try:
            await ctx.child("sorter", "x", items="many")
        except StepFailed as error:
            return str(error)
        return "taken"

    async with lab.working(agent(parent), agent(sorter, name="sorter")):
        run = await lab.client.start("agent")
        said = await lab.result(run)
    assert "argument items: expected int, found 'many'" in said
    assert [one.id for one in await lab.client.list()] == [run]


async def test_the_agent_gets_exactly_the_given_arguments(local: Lab) -> None:
    one = agent(sorter)
    assert await local.client.run(one, "a", 3.0) == "a 3.0"
    assert await local.client.run(one, "a", basket=[object.__name__]) == "a 1"


async def test_annotations_that_cannot_be_resolved_refuse_nothing(local: Lab) -> None:
    one = agent(desk)
    assert json.loads(one.row.types) == {}
    assert await local.client.run(one, 1, "x") == ["int", "str", "NoneType", "NoneType", "NoneType"]


async def test_a_registration_of_an_earlier_release_refuses_nothing(lab: Lab) -> None:
    async with lab.working(agent(sorter)):
        pass
    row = agent(sorter).row.but(types="{}")
    started = requests.start(lab.store, row, kwargs={"topic": 1, "items": "many"})
    assert lab.store.run(started) is not None


async def test_workers_of_the_same_version_may_differ_in_annotations(lab: Lab) -> None:
    async def wider(
        ctx: andon.Context, topic: str, items: int | str = 1, *, basket: Any = None
    ) -> str:
        return f"{topic} {items}"

    async with lab.working(agent(sorter)), lab.working(agent(wider)):
        assert await lab.result(await lab.client.start("agent", "a", "many")) == "a many"

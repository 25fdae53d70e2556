"""Values come back unchanged, at first and on replay, or are refused by name."""

import datetime as dt
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.runtime.harness import Lab, agent

import andon
from andon.errors import NotStorable


@dataclass
class Point:
    x: int
    y: int


class Pair(NamedTuple):
    left: str
    right: str


class Order(msgspec.Struct):
    id: str
    at: dt.datetime


def plain() -> dict[str, Any]:
    return {"a": [1, 2.5, None, True, "ü"], "b": {"c": []}}


def untyped_tuple() -> Any:
    return (1, (2, 3))


def typed_tuple() -> tuple[int, str]:
    return (1, "a")


def a_dataclass() -> Point:
    return Point(1, 2)


def dataclasses() -> list[Point]:
    return [Point(1, 2), Point(3, 4)]


def a_named_tuple() -> Pair:
    return Pair("l", "r")


def a_date() -> dt.datetime:
    return dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)


def a_struct() -> Order:
    return Order("o-1", a_date())


def a_set() -> set[int]:
    return {1, 2, 3}


def some_bytes() -> bytes:
    return b"\0\xff"


def numbered() -> dict[int, str]:
    return {1: "a", 2: "b"}


def text_with_nul() -> str:
    return "a\0b"


def large_number() -> int:
    return 2**80


def maybe(n: int = 0) -> Point | None:
    return None


GOOD = [
    plain,
    typed_tuple,
    a_dataclass,
    dataclasses,
    a_named_tuple,
    a_date,
    a_struct,
    a_set,
    some_bytes,
    numbered,
    text_with_nul,
    large_number,
    maybe,
]


@pytest.mark.parametrize("function", GOOD, ids=lambda one: one.__name__)
@pytest.mark.parametrize("kind", ["step", "effect"])
async def test_a_result_is_the_same_value_at_first_and_on_replay(
    local: Lab, function: Any, kind: str
) -> None:
    seen: list[Any] = []

    async def body(ctx: andon.Context) -> None:
        seen.append(await (ctx.step if kind == "step" else ctx.effect)(function))
        await ctx.event("go")

    async with local.working(agent(body)):
        await local.replayed(await local.client.start("agent"))
    assert seen == [function(), function()]
    assert type(seen[0]) is type(seen[1]) is type(function())


async def test_an_untyped_tuple_comes_back_as_a_list_both_times(lab: Lab) -> None:
    seen: list[Any] = []

    async def body(ctx: andon.Context) -> None:
        seen.append(await ctx.step(untyped_tuple))
        await ctx.event("go")

    async with lab.working(agent(body)):
        await lab.replayed(await lab.client.start("agent"))
    assert seen == [[1, [2, 3]]] * 2


class Model:
    """The part of pydantic's models that andon uses."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and other.n == self.n

    __hash__ = None  # type: ignore[assignment]

    def model_dump(self, *, mode: str) -> dict[str, int]:
        assert mode == "json"
        return {"n": self.n}

    @classmethod
    def model_validate(cls, found: dict[str, int]) -> "Model":
        return cls(found["n"])


def a_model() -> Model:
    return Model(5)


async def test_a_pydantic_model_comes_back_as_a_model(local: Lab) -> None:
    seen: list[Any] = []

    async def body(ctx: andon.Context, given: Model) -> None:
        seen.extend([given, await ctx.step(a_model)])
        await ctx.event("go")

    async with local.working(agent(body)):
        await local.replayed(await local.client.start("agent", Model(4)))
    assert seen == [Model(4), Model(5)] * 2


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────


class Hostile:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no")

    def __hash__(self) -> int:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        raise RuntimeError("no")


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def cycle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


BAD = {
    "nan": lambda: float("nan"),
    "infinity": lambda: {"a": [float("-inf")]},
    "surrogate": lambda: "\udcff",
    "surrogate key": lambda: {"\udcff": 1},
    "object": object,
    "hostile": lambda: [Hostile()],
    "deep": lambda: nested(100_000),
    "cycle": cycle,
    "10 MB": lambda: "x" * 10_000_000,
    "function": lambda: print,
    "exception": lambda: ValueError("x"),
}
BAD_VALUES = pytest.mark.parametrize("make", BAD.values(), ids=BAD.keys())
SOME_BAD_VALUES = pytest.mark.parametrize(
    "make", [BAD[name] for name in ("nan", "surrogate", "object", "deep", "10 MB")]
)


@BAD_VALUES
@pytest.mark.parametrize("kind", ["step", "effect", "transaction", "child", "ask"])
async def test_an_argument_that_cannot_be_stored_is_refused_before_execution(
    local: Lab, make: Any, kind: str
) -> None:
    executed: list[int] = []

    def function(*_: Any) -> None:
        executed.append(1)

    async def child(ctx: andon.Context, given: Any) -> None:
        executed.append(1)

    other = andon.agent(child)

    async def body(ctx: andon.Context) -> str:
        calls: dict[str, Any] = {
            "step": ctx.step,
            "effect": ctx.effect,
            "transaction": ctx.transaction,
        }
        try:
            if kind == "child":
                await ctx.child(other, make())
            elif kind == "ask":
                await ctx.ask("Well?", make())
            else:
                await calls[kind](function, make(), name="target")
        except NotStorable as error:
            return str(error)
        return "executed"

    async with local.working(agent(body), other):
        run = await local.client.start("agent")
        message = await local.result(run)
    assert executed == []
    assert {"child": "child", "ask": "the ask"}.get(kind, "target") in message
    assert [entry.kind for entry in await local.journal(run)] == ["start", "end"]


@BAD_VALUES
async def test_a_result_that_cannot_be_stored_is_refused_with_its_step(
    local: Lab, make: Any
) -> None:
    async def target() -> Any:
        return make()

    async def body(ctx: andon.Context) -> list[str]:
        try:
            await ctx.step(target)
        except andon.StepFailed as error:
            return [error.error, error.message]
        return ["stored"]

    async with local.working(agent(body)):
        kind, message = await local.result(await local.client.start("agent"))
    assert kind == "NotStorable"
    assert "'target'" in message


async def test_a_result_that_would_come_back_changed_is_refused(local: Lab) -> None:
    def dated() -> Any:
        return {"at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}

    def raw() -> Any:
        return b"\0"

    def numbered_untyped() -> Any:
        return {1: "a"}

    async def body(ctx: andon.Context) -> list[str]:
        found = []
        for function in (dated, raw, numbered_untyped):
            try:
                await ctx.step(function)
            except andon.StepFailed as error:
                found.append(error.message)
        return found

    async with local.working(agent(body)):
        found = await local.result(await local.client.start("agent"))
    assert ["datetime" in found[0], "bytes" in found[1], "key of type int" in found[2]] == [
        True
    ] * 3


async def test_a_result_that_does_not_match_its_annotation_is_refused(local: Lab) -> None:
    def wrong() -> Point:
        return {"x": "text"}  # type: ignore[return-value]

    async def body(ctx: andon.Context) -> str:
        try:
            await ctx.step(wrong)
        except andon.StepFailed as error:
            return error.message
        return "stored"

    async with local.working(agent(body)):
        assert "annotation" in await local.result(await local.client.start("agent"))


@SOME_BAD_VALUES
async def test_an_agents_result_that_cannot_be_stored_fails_it_with_its_name(
    local: Lab, make: Any
) -> None:
    async def body(ctx: andon.Context) -> Any:
        return make()

    async with local.working(agent(body, retries=2)):
        run = await local.end(await local.client.start("agent"))
    assert run.state == "failed"  # another attempt would end the same way
    assert run.error is not None
    assert "agent 'agent'" in run.error["message"]


@SOME_BAD_VALUES
async def test_an_input_or_event_that_cannot_be_stored_is_refused(local: Lab, make: Any) -> None:
    async def body(ctx: andon.Context, given: Any = None) -> Any:
        return await ctx.event("word")

    async with local.working(agent(body)):
        with pytest.raises(NotStorable, match="agent 'agent'"):
            await local.client.start("agent", make())
        run = await local.client.start("agent")
        with pytest.raises(NotStorable, match="event 'word'"):
            await local.client.send(run, "word", make())


@SOME_BAD_VALUES
async def test_an_answer_that_cannot_be_stored_is_refused(local: Lab, make: Any) -> None:
    async def body(ctx: andon.Context) -> Any:
        return (await ctx.ask("Well?")).value

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        await local.asked(run)
        with pytest.raises(NotStorable, match="the answer"):
            await local.client.answer(run, "respond", make())
        await local.client.answer(run, "respond", "fine")
        assert await local.result(run) == "fine"


@SOME_BAD_VALUES
async def test_a_snapshot_or_checkpoint_that_cannot_be_stored_is_refused(
    local: Lab, make: Any
) -> None:
    async def body(ctx: andon.Context) -> list[str]:
        found = []

        async def target() -> str:
            try:
                ctx.checkpoint(make())
            except NotStorable as error:
                return str(error)
            return "saved"

        found.append(await ctx.step(target))
        try:
            await ctx.snapshot(make())
        except NotStorable as error:
            found.append(str(error))
        return found

    async with local.working(agent(body)):
        run = await local.client.start("agent")
        checkpoint, snapshot = await local.result(run)
    assert "checkpoint of step 'target'" in checkpoint
    assert "the snapshot" in snapshot
    assert not await local.journal(run, "snapshot")


# ── large values ──────────────────────────────────────────────────────────────────────────────────


async def test_a_large_value_is_stored_once_and_comes_back(lab: Lab) -> None:
    text = "0123456789" * 100_000

    def large(n: int) -> str:
        return text

    async def restored(ctx: andon.Context, given: str) -> list[bool]:
        if ctx.restored is None:
            found = [await ctx.step(large, n) for n in range(4)]
            await ctx.snapshot(text)
            assert all(one == given for one in found)
        found = [await ctx.step(large, 9), ctx.restored or text]
        await ctx.event("go")
        return [one == given for one in found]

    async with lab.working(agent(restored)):
        run = await lab.client.start("agent", text)
        assert await lab.replayed(run) == [True, True]
    entries = await lab.journal(run)
    results = {entry.blob for entry in entries if entry.kind in ("step", "snapshot")}
    assert len(results) == 1  # five results and a snapshot, one body
    assert all(entry.body is None for entry in entries if entry.kind == "step")
    assert lab.store.blob(results.pop()) == f'"{text}"'


async def test_a_large_result_of_a_run_and_of_a_child_comes_back(lab: Lab) -> None:
    @andon.agent
    async def large(ctx: andon.Context) -> str:
        return "x" * 200_000

    async def body(ctx: andon.Context) -> int:
        return len(await ctx.child(large))

    one = agent(body)
    async with lab.working(one, large):
        assert await lab.result(await lab.client.start(one)) == 200_000
        run = await lab.client.start(large)
        assert len(await lab.result(run)) == 200_000


# ── the same on replay ────────────────────────────────────────────────────────────────────────────


async def test_time_chance_and_ids_are_the_same_on_replay(lab: Lab) -> None:
    seen: list[Any] = []

    async def body(ctx: andon.Context) -> None:
        found = [ctx.now(), ctx.random(), ctx.uuid(), ctx.now(), ctx.random(), ctx.uuid()]
        seen.append(found)
        await ctx.event("go")

    async with lab.working(agent(body)):
        await lab.replayed(await lab.client.start("agent"))
    assert seen[0] == seen[1]
    assert len(set(seen[0])) == 6
    assert abs((seen[0][0] - dt.datetime.now(dt.UTC)).total_seconds()) < 60


async def test_log_lines_are_not_repeated_on_replay(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> None:
        ctx.log("begins")
        await ctx.step(str, 1)
        ctx.log("waits", level="warning")
        await ctx.event("first")
        ctx.log("waits again")
        await ctx.event("second")
        ctx.log("ends with \0 and \udcff")

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        for name in ("first", "second"):
            await lab.waits_for(run, name)
            await lab.client.send(run, name)
        assert (await lab.end(run)).state == "succeeded"
    lines = [(level, text) for _, _, level, text in lab.store.logs(run)]
    assert lines[:3] == [("info", "begins"), ("warning", "waits"), ("info", "waits again")]
    assert len(lines) == 4
    assert lines[3][1].startswith("ends with")

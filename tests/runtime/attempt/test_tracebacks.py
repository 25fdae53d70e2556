"""Tracebacks of an agent's errors: stored without values, bounded, and shown in every place."""

import json
import logging
import os
from collections.abc import Callable
from typing import Any

import pytest
from tests.runtime.harness import Lab, agent

import andon
from andon.control.runs import runs
from andon.core.journal import check_chain
from andon.errors import StepFailed
from andon.runtime.attempt import tracebacks
from andon.runtime.attempt.tracebacks import trace

PASSWORD = "hunter" + "2"
QUICK = andon.Retry(1, first_seconds=0.01)
HERE = f'File "{__file__}", line '


def fails(password: str) -> None:
    local = password + password
    try:
        os.environ["NO_SUCH_KEY"]
    except KeyError as error:
        raise ValueError("it failed") from error
    print(local)  # noqa: T201


async def fails_async(password: str) -> None:
    fails(password)


def raised(function: Callable[..., Any], *args: Any) -> Exception:
    try:
        function(*args)
    except Exception as error:  # noqa: BLE001 (that is what is asked for)
        return error
    raise AssertionError


def assert_shows(text: str) -> None:
    assert HERE in text
    assert "in fails\n" in text
    assert 'raise ValueError("it failed") from error' in text
    assert "KeyError: 'NO_SUCH_KEY'" in text
    assert tracebacks.CAUSED in text
    assert text.index("KeyError") < text.index("ValueError: it failed")
    assert PASSWORD not in text
    assert "/andon/runtime/" not in text  # no frame of andon's own


def by_kind(found: dict[str, Any]) -> dict[str, str]:
    return {one["kind"]: one["traceback"] or "" for one in found["errors"]}


# ── in the journal, on stderr, in the log ─────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("function", "apart"), [(fails, False), (fails, True), (fails_async, False)]
)
async def test_a_failed_step_is_stored_with_its_traceback(
    lab: Lab, caplog: pytest.LogCaptureFixture, function: Any, apart: bool
) -> None:
    async def body(ctx: andon.Context) -> None:
        await ctx.step(function, PASSWORD, retries=QUICK, process=apart)

    async with lab.working(agent(body)):
        run = await lab.end(await lab.client.start("agent"))
    retrying, failed = (json.loads(one.body or "") for one in await lab.journal(run.id, "step"))
    assert_shows(retrying["traceback"])
    assert_shows(failed["traceback"])
    [end] = await lab.journal(run.id, "end")
    assert run.error is not None
    assert run.error == json.loads(end.body or "")
    assert_shows(run.error["traceback"])
    assert "await ctx.step(function, PASSWORD" in run.error["traceback"]
    check_chain(await lab.journal(run.id), run_id=run.id)
    printed = [record.getMessage() for record in caplog.records if record.name == "andon"]
    assert [text.partition("\n")[0].split(" in ")[0] for text in printed] == [
        f"run {run.id}: step {function.__name__!r} failed, and is tried again",
        f"run {run.id}: step {function.__name__!r} failed:",
        f"run {run.id}: agent 'agent' failed:",
    ]
    lines = [line["text"] for line in runs.lines(lab.store, run.id)]
    assert [f"run {run.id}: {line}" for line in lines] == printed
    assert_shows(lines[1])
    assert "KeyError" not in lines[2]  # the step has shown it


async def test_the_errors_of_an_effect_an_undo_and_a_probe_have_tracebacks(lab: Lab) -> None:
    def undo(result: Any, password: str) -> None:
        raise OSError("no undo")

    @andon.effect_of(undo=undo)
    async def buy(password: str) -> str:
        return "bought"

    @andon.effect_of(probe=fails, kind="probeable")
    async def pay(password: str) -> None:
        fails(password)

    async def body(ctx: andon.Context) -> None:
        await ctx.effect(buy, PASSWORD)
        await ctx.effect(pay, PASSWORD)

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        ask = await lab.asked(run)
        await lab.client.answer(run, "did_not_happen", ask=ask.id)
        await lab.reach(run, "suspended")
        await lab.waits_for(run, "answer")
    found = runs.show(lab.store, run)
    assert_shows(by_kind(found)["effect"])
    told = [line["text"] for line in runs.lines(lab.store, run)]
    assert_shows(next(text for text in told if text.startswith("the probe of effect 'pay' raised")))
    assert 'raise OSError("no undo")' in next(text for text in told if "the undo of effect" in text)


async def test_the_traceback_of_an_effect_that_failed_for_good_is_stored_once(lab: Lab) -> None:
    @andon.effect_of(kind="idempotent")
    async def pay() -> None:
        fails(PASSWORD)

    async def body(ctx: andon.Context) -> None:
        await ctx.effect(pay, retries=QUICK)

    async with lab.working(agent(body)):
        run = await lab.end(await lab.client.start("agent"))
    errors = runs.show(lab.store, run.id)["errors"]
    assert [one["kind"] for one in errors] == ["effect", "effect", "agent"]
    for one in errors:
        assert_shows(one["traceback"])


async def test_the_traceback_of_a_sync_agent_has_only_the_agents_own_frames(local: Lab) -> None:
    def body(ctx: Any) -> None:
        ctx.step(fails, PASSWORD)

    async with local.working(agent(body)):
        run = await local.end(await local.client.start("agent"))
    assert run.error is not None
    text = run.error["traceback"]
    assert_shows(text)
    assert "concurrent" not in text
    assert "asyncio" not in text


async def test_the_traceback_of_a_step_that_failed_before_a_replay_is_kept(lab: Lab) -> None:
    async def body(ctx: andon.Context) -> None:
        failed = None
        try:
            await ctx.step(fails, PASSWORD)
        except ValueError as error:
            failed = error
        await ctx.event("go")
        assert isinstance(failed, StepFailed)
        assert_shows(failed.traceback)
        raise failed

    async with lab.working(agent(body)):
        run = await lab.client.start("agent")
        await lab.reach(run, "suspended")
        await lab.client.send(run, "go")
        ended = await lab.end(run)
    assert ended.error is not None
    assert_shows(ended.error["traceback"])


async def test_a_child_and_a_retried_agent_have_tracebacks_too(lab: Lab) -> None:
    async def inner(ctx: andon.Context) -> None:
        fails(PASSWORD)

    async def outer(ctx: andon.Context) -> None:
        await ctx.child("inner")

    agents = agent(inner, name="inner", retries=QUICK), agent(outer)
    async with lab.working(*agents):
        run = await lab.end(await lab.client.start("agent"))
    assert run.error is not None
    assert_shows(run.error["traceback"])
    [child] = runs.show(lab.store, run.id)["children"]
    errors = runs.show(lab.store, child["id"])["errors"]
    assert [one["kind"] for one in errors] == ["agent", "agent"]
    for one in errors:
        assert_shows(one["traceback"])


async def test_a_program_that_runs_an_agent_gets_its_traceback(local: Lab) -> None:
    async def body(ctx: andon.Context) -> None:
        fails(PASSWORD)

    with pytest.raises(StepFailed) as failed:
        await local.client.run(agent(body))
    assert_shows(failed.value.traceback)
    assert_shows("".join(failed.value.__notes__))


@pytest.mark.parametrize("mode", ["stderr", "off"])
@pytest.mark.parametrize("apart", [False, True])
async def test_a_setting_keeps_tracebacks_out_of_the_store(
    local: Lab, caplog: pytest.LogCaptureFixture, mode: str, apart: bool
) -> None:
    async def body(ctx: andon.Context) -> None:
        await ctx.step(fails, PASSWORD, process=apart)

    async with local.working(agent(body), tracebacks=mode):
        run = await local.end(await local.client.start("agent"))
    stored = " ".join(one.body or "" for one in await local.journal(run.id)) + str(run.error)
    told = " ".join(line["text"] for line in runs.lines(local.store, run.id))
    assert "Traceback" not in stored + told
    assert "step 'fails' failed: ValueError: it failed" in told
    printed = "\n".join(record.getMessage() for record in caplog.records)
    assert ("Traceback" in printed) == (mode == "stderr")
    assert all(record.levelno >= logging.WARNING for record in caplog.records)


# ── the text of a traceback ───────────────────────────────────────────────────────────────────


def test_all_parts_of_an_exception_group_are_shown() -> None:
    def group() -> None:
        errors = [raised(fails, "x") for _ in range(3)]
        raise ExceptionGroup("several", [ValueError("plain"), ExceptionGroup("inner", errors)])

    text = trace(raised(group))
    assert text.count("in fails\n") == 6
    assert "-- 1 of 2 --\n  ValueError: plain" in text
    assert "  ExceptionGroup: inner (3 sub-exceptions)" in text


def test_the_repeated_frames_of_a_recursion_are_shown_once() -> None:
    def again(number: int) -> int:
        return again(number + 1)

    text = trace(raised(again, 0))
    assert text.count("return again(number + 1)") == 1
    assert "more times ..." in text
    assert len(text) < 1000


def test_the_traceback_of_an_error_of_any_size_stays_within_the_limit() -> None:
    source = "def f0(): raise ValueError('m' * 100_000 + 'end')\n"
    source += "".join(f"def f{n}(): f{n - 1}()\n" for n in range(1, 200))
    names: dict[str, Any] = {}
    exec(source, names)
    found = raised(names["f199"])
    for _ in range(50):
        following = raised(names["f199"])
        following.__cause__, found = found, following
    text = trace(ExceptionGroup("many", [found] * 1000))
    assert len(text.encode()) <= tracebacks.LIMIT_BYTES
    assert text.startswith("ExceptionGroup: many")
    assert text.endswith("... 992 more errors ...")
    assert " more lines ..." in text
    single = trace(raised(names["f199"]))
    assert "... 171 more frames ..." in single


def test_the_tracebacks_of_hostile_errors_are_shown() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    one, other = Mute(), ValueError("\udcff\x00")
    one.__cause__, other.__context__ = other, one  # a circle
    nested: Exception = one
    for _ in range(200):
        nested = ExceptionGroup("deeper", [nested])
    assert "Mute: its message could not be read" in trace(one)
    assert "\\udcff" in trace(other)
    json.dumps(trace(other)).encode()
    assert "more errors" in trace(nested)

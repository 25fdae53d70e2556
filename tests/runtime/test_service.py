"""Library mode: durable runs inside any program."""

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.harness import Held, Lab, until

import andon
from andon.runtime.client import Client
from andon.settings import Settings

calls: list[Any] = []


@dataclass
class Total:
    amount: int


@andon.agent
async def adding(ctx: andon.Context, numbers: list[int]) -> Total:
    found = [await ctx.step(_seen, n) for n in numbers]
    return Total(sum(found))


async def _seen(n: int) -> int:
    calls.append(n)
    return n


@andon.agent
async def failing(ctx: andon.Context) -> None:
    raise LookupError("nothing there")


@andon.agent
async def parent(ctx: andon.Context) -> Total:
    found: Total = await ctx.child(adding, [1, 2])
    return Total(found.amount * 10)


@pytest.fixture(autouse=True)
def _no_calls_yet() -> None:
    calls.clear()


async def test_an_agent_runs_inside_the_program(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANDON_STORE", sqlite_url)
    assert await adding.run([1, 2, 3]) == Total(6)
    assert await adding.run(numbers=[4]) == Total(4)
    with pytest.raises(andon.StepFailed, match="nothing there"):
        await failing.run()
    assert calls == [1, 2, 3, 4]


async def test_an_agent_cannot_be_called_like_a_function() -> None:
    with pytest.raises(andon.Refused, match=r"adding\.run"):
        adding([1])


async def test_the_same_id_is_the_same_run(lab: Lab) -> None:
    assert await lab.client.run(adding, [1, 2], id="sum") == Total(3)
    assert await lab.client.run(adding, [1, 2], id="sum") == Total(3)
    assert calls == [1, 2]
    with pytest.raises(andon.Refused, match="exists"):
        await lab.client.run(adding, [9], id="sum")


async def test_a_failed_run_raises_again_under_its_id(lab: Lab) -> None:
    for _ in range(2):
        with pytest.raises(andon.StepFailed, match="LookupError: nothing there"):
            await lab.client.run(failing, id="f")


async def test_a_child_is_executed_with_its_parent(lab: Lab) -> None:
    assert await lab.client.run(parent) == Total(30)


async def test_many_runs_execute_at_once(lab: Lab) -> None:
    found = await asyncio.gather(*(lab.client.run(adding, [n]) for n in range(25)))
    assert found == [Total(n) for n in range(25)]


async def test_the_program_executes_only_the_runs_it_asked_for(lab: Lab) -> None:
    other = await lab.client.start(adding, [7])
    assert await lab.client.run(adding, [8]) == Total(8)
    assert lab.store.run(other).state == "queued"


async def test_a_caller_that_stops_waiting_does_not_take_the_run_from_another_one(lab: Lab) -> None:
    held = Held()

    @andon.agent
    async def slow(ctx: andon.Context) -> str:
        await ctx.step(held.here)
        return str(await ctx.event("word", timeout=20))

    first = asyncio.create_task(lab.client.run(slow, id="s"))
    second = asyncio.create_task(lab.client.run(slow, id="s"))
    await held.reached.wait()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    held.release.set()
    await lab.reach("s", "suspended")
    await lab.client.send("s", "word", "said")
    assert await second == "said"


async def test_two_programs_that_ask_for_the_same_run_share_it(lab: Lab) -> None:
    async with Client(settings=Settings(store=lab.url)) as other:
        found = await asyncio.gather(
            *(client.run(adding, [1, 2], id="sum") for client in (lab.client, other))
        )
    assert found == [Total(3), Total(3)]
    assert calls == [1, 2]


PROGRAM = """
import asyncio, os, sys
import andon

@andon.agent
async def writing(ctx, path):
    await ctx.step(note, path, "first")
    await ctx.step(note, path, "second")
    return "written"

async def note(path, word):
    with open(path, "a") as file:
        file.write(word + " ")

if __name__ == "__main__":
    print(asyncio.run(writing.run(sys.argv[1], id="w")))
"""


async def test_a_program_that_died_continues_its_run_when_it_is_started_again(
    lab: Lab, tmp_path: Path
) -> None:
    program, notes = tmp_path / "program.py", tmp_path / "notes"
    program.write_text(PROGRAM)
    source = str(Path(andon.__file__).parent.parent)
    environ = {**os.environ, "ANDON_STORE": lab.url, "PYTHONPATH": source}

    async def start(**more: str) -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            program,
            notes,
            env={**environ, **more},
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await process.communicate()
        return process.returncode, said.decode().strip()

    code, _ = await start(ANDON_FAULTS="step:executed=kill@2")
    assert code == -9
    assert lab.store.run("w").state in ("running", "queued")
    assert await start() == (0, "written")
    assert await start() == (0, "written")
    # The step that was cut off was not finished, so it is the one that is executed again.
    assert notes.read_text().split() == ["first", "second", "second"]


async def test_leaving_the_program_returns_its_run(lab: Lab) -> None:
    held = Held()

    @andon.agent
    async def slow(ctx: andon.Context) -> str:
        await ctx.step(held.here)
        return "over"

    settings = Settings(store=lab.url, grace_seconds=0.05)
    async with Client(settings=settings) as client:
        task = asyncio.create_task(client.run(slow, id="s"))
        await held.reached.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert lab.store.run("s").state == "queued"
    held.release.set()
    assert await lab.client.run(slow, id="s") == "over"
    await until(lambda: lab.store.run("s").state == "succeeded")

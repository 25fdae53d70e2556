"""A step in a process of its own can always be ended, and is over when the process is gone."""

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.harness import Lab, agent, until
from tests.runtime.processes import labour

import andon
from andon.errors import NotStorable, StepFailed

SCRIPT = """
import asyncio, os, sys
import andon

def where() -> list:
    return [os.getpid(), __name__]

@andon.agent
async def script(ctx: andon.Context) -> list:
    return await ctx.step(where, process=True)

{guard}
    pid, name = asyncio.run(script.run())
    assert pid != os.getpid()
    print("ran as", name)
"""


def calls(function: Any, *args: Any, **options: Any) -> Any:
    async def one(ctx: andon.Context) -> Any:
        return await ctx.step(function, *args, process=True, **options)

    return agent(one)


async def test_a_step_process_gets_arguments_and_returns_its_result_as_json(lab: Lab) -> None:
    @agent
    async def all_kinds(ctx: andon.Context) -> Any:
        return [
            await ctx.step(labour.add, 1, other=2, process=True),
            (await ctx.step(labour.mirror, labour.Point(1, 2), process=True)).x,
            await ctx.step(labour.Tool.use, "it", process=True),
            len(await ctx.step(labour.big, 3_000_000, process=True)),
        ]

    async with lab.working(all_kinds):
        run = await lab.client.start(all_kinds)
        assert await lab.result(run) == [3, 2, "used it", 3_000_000]


async def test_processes_are_kept_warm_in_sessions_of_their_own_and_end_with_their_worker(
    local: Lab,
) -> None:
    @agent
    async def twice(ctx: andon.Context) -> Any:
        return [await ctx.step(labour.pid_and_session, process=True) for _ in range(2)]

    async with local.working(twice):
        [first, second] = await local.result(await local.client.start(twice))
        assert first == second
        assert first[0] == first[1] != os.getpid()
        assert _lives(first[0])
    assert not _lives(first[0])


async def test_a_process_with_a_running_thread_is_ended_and_not_kept_warm(local: Lab) -> None:
    @agent
    async def leaves(ctx: andon.Context) -> Any:
        pid = await ctx.step(labour.leave_thread, process=True)
        return [_lives(pid), await ctx.step(labour.add, 1, process=True)]

    async with local.working(leaves):
        assert await local.result(await local.client.start(leaves)) == [False, 1]


async def test_an_error_is_the_same_as_if_it_had_been_raised_here(lab: Lab) -> None:
    async with lab.working(one := calls(labour.fail, "gone", retries=1)):
        run = await lab.end(await lab.client.start(one))
    assert run.error is not None
    assert (run.error["type"], run.error["family"]) == ("KeyError", "KeyError")
    assert "'gone'" in run.error["message"]
    assert [entry.state for entry in await lab.journal(run.id, "step")] == ["retrying", "failed"]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (labour.unstorable, "the result of step 'unstorable'"),
        (labour.leave, "SystemExit: 3"),
        (labour.die, r"ended by itself \(exit 7\) before it had an answer"),
    ],
)
async def test_the_fate_of_the_process_is_the_outcome_of_the_step(
    local: Lab, function: Any, says: str
) -> None:
    found: list[StepFailed] = []

    @agent
    async def one(ctx: andon.Context) -> int:
        try:
            await ctx.step(function, process=True)
        except StepFailed as error:
            found.append(error)
        return int(await ctx.step(labour.add, 1, process=True))

    async with local.working(one):
        assert await local.result(await local.client.start(one)) == 1
    with pytest.raises(StepFailed, match=says):
        raise found[0]


@pytest.mark.parametrize("how", ["cancel", "kill", "timeout", "drain"])
async def test_a_step_process_is_ended_with_its_descendants_before_its_step_is_over(
    lab: Lab, tmp_path: Path, how: str
) -> None:
    pids = tmp_path / "pids"
    gone: list[bool] = []
    timeout = 1.0 if how == "timeout" else None

    @agent
    async def spins(ctx: andon.Context) -> Any:
        try:
            await ctx.step(labour.spin, str(tmp_path), process=True, timeout=timeout)
        finally:
            gone.append(not any(map(_lives, pids.read_text().split())))

    async with lab.working(spins, grace_seconds=1.0):
        run = await lab.client.start(spins)
        await until(pids.exists)
        if how in ("cancel", "kill"):
            receipt = await getattr(lab.client, how)(run)
            await until(lambda: lab.store.stop(receipt).closed_at is not None)
        elif how == "timeout":
            assert (await lab.end(run)).state == "failed"
    assert gone == [True]
    found = {"cancel": "cancelled", "kill": "killed", "timeout": "failed", "drain": "queued"}
    assert (await lab.client.get(run)).state == found[how]
    if how != "timeout":
        assert await lab.journal(run, "step") == []


def _lives(pid: object) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def _async() -> None: ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (_async, "step '_async': process=True expects a plain function, found an async one"),
        (lambda: None, "expects a function that can be found by its name, found <function"),
        (functools.partial(labour.add, 1), "can be found by its name, found functools.partial"),
        (labour.Tool().bound, "can be found by its name, found <bound method"),
    ],
)
async def test_a_function_that_another_process_cannot_call_is_refused_before_execution(
    local: Lab, function: Any, says: str
) -> None:
    async with local.working(one := calls(function)):
        run = await local.end(await local.client.start(one))
    assert run.error is not None
    assert run.error["type"] == "BadInput"
    assert says in run.error["message"]
    assert await local.journal(run.id, "step") == []


async def test_a_context_cannot_be_passed_to_a_step_process(local: Lab) -> None:
    @agent
    async def one(ctx: andon.Context) -> None:
        with pytest.raises(NotStorable, match="argument 1 of step 'add'"):
            await ctx.step(labour.add, ctx, process=True)

    async with local.working(one):
        await local.result(await local.client.start(one))


@pytest.mark.parametrize(
    ("guard", "runs"), [('if __name__ == "__main__":', True), ("if 1:", False)]
)
def test_functions_of_a_programs_own_file_are_found_without_starting_it_again(
    tmp_path: Path, guard: str, runs: bool
) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit('not the one of the standard library')")
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT.format(guard=guard))
    environ = {**os.environ, "PYTHONPATH": str(Path(andon.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, str(folder / "script.py")],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if runs:
        assert done.stdout == "ran as andon_main\n", done.stderr
    else:
        assert "if __name__ == '__main__'" in done.stderr


async def test_an_agent_file_that_was_loaded_by_its_path_is_found(
    local: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from andon.cli import loader

    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "queue.py"  # a name that is taken
    path.write_text(SCRIPT.format(guard="if False:"))
    [found] = loader.load(str(path))
    async with local.working(found):
        pid, name = await local.result(await local.client.start(found))
    assert pid != os.getpid()
    assert name.endswith("_queue")
    del sys.modules[found.function.__module__]

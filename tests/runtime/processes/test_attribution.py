"""A process that a run's code starts carries the run's mark, in any way and from any thread."""

import _thread
import asyncio
import multiprocessing.resource_tracker
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.runtime.harness import Held, Lab, agent, claims_again, until
from tests.runtime.processes import starters
from tests.runtime.processes.starters import WAYS, Children

import andon
from andon.core import mark as marks
from andon.host import mark, proc
from andon.runtime.attempt.attempt import Attempt
from andon.runtime.requests.requests import Receipt
from andon.runtime.worker.peers import mark_of, this_process
from andon.runtime.worker.worker import Worker

PLACES = (
    "the loop",
    "a thread of the pool",
    "a thread of its own",
    "the executor",
    "a user's pool",
)
pytestmark = [
    # Later versions of Python warn of every fork beside other threads; here that is the promise.
    pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning"),
]


@pytest.fixture
def children() -> Iterator[Children]:
    found = Children()
    yield found
    found.end()


@pytest.fixture(autouse=True)
def own_limit() -> Iterator[None]:
    """The limit of the worker's own process is unchanged."""
    # The limit is one for the whole process, and would be the mark of an unrelated process.
    multiprocessing.resource_tracker.ensure_running()
    before = resource.getrlimit(10)
    yield
    assert resource.getrlimit(10) == before


def attempt_mark(worker: Worker) -> int:
    [attempt] = worker.active
    return attempt.started.any_mark()


async def proved(lab: Lab, receipt_id: str) -> Receipt:
    async with asyncio.timeout(30):
        while not (found := await lab.client.receipt(receipt_id)).proved:
            await asyncio.sleep(0.003)
    return found


def in_thread(function: Callable[[], int]) -> int:
    """Call it in a thread that agent code has started itself."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("way", WAYS)
async def test_each_way_of_starting_a_process_marks_it_from_any_place(
    local: Lab, children: Children, way: str
) -> None:
    start = WAYS[way]
    pool = ThreadPoolExecutor(1)

    async def on_loop() -> int:
        return start(children)

    def plain() -> int:
        return start(children)

    def own_thread() -> int:
        return in_thread(plain)

    async def by_executor() -> int:
        return await asyncio.get_running_loop().run_in_executor(None, plain)

    async def by_pool() -> int:
        return await asyncio.wrap_future(pool.submit(plain))

    @agent
    async def all_places(ctx: andon.Context) -> Any:
        steps = [on_loop, plain, own_thread, by_executor, by_pool]
        pids = [await ctx.step(step) for step in steps]
        return [attempt_mark(worker), start(children), *pids]

    with pool:
        async with local.working(all_places) as worker:
            run = await local.client.start(all_places)
            of_attempt, *pids = await local.result(run)
            found = [mark.of(pid) for pid in pids]
    assert marks.belongs(of_attempt, mark_of(this_process()))
    assert found[0] == of_attempt, "by the agent's own code, between two operations"
    numbered = [marks.of_operation(of_attempt, number) for number in range(1, len(PLACES) + 1)]
    assert dict(zip(PLACES, found[1:], strict=True)) == dict(zip(PLACES, numbered, strict=True))


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_subprocesses_of_the_event_loop_are_marked(
    sqlite_url: str, children: Children, loop: str
) -> None:
    async def one() -> int:
        return await starters.by_asyncio(children)

    @agent
    async def both(ctx: andon.Context) -> Any:
        pids = [await ctx.step(one), await ctx.step(one, name="again")]
        return [attempt_mark(worker), *pids]

    worker: Any = None

    async def main() -> None:
        nonlocal worker
        async with Lab(sqlite_url) as lab, lab.working(both) as worker:
            run = await lab.client.start(both)
            of_attempt, *pids = await lab.result(run)
            wanted = [marks.of_operation(of_attempt, number) for number in (1, 2)]
            assert [mark.of(pid) for pid in pids] == wanted
            children.end()
            await until(lambda: not any(proc.alive(pid) for pid in pids))
        lab.store.close()

    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


async def test_a_forked_child_and_its_descendants_keep_the_mark(
    local: Lab, children: Children
) -> None:
    async def step() -> int:
        return starters.fork_that_starts_a_process(children)

    @agent
    async def forks(ctx: andon.Context) -> Any:
        return [attempt_mark(worker), await ctx.step(step)]

    async with local.working(forks) as worker:
        run = await local.client.start(forks)
        of_attempt, pid = await local.result(run)
        assert mark.of(pid) == marks.of_operation(of_attempt, 1)


async def test_a_fork_beside_a_thread_that_starts_a_process_can_start_one_itself(
    local: Lab, children: Children
) -> None:
    """The lock is held by a thread that the child does not have."""
    holds, release = threading.Event(), threading.Event()

    def hold() -> None:
        before = mark.begin(mark.own())
        holds.set()
        release.wait(30)
        mark.finish(before)

    async def step() -> int:
        # Forked by code of no run: the fork itself does not wait for the lock.
        thread.start()
        await asyncio.to_thread(holds.wait, 30)
        return 0

    thread = threading.Thread(target=hold)

    @agent
    async def forks(ctx: andon.Context) -> Any:
        return await ctx.step(step)

    async with local.working(forks):
        await local.result(await local.client.start(forks))
        try:
            pid = starters.fork_that_starts_a_process(children)
            assert proc.alive(pid)
        finally:
            release.set()
            thread.join()


async def test_two_concurrent_runs_keep_their_own_marks(local: Lab, children: Children) -> None:
    reached = [asyncio.Event(), asyncio.Event()]

    @agent
    async def two(ctx: andon.Context, me: int) -> Any:
        async def meet() -> list[int]:
            reached[me].set()
            await reached[1 - me].wait()
            return [WAYS["Popen"](children) for _ in range(5)]

        def plain() -> list[int]:
            return [WAYS["Popen"](children) for _ in range(5)]

        pids = await ctx.step(meet) + await ctx.step(plain)
        return [next(one for one in worker.active if one.run.id == ctx.run_id).started.mark, pids]

    async with local.working(two) as worker:
        runs = [await local.client.start(two, me) for me in (0, 1)]
        [(one, first), (other, second)] = [await local.result(run) for run in runs]
    assert not marks.belongs(one, other)
    for of_attempt, pids in ((one, first), (other, second)):
        found = {mark.of(pid) for pid in pids}
        assert found == {marks.of_operation(of_attempt, number) for number in (1, 2)}


async def test_processes_of_no_run_are_not_marked_meanwhile(local: Lab, children: Children) -> None:
    held = Held()

    async def step() -> int:
        pid = WAYS["Popen"](children)
        await held.here()
        return pid

    @agent
    async def one(ctx: andon.Context) -> Any:
        return await ctx.step(step)

    async with local.working(one):
        run = await local.client.start(one)
        await held.reached.wait()
        before = mark.own()
        for start in WAYS.values():
            assert mark.of(start(children)) == before
        held.release.set()
        await local.result(run)


async def test_a_failed_start_restores_the_limit(local: Lab) -> None:
    async def step() -> None:
        with pytest.raises(FileNotFoundError):
            subprocess.Popen(["/there/is/none"])  # noqa: ASYNC220
        with pytest.raises(FileNotFoundError):
            os.posix_spawn("/there/is/none", ["none"], {})  # noqa: ASYNC221
        seen.append(mark.own())

    seen: list[int] = []

    @agent
    async def one(ctx: andon.Context) -> Any:
        return await ctx.step(step)

    before = mark.own()
    async with local.working(one):
        await local.result(await local.client.start(one))
    assert seen == [before]


async def test_os_system_returns_what_it_always_did(local: Lab) -> None:
    def step() -> list[int]:
        return [os.system("exit 3"), os.system(b"true"), os.system("kill -9 $$")]

    @agent
    async def one(ctx: andon.Context) -> Any:
        return await ctx.step(step)

    async with local.working(one):
        assert await local.result(await local.client.start(one)) == [768, 0, 9]


# ── steps in processes of their own ───────────────────────────────────────────────────────────


async def test_processes_of_a_step_process_are_attributed_and_the_warm_process_is_not(
    local: Lab, children: Children
) -> None:
    @agent
    async def one(ctx: andon.Context) -> Any:
        found = [
            await ctx.step(starters.pids_of_step_and_child, process=True, name=name)
            for name in "ab"
        ]
        return [attempt_mark(worker), *found]

    async with local.working(one) as worker:
        run = await local.client.start(one)
        of_attempt, [warm, first], [again, second] = await local.result(run)
        for pid in (first, second):
            children.add(pid, lambda: None)
        assert warm == again
        wanted = [marks.of_operation(of_attempt, number) for number in (1, 2)]
        assert [mark.of(first), mark.of(second)] == wanted
        assert not marks.belongs(mark.of(warm), of_attempt), "it serves other runs afterwards"


async def test_a_step_process_belongs_to_its_run_while_it_executes(
    local: Lab, tmp_path: Path
) -> None:
    file = tmp_path / "pids"

    @agent
    async def one(ctx: andon.Context) -> Any:
        await ctx.step(starters.write_pids_and_wait, str(file), process=True)

    async with local.working(one) as worker:
        run = await local.client.start(one)
        await until(file.exists)
        pids = [int(word) for word in file.read_text().split()]
        number = marks.of_operation(attempt_mark(worker), 1)
        assert [mark.of(pid) for pid in pids] == [number, number]
        await local.client.cancel(run)
        await local.end(run)
        assert [pid for pid in pids if proc.alive(pid)] == []


# ── consequences ──────────────────────────────────────────────────────────────────────────────


def noted_messages(worker: Worker) -> list[str]:
    """Record the kinds of messages that a worker writes. On SQLite a start is awaited."""
    said: list[str] = []

    def noting(way: str) -> None:
        before = getattr(worker.writer, way)

        def noted(message: Any) -> Any:
            said.append(type(message).__name__)
            return before(message)

        setattr(worker.writer, way, noted)

    for way in ("submit", "submit_from_thread"):
        noting(way)
    return said


async def test_an_attempt_that_starts_no_process_costs_the_store_nothing(lab: Lab) -> None:
    async def step() -> None:
        await asyncio.to_thread(lambda: None)

    @agent
    async def quiet(ctx: andon.Context) -> Any:
        await ctx.step(step)
        await ctx.step(lambda: None, name="plain")
        return [attempt.started.mark for attempt in worker.active]

    async with lab.working(quiet) as worker:
        said = noted_messages(worker)
        run = await lab.client.start(quiet)
        assert await lab.result(run) == [None]
    assert "ProcessStarted" not in said


async def test_the_first_process_of_an_attempt_is_recorded_once(
    lab: Lab, children: Children
) -> None:
    async def step() -> None:
        for _ in range(3):
            WAYS["Popen"](children)

    @agent
    async def starts(ctx: andon.Context) -> Any:
        await ctx.step(step)
        await ctx.step(step, name="again")

    async with lab.working(starts) as worker:
        said = noted_messages(worker)
        await lab.result(await lab.client.start(starts))
    assert said.count("ProcessStarted") == 1


@pytest.mark.parametrize("how", ["pause", "cancel", "drain", "drop"])
async def test_processes_of_a_run_end_before_another_worker_gets_the_run(
    lab: Lab, children: Children, how: str
) -> None:
    held = Held()
    pids: list[int] = []

    async def step() -> None:
        pids.append(WAYS["Popen in a new session"](children))
        await held.here()

    @agent
    async def starts(ctx: andon.Context) -> Any:
        await ctx.step(step)
        return await ctx.event("go")

    async with lab.working(starts, grace_seconds=1.0) as worker:
        run = await lab.client.start(starts)
        await held.reached.wait()
        if how == "drop":
            worker.attempts[run].exit.leave("unavailable")
            await until(lambda: run not in worker.attempts)
            assert not proc.alive(pids[0])
        elif how != "drain":
            receipt = await getattr(lab.client, how)(run, within=5.0)
            if how == "pause":
                held.release.set()
            [row] = (await proved(lab, receipt)).targets
            assert not proc.alive(pids[0])
            assert f"ended processes of it: {pids[0]} sleep 600" in str(row.evidence)
    assert not proc.alive(pids[0])


async def test_processes_that_a_finished_run_left_are_left_alone(
    lab: Lab, children: Children
) -> None:
    """A server that a run has started on purpose continues, as it would without andon."""

    async def step() -> int:
        return WAYS["Popen in a new session"](children)

    @agent
    async def starts(ctx: andon.Context) -> Any:
        return await ctx.step(step)

    async with lab.working(starts):
        pid = await lab.result(await lab.client.start(starts))
    assert proc.alive(pid)


async def test_sigterm_comes_before_sigkill(lab: Lab, children: Children, tmp_path: Path) -> None:
    held, file = Held(), tmp_path / "said"
    code = "trap 'echo ended > \"$0\"; exit' TERM; while :; do sleep 0.01; done"

    async def step() -> None:
        line = ["sh", "-c", f"echo up; {code}", str(file)]
        process = subprocess.Popen(line, stdout=subprocess.PIPE)  # noqa: ASYNC220
        children.add(process.pid, process.communicate)
        assert process.stdout is not None
        process.stdout.readline()
        await held.here()

    @agent
    async def starts(ctx: andon.Context) -> Any:
        await ctx.step(step)
        return await ctx.event("go")

    async with lab.working(starts):
        run = await lab.client.start(starts)
        await held.reached.wait()
        await proved(lab, await lab.client.cancel(run))
    assert file.read_text() == "ended\n"


async def test_ended_processes_are_reported_even_if_the_order_became_hard_meanwhile(
    lab: Lab, children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held()
    pids: list[int] = []

    async def step() -> None:
        pids.append(WAYS["Popen"](children))
        await held.here()

    @agent
    async def starts(ctx: andon.Context) -> None:
        await ctx.step(step)

    settle = Attempt._settle

    async def too_late(attempt: Attempt, outcome: Any) -> str:
        told_later = pytest.MonkeyPatch()
        told_later.setattr(worker.orders, "obey", lambda result: None)
        attempt.settled.add_done_callback(lambda _: told_later.undo())
        await lab.client.cancel(attempt.run.id, within=0)
        return await settle(attempt, outcome)

    monkeypatch.setattr(Attempt, "_settle", too_late)
    async with lab.working(starts, poll_seconds=0.01) as worker:
        run = await lab.client.start(starts)
        await held.reached.wait()
        found = await proved(lab, await lab.client.cancel(run, within=30.0))
    assert str(pids[0]) in str(found.targets[0].evidence)


@pytest.mark.parametrize("how", ["raises", "timeout"])
async def test_an_effect_that_acts_through_a_process_acts_once_even_if_it_fails(
    lab: Lab, tmp_path: Path, how: str
) -> None:
    """The process that its first call started would act besides the second call."""
    acts, go = tmp_path / "acts", tmp_path / "go"
    pids: list[int] = []
    code = 'while [ ! -e "$1" ]; do sleep 0.01; done; echo $$ >> "$0"'

    def find() -> Any:
        return acts.read_text() if acts.exists() else andon.did_not_happen()

    @andon.effect_of(probe=find)
    async def pay() -> str:
        process = await asyncio.create_subprocess_exec("sh", "-c", code, str(acts), str(go))
        pids.append(process.pid)
        if len(pids) == 1:
            if how == "raises":
                raise ConnectionError("the answer was lost")
            await asyncio.Event().wait()
        assert not proc.alive(pids[0]), "the earlier process would act as well"
        go.touch()
        await process.wait()
        return "paid"

    @agent
    async def pays(ctx: andon.Context) -> Any:
        retries = andon.Retry(3, first_seconds=0.001)
        return await ctx.effect(pay, timeout=0.5 if how == "timeout" else 20, retries=retries)

    async with lab.working(pays):
        assert await lab.result(await lab.client.start(pays)) == "paid"
    assert acts.read_text() == f"{pids[1]}\n"


@pytest.mark.parametrize("module", ["threading", "_thread"])
async def test_a_running_thread_of_the_agents_code_keeps_a_pause_unproved(
    lab: Lab, module: str
) -> None:
    held, release, over = Held(), threading.Event(), threading.Event()

    def work() -> None:
        release.wait(30)
        over.set()

    async def step() -> None:
        if module == "threading":
            threading.Thread(target=work).start()
        else:
            _thread.start_new_thread(work, ())
        await held.here()

    @agent
    async def starts(ctx: andon.Context) -> Any:
        await ctx.step(step)
        return await ctx.event("go")

    async with lab.working(starts, poll_seconds=0.01) as worker:
        run = await lab.client.start(starts)
        await held.reached.wait()
        receipt = await lab.client.pause(run, within=30.0)
        held.release.set()
        main = worker.attempts[run].tasks.main
        assert main is not None
        await until(main.done)
        await claims_again(worker)
        assert not (await lab.client.receipt(receipt)).proved
        release.set()
        await proved(lab, receipt)
    assert over.is_set()


async def test_andons_own_worker_marks_itself_and_an_embedded_one_does_not(
    tmp_path: Path,
) -> None:
    code = """
import asyncio, sys
from andon.host import mark
from andon.runtime.worker.peers import mark_of, this_process
from andon.runtime.requests.requests import Receipt
from andon.runtime.worker.worker import Worker
from andon.settings import Settings
from andon.store import open_store

async def main():
    url = sys.argv[1]
    for embedded in (True, False):
        store = open_store(url)
        async with Worker(store, [], Settings(store=url), embedded=embedded):
            print(mark.own() == mark_of(this_process()))
        store.close()

asyncio.run(main())
"""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", code, f"sqlite:///{tmp_path}/andon.db"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["False", "True"], done.stderr

"""A process that is asked to leave is gone in time, whatever hangs, and loses nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.terminal import Process, Terminal, until

from andon.store import open_store
from andon.testing.postgres import Cluster

HANGS = """
import asyncio, pathlib, time
import andon


def mark(ctx):
    pathlib.Path(f"began-{ctx.run_id}").touch()


async def swallow(ctx):
    mark(ctx)
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass


@andon.agent
async def stubborn(ctx):
    await ctx.step(swallow_it(ctx), name="swallow")


def swallow_it(ctx):
    async def step():
        await swallow(ctx)
    return step


@andon.agent
async def blocking(ctx):
    async def step():
        mark(ctx)
        time.sleep(600)  # the event loop stands still
    await ctx.step(step)


@andon.agent
async def shielded(ctx, at_most=600.0):
    async def step():
        mark(ctx)
        await asyncio.sleep(600)
    async with ctx.shield("books", at_most=at_most):
        await ctx.step(step)


async def never():
    await asyncio.sleep(600)


@andon.agent
async def untidy(ctx, how="plain"):
    def step():
        mark(ctx)
    ctx.cleanup(pathlib.Path("first-cleanup").touch)
    ctx.cleanup(time.sleep, 600) if how == "plain" else ctx.cleanup(swallow_cleanup)
    ctx.scratch.joinpath("notes").write_text("temporary")
    pathlib.Path("scratch").write_text(str(ctx.scratch))
    await ctx.step(step)
    await asyncio.sleep(600)


async def swallow_cleanup():
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass


@andon.agent
async def slow(ctx, words=50):
    async def write():
        written = ctx.partial or 0
        while written < words:
            written += 1
            ctx.checkpoint(written)
            mark(ctx)
            await asyncio.sleep(0.05)
        return [written, ctx.attempt]
    return await ctx.step(write)


@andon.agent
async def author(ctx):
    async def write():
        for word in range(ctx.partial or 0, 6):
            with open("words", "a") as file:
                file.write(f"{word}\\n")
            ctx.checkpoint(word + 1)
            if word == 2:
                mark(ctx)
                while not pathlib.Path("go").exists():
                    await asyncio.sleep(0.01)
        return ctx.attempt
    return await ctx.step(write)


@andon.agent
async def slow_effect(ctx):
    def act():
        mark(ctx)
        time.sleep(600)
    await ctx.effect(act)


@andon.agent
async def careful(ctx):
    async def commit():
        mark(ctx)
        while not pathlib.Path("go").exists():
            await asyncio.sleep(0.01)
        pathlib.Path("committed").touch()
    async with ctx.shield("books", at_most=60):
        await ctx.step(commit)
        await ctx.step(pathlib.Path("second").touch)
    await ctx.step(pathlib.Path("after").touch)
"""

NATIVE = (
    HANGS
    + """

import hashlib, multiprocessing


@andon.agent
async def native(ctx):
    async def step():
        mark(ctx)
        hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # no instruction of Python for minutes
    await ctx.step(step)


@andon.agent
async def forking(ctx):
    def step():
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        child.start()
        child.terminate()
        child.join()
        return child.exitcode
    return await ctx.step(step)
"""
)


@pytest.fixture
def site(local: Terminal) -> Terminal:
    (local.folder / "hangs.py").write_text(HANGS)
    return local


def begin(site: Terminal, agent: str, *arguments: str) -> str:
    run_id = site.start(agent, *arguments)
    until((site.folder / f"began-{run_id}").exists, f"the step of {agent}")
    return run_id


def endings(site: Terminal, run_id: str) -> list[str]:
    return [one["ending"] for one in site.json("show", run_id)["attempts"]]


def exit_code_after(worker: Process, number: signal.Signals = signal.SIGTERM) -> int:
    worker.signal(number)
    return worker.ends()


# ── code that hangs ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("agent", ["stubborn", "shielded", "slow_effect"])
def test_a_step_that_will_not_end_is_given_back_and_ends_with_its_process(
    site: Terminal, agent: str
) -> None:
    with site.worker("hangs.py", "--grace", "0.5") as worker:
        run_id = begin(site, agent)
        assert exit_code_after(worker) == 0
    assert endings(site, run_id) == ["cut"]
    assert site.state(run_id) == "queued"


def test_the_effect_of_a_plain_function_that_was_cut_off_is_in_doubt(site: Terminal) -> None:
    with site.worker("hangs.py", "--grace", "0.5") as worker:
        run_id = begin(site, "slow_effect")
        assert exit_code_after(worker) == 0
    [effect] = site.json("show", run_id)["effects"]
    assert effect["state"] == "in_doubt"


def test_a_blocked_event_loop_does_not_outlive_the_grace_period(site: Terminal) -> None:
    with site.worker("hangs.py", "--grace", "0.5") as worker:
        run_id = begin(site, "blocking")
        assert exit_code_after(worker) == 1
    assert "the grace period is over" in worker.text
    with site.worker("hangs.py"):
        until(lambda: site.json("show", run_id)["attempt"] == 2, "the next attempt")


def test_native_code_on_the_main_thread_does_not_outlive_the_grace_period(site: Terminal) -> None:
    (site.folder / "native.py").write_text(NATIVE)
    with site.worker("native.py", "--grace", "0.5") as worker:
        run_id = begin(site, "native")
        assert exit_code_after(worker) == 1
    assert "the grace period is over" in worker.text
    assert site.json("workers", "--old")[0]["draining_at"] is not None, "and it was announced"
    assert site.json("show", run_id)["attempt"] == 1


def test_a_signal_to_a_forked_process_is_not_for_its_worker(site: Terminal) -> None:
    (site.folder / "native.py").write_text(NATIVE)
    with site.worker("native.py") as worker:
        run_id = site.start("forking")
        assert site.json("wait", run_id)["result"] == -signal.SIGTERM
        [row] = site.json("workers")
        assert row["state"] == "serving"
        assert exit_code_after(worker) == 0


@pytest.mark.parametrize("how", ["plain", "async"])
def test_a_cleanup_that_hangs_is_left_behind_and_the_others_are_done(
    site: Terminal, how: str
) -> None:
    with site.worker("hangs.py", "--grace", "1") as worker:
        run_id = begin(site, "untidy", f"how={how}")
        assert exit_code_after(worker) == 0
    assert "a cleanup did not end within" in worker.text
    assert endings(site, run_id) == ["returned"], "the journal came first"
    assert (site.folder / "first-cleanup").exists()


def test_the_files_of_a_run_are_removed_with_it(site: Terminal) -> None:
    with site.worker("hangs.py", "--grace", "2") as worker:
        begin(site, "untidy", "how=async")
        scratch = Path((site.folder / "scratch").read_text())
        assert (scratch / "notes").exists()
        worker.signal(signal.SIGKILL)
        worker.ends()
        assert scratch.exists(), "nobody was left to remove it"
    with site.worker("hangs.py"):
        until(lambda: not scratch.exists(), "the next attempt to remove it")


def test_resources_of_the_worker_are_cleaned_up_after_its_runs_in_reverse(
    site: Terminal,
) -> None:
    (site.folder / "tidy.py").write_text(
        HANGS
        + """

def note(text):
    with open("order", "a") as file:
        file.write(text + "\\n")

andon.cleanup(note, "pool")
andon.cleanup(note, "cache")


@andon.agent
async def tidy(ctx):
    ctx.cleanup(note, "run")
    mark(ctx)
    await asyncio.sleep(600)
"""
    )
    with site.worker("tidy.py", "--grace", "5") as worker:
        begin(site, "tidy")
        assert exit_code_after(worker) == 0
    assert (site.folder / "order").read_text().split() == ["run", "cache", "pool"]


# ── code that is waited for ───────────────────────────────────────────────────────────────────────


def test_a_step_that_is_cut_off_resumes_elsewhere_from_its_partial_value(andon: Terminal) -> None:
    (andon.folder / "hangs.py").write_text(HANGS)
    with (
        andon.worker("hangs.py", "--grace", "0.5") as first,
        andon.worker("hangs.py", "--grace", "0.5") as second,
    ):
        run_id = begin(andon, "author")
        holder = andon.json("show", run_id)["worker"]
        assert exit_code_after(first if str(first.process.pid) in holder else second) == 0
        (andon.folder / "go").touch()
        assert andon.json("wait", run_id)["result"] == 2, "the second attempt ends it"
    assert endings(andon, run_id) == ["cut", "succeeded"]
    assert (andon.folder / "words").read_text().split() == list("012345"), "no word twice"


def test_a_shield_is_waited_for_and_nothing_begins_after_it(site: Terminal) -> None:
    with site.worker("hangs.py", "--grace", "30") as worker:
        run_id = begin(site, "careful")
        worker.signal(signal.SIGTERM)
        worker.says("finishing 1 run")
        (site.folder / "go").touch()
        assert worker.ends() == 0
    assert endings(site, run_id) == ["returned"]
    done = [(site.folder / name).exists() for name in ("committed", "second", "after")]
    assert done == [True, True, False]


# ── a database that is away ───────────────────────────────────────────────────────────────────────


def test_a_database_that_is_away_does_not_delay_the_exit(
    tmp_path: Path, cluster: Cluster, postgres_url: str
) -> None:
    site = Terminal(tmp_path, postgres_url)
    (tmp_path / "hangs.py").write_text(HANGS)
    with site.worker("hangs.py", "--grace", "1") as worker:
        run_id = begin(site, "slow", "words=100000")
        cluster.stop()
        assert exit_code_after(worker) == 1
    assert "NOT requeued" in worker.text or "grace period is over" in worker.text
    cluster.start()
    with site.worker("hangs.py"):
        until(lambda: site.json("show", run_id)["attempt"] == 2, "the next attempt")


# ── a clock that jumps ────────────────────────────────────────────────────────────────────────────


def test_a_clock_that_jumps_while_it_drains_changes_nothing_about_its_end(site: Terminal) -> None:
    """An hour forward: by the store's clock the lease ended long ago."""
    with site.worker("hangs.py", "--grace", "1") as worker:
        run_id = begin(site, "slow", "words=100000")
        store = open_store(site.url)
        try:
            db = store._writer
            with store._writing:
                db.execute("UPDATE andon_workers SET lease_until = lease_until - 3600").fetchall()
        finally:
            store.close()
        assert exit_code_after(worker) == 0
    with site.worker("hangs.py"):
        until(lambda: site.json("show", run_id)["attempt"] == 2, "the next attempt")


# ── environments ──────────────────────────────────────────────────────────────────────────────────


def test_a_worker_drains_under_uvloop(site: Terminal) -> None:
    (site.folder / "quick.py").write_text("import uvloop\nuvloop.install()\n" + HANGS)
    with site.worker("quick.py", "--grace", "0.5") as worker:
        run_id = begin(site, "slow", "words=100000")
        assert exit_code_after(worker) == 0
    assert endings(site, run_id) == ["cut"]


def test_a_worker_drains_as_the_first_process_of_a_container(site: Terminal) -> None:
    unshare = shutil.which("unshare")
    trial = [unshare or "unshare", "--pid", "--fork", "--mount-proc", "true"]
    if unshare is None or subprocess.run(trial, check=False, capture_output=True).returncode:
        pytest.skip("no right to make a pid namespace here")
    command = [*trial[:-1], sys.executable, "-m", "andon", "work", "hangs.py", "--grace", "0.5"]
    with subprocess.Popen(
        command, cwd=site.folder, env=site.environment, stderr=subprocess.PIPE, text=True
    ) as outer:
        worker = Process(outer)
        worker.says("is ready")
        run_id = begin(site, "slow", "words=100000")
        [inner] = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        os.kill(int(inner), signal.SIGTERM)
        assert worker.ends() == 0
    assert endings(site, run_id) == ["cut"]


SERVER = """
import asyncio, contextlib, pathlib, signal, sys
import andon
from hangs import slow

said = []


async def main():
    loop, over = asyncio.get_running_loop(), asyncio.Event()

    def mine():
        said.append("mine")
        over.set()

    loop.add_signal_handler(signal.SIGTERM, mine)
    async with andon.serving(slow):
        print("is ready", file=sys.stderr, flush=True)
        await over.wait()
    print("said", *said, file=sys.stderr, flush=True)


asyncio.run(main())
"""


def test_a_program_with_its_own_signal_handlers_keeps_them(site: Terminal) -> None:
    (site.folder / "server.py").write_text(SERVER)
    environment = {**site.environment, "ANDON_GRACE_SECONDS": "0.5"}
    with subprocess.Popen(
        [sys.executable, "server.py"],
        cwd=site.folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        server = Process(process)
        server.says("is ready")
        run_id = begin(site, "slow", "words=100000")
        assert exit_code_after(server) == 0
        assert "said mine" in server.text
    assert endings(site, run_id) == ["cut"]


ASGI = """
import andon, uvicorn
from starlette.applications import Starlette
from hangs import slow

app = Starlette(lifespan=andon.serving(slow))
uvicorn.run(app, port=0, log_level="info")
"""


def test_the_lifespan_of_a_web_server_drains(site: Terminal) -> None:
    (site.folder / "web.py").write_text(ASGI)
    environment = {**site.environment, "ANDON_GRACE_SECONDS": "0.5"}
    with subprocess.Popen(
        [sys.executable, "web.py"],
        cwd=site.folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        server = Process(process)
        server.says("Application startup complete")
        run_id = begin(site, "slow", "words=100000")
        server.signal(signal.SIGTERM)
        server.ends()
        assert "Application shutdown complete" in server.text
    assert endings(site, run_id) == ["cut"]


# ── one run in the foreground ─────────────────────────────────────────────────────────────────────


def test_a_single_run_prints_its_result(andon: Terminal) -> None:
    assert andon("run", "agents.py:greet", "name=you").strip() == '"hello you"'
    failed = andon.run("run", "agents.py:fails", code=1)
    assert failed.stdout == ""
    assert f'File "{andon.folder / "agents.py"}"' in failed.stderr, "where the agent failed"
    assert " failed: ValueError" in failed.stderr.splitlines()[-2]


def test_a_single_run_that_was_saved_unfinished_exits_with_75_and_resumes(
    andon: Terminal,
) -> None:
    (andon.folder / "hangs.py").write_text(HANGS)
    arguments = ("run", "hangs.py:slow", "--id", "mine", "--grace", "0.5", "words=60")
    with andon.process(*arguments) as first:
        until((andon.folder / "began-mine").exists, "its step")
        first.signal(signal.SIGTERM)
        assert first.ends() == 75
    assert "saved unfinished" in first.text
    assert json.loads(andon(*arguments)) == [60, 2]
    assert endings(andon, "mine") == ["cut", "succeeded"]


def test_a_file_with_several_agents_needs_a_name(local: Terminal) -> None:
    assert "Say which" in local.error("run", "agents.py", code=2)


# ── other requests ────────────────────────────────────────────────────────────────────────────────


def test_a_handler_that_the_agents_file_installed_is_called_too(site: Terminal) -> None:
    own = 'signal.signal(signal.SIGTERM, lambda *_: pathlib.Path("mine").touch())'
    text = f"import pathlib, signal\n{own}\n"
    (site.folder / "own.py").write_text(text + HANGS)
    with site.worker("own.py", "--grace", "1") as worker:
        assert exit_code_after(worker) == 0
    assert (site.folder / "mine").exists()


# ── threads that Python would wait for ────────────────────────────────────────────────────────────


THREADS = """
import asyncio, pathlib, threading, time
import andon


@andon.agent
async def elsewhere(ctx):
    async def step():
        pathlib.Path(f"began-{ctx.run_id}").touch()
        await asyncio.to_thread(time.sleep, 600)
    await ctx.step(step)


@andon.agent
async def impatient(ctx):
    try:
        await ctx.step(time.sleep, 600, timeout=0.05)
    except andon.StepFailed:
        return "went on without it"


@andon.agent
async def wordy(ctx):
    return "x" * 300_000
"""


def test_a_thread_of_the_agents_own_changes_neither_the_end_nor_its_code(local: Terminal) -> None:
    (local.folder / "threads.py").write_text(THREADS)
    with local.worker("threads.py", "--grace", "0.5") as worker:
        run_id = begin(local, "elsewhere")
        assert exit_code_after(worker) == 0
    assert "grace period is over" not in worker.text
    assert endings(local, run_id) == ["cut"]


def test_a_single_run_that_is_over_says_so_although_a_thread_continues(local: Terminal) -> None:
    (local.folder / "threads.py").write_text(THREADS)
    assert local("run", "threads.py:impatient").strip() == '"went on without it"'


def test_a_single_run_that_another_worker_takes_ends_with_it(local: Terminal) -> None:
    (local.folder / "hangs.py").write_text(HANGS)
    with local.worker("hangs.py"):
        run_id = begin(local, "slow", "words=60")
        found = local("run", "hangs.py:slow", "--id", run_id, "words=60")
    assert json.loads(found) == [60, 1]


def test_the_grace_period_does_not_limit_the_reader_of_the_result(local: Terminal) -> None:
    (local.folder / "threads.py").write_text(THREADS)
    command = [sys.executable, "-m", "andon", "run", "threads.py:wordy", "--grace", "0.2"]
    with subprocess.Popen(
        command, cwd=local.folder, env=local.environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline(1)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.5)
        assert len((first + process.stdout.read()).strip()) == 300_002
    assert process.returncode == 0

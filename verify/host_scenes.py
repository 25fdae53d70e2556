"""Scenes of a host, judged from outside: live processes, files, and runs that begin again.

No andon process is asked whether it did its work. Every process of a fleet holds a pipe
(tests/chaos/test_halt.py): when a command says that all of them have ended, the pipe must be
closed.
"""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tests.chaos.test_halt import FLEET, assert_none_left, assert_nothing_begins, counted, halted
from tests.cli.hosts import Host, gone
from tests.cli.terminal import Process, until
from tests.control.halt.test_halt import BUSY

from andon.host import home as homes
from andon.host import proc
from andon.host.latch import Latch
from andon.host.proc import alive
from andon.runtime.worker.peers import this_process
from andon.store.messages.stops import Reauthorize, TargetRow
from andon.store.store import Register

RUN = "r"
# It ends as soon as another process has escaped from its group; that one goes on.
LEAVES = (
    FLEET.partition('open("stays"')[0]
    + """
while not os.path.exists("escaped") or not os.path.getsize("escaped"):
    time.sleep(0.01)
"""
)
# Its main thread exits, as `exit(2)` does it; the kernel calls the process a zombie, and it acts.
LEADERLESS = """
import ctypes, os, platform, threading, time
import andon

def act():
    os.open("alive", os.O_WRONLY)
    open("escaped", "w").write(str(os.getpid()))
    time.sleep(600)

async def leave():
    threading.Thread(target=act).start()
    while not os.path.exists("escaped") or not os.path.getsize("escaped"):
        time.sleep(0.01)
    number = 93 if platform.machine() == "aarch64" else 60
    ctypes.CDLL(None).syscall(ctypes.c_long(number), ctypes.c_long(0))

@andon.agent
async def leaderless(ctx: andon.Context) -> None:
    await ctx.step(leave)
"""
# Its step starts a program that leaves its session and keeps running, and waits.
LAUNCHES = """
import asyncio, subprocess, sys
import andon

async def launch(code):
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    await asyncio.sleep(600)

@andon.agent
async def launches(ctx: andon.Context, code: str) -> None:
    await ctx.step(launch, code)
"""
ORPHAN = """
import os, time
os.open("alive", os.O_WRONLY)
open("escaped", "w").write(str(os.getpid()))
time.sleep(600)
"""
AWAY = {"ANDON_STORE": "sqlite:////nowhere/andon.db"}
NOT_PROVED = 3
NOBODY = 1 << 22  # no kernel counts that far


@contextmanager
def fleet(host: Host, code: str = FLEET, faults: str = "") -> Iterator[tuple[Process, int]]:
    """A command and a process that escaped from it; the pipe that both of them hold."""
    env = {"ANDON_FAULTS": faults} if faults else {}
    command = ["--id", RUN, "--", sys.executable, "-c", code]
    with counted(host.folder) as reader, host.command(*command, env=env) as process:
        host.pid_in("escaped")
        yield process, reader


def all_gone(reader: int) -> bool:
    """Now, not soon."""
    watch = select.poll()
    watch.register(reader, select.POLLHUP)
    return bool(watch.poll(0))


def pulled(host: Host) -> bool:
    return Latch(str(host.home)).look().pulled


def supervisor_of(host: Host) -> int:
    [entry] = [one for one in homes.live(str(host.home)) if one.kind == "supervisor"]
    return entry.pid


@contextmanager
def agents_known(host: Host) -> Iterator[Process]:
    """A worker without a supervisor, which registers the agents' names."""
    with host.process("work", "agents.py") as worker:
        worker.says("is ready")
        yield worker


# ── pulling and lifting the latch ─────────────────────────────────────────────────────────────────


def touched(host: Host) -> None:
    """STOP is touched by hand; deleting it lifts nothing, a person who has seen it does."""
    with agents_known(host) as worker, fleet(host) as (process, reader):
        (host.home / "STOP").touch()
        assert_none_left(reader)
        assert process.ends() != 0
        assert worker.ends() != 0
    with host.store() as store:
        assert [one.kind for one in store.latches()] == ["halt"], "the store was not told"
        epoch = store.latches()[0].epoch
    (host.home / "STOP").unlink()
    assert_nothing_begins(host)
    refused(host, "--why", " ", env=AWAY)  # the store, which would refuse it too, is not asked
    refused(host, "--why", "so", "--by", " ", env=AWAY)
    refused(host, "--why", "so", f"--epoch={epoch - 1}")
    with host.process("up", "agents.py") as supervisor:
        supervisor.says("nothing is started")
        until(lambda: list(host.home.glob("run/*.sock")), "its socket")
        begun = [one["child"] for one in host.status()["children"] if one["pid"]]
        assert begun in ([], ["control"]), f"{begun} begun under the latch"
    with host.store() as store:
        assert store.latches(), "it is lifted in the store"
    host.run("reauthorize", "--yes", "--why", "looked")
    assert not pulled(host)
    assert host.run("run", "--", sys.executable, "-c", "print('goes on')").stdout == "goes on\n"
    found = host.run_of(RUN)
    assert found is not None
    assert found.state in ("killed", "queued"), f"{RUN} is {found.state}"


def refused(host: Host, *words: str, **given: Any) -> None:
    with host.process("reauthorize", "--yes", *words, **given) as process:
        assert process.ends() != 0, f"it is lifted by {words}"
    assert pulled(host), f"it is lifted by {words}"


def signalled(host: Host) -> int:
    """A supervisor gets a signal and dies while it obeys: the latch holds by then."""
    with agents_known(host), fleet(host, faults="halt:killing=kill") as (_, reader):
        pid = supervisor_of(host)
        os.kill(pid, signal.SIGUSR1)
        gone(pid)
        gone(host.pid_in("stays"))  # with its parent
        assert pulled(host), "it was told to halt and died, and nothing holds"
        halted(host)
        assert_none_left(reader)
    assert_nothing_begins(host)
    return 1


def elsewhere(host: Host) -> None:
    """Another host of the same store is halted: the halt is proved when no process is left here."""
    with fleet(host) as (_, reader):
        with host.process("halt", env={"ANDON_HOME": str(host.folder / "other")}) as process:
            code = process.ends()
        assert all_gone(reader) or code == NOT_PROVED, "proved, and some live"
        assert_none_left(reader)
    assert pulled(host), "the latch of this host is not pulled"


def frozen(host: Host) -> None:
    """The command ends a frozen process, which protects nothing."""
    with agents_known(host) as worker, fleet(host) as (process, reader):
        for one in (worker.process.pid, supervisor_of(host)):
            os.kill(one, signal.SIGSTOP)
        host.run("halt")
        assert all_gone(reader), "proved, and some live"
        assert worker.process.poll() is not None, "proved, and the worker lives"
        assert process.ends() != 0


def unseen(host: Host) -> None:
    """Nobody on this host can know whether a worker of another host has ended."""
    far = this_process().but(boot="another", pid=NOBODY)
    with host.store() as store:
        store.write([Register(worker=far, agents=(), lease_seconds=600.0)])
    found = host.json("halt", "--wait", "2", code=NOT_PROVED)
    assert not found["proved"]
    with host.store() as store:

        def rows() -> list[TargetRow]:
            return [one for one in store.targets(found["receipt"]) if one.worker == far.id]

        [row] = until(rows, "the order is written")  # it may continue without the command
        assert row.stage != "verified", f"no process of it was observed: {row.evidence}"


def stopped(host: Host) -> None:
    """One run is killed: with all that it started, or with the process that is stuck in it."""
    with fleet(host) as (_, reader):
        assert host.json("kill", RUN)["proved"]
        assert all_gone(reader), "proved, and some live"
    (host.folder / "busy.py").write_text(BUSY)
    with host.process("work", "busy.py") as worker:
        worker.says("is ready")
        run = host.start("busy", "marker=busy")
        until((host.folder / "busy").exists, "the step")
        assert host.json("kill", run)["proved"]
        assert not alive(worker.process.pid), "proved, and its process lives"


def leaderless(host: Host) -> None:
    """A worker whose main thread has left is not gone while another of its threads acts."""
    (host.folder / "leaderless.py").write_text(LEADERLESS)
    with counted(host.folder) as reader, host.process("work", "leaderless.py") as worker:
        worker.says("is ready")
        run = host.start("leaderless")
        host.pid_in("escaped")
        assert host.json("kill", run)["proved"]
        assert all_gone(reader), "proved, and a thread of it lives"


def launched(host: Host) -> None:
    """A program that a step started is ended with its run, even if it left the process group."""
    (host.folder / "launches.py").write_text(LAUNCHES)
    with counted(host.folder) as reader, host.process("work", "launches.py") as worker:
        worker.says("is ready")
        run = host.start("launches", f"code={ORPHAN}")
        host.pid_in("escaped")
        assert host.json("kill", run)["proved"]
        assert all_gone(reader), "proved, and a program it started lives"


def orphaned(host: Host) -> None:
    """A worker dies; another one ends the programs it started before it resumes the run."""
    (host.folder / "launches.py").write_text(LAUNCHES)
    with counted(host.folder) as reader, host.process("work", "launches.py") as worker:
        worker.says("is ready")
        run = host.start("launches", f"code={ORPHAN}")
        orphan = host.pid_in("escaped")
        (host.folder / "escaped").unlink()
        worker.process.kill()
        with host.process("work", "launches.py"):
            assert host.pid_in("escaped") != orphan, "the run goes on"
            assert not alive(orphan), "its run goes on elsewhere, and it lives"
            assert host.json("kill", run)["proved"]
        assert all_gone(reader), "proved, and a program it started lives"


def newer(host: Host) -> None:
    """This host follows a lift in the store, unless the latch was pulled again since."""
    latch = Latch(str(host.home))
    # It may be frozen while it holds the store's lock; then it is ended.
    host.environment["ANDON_WATCHDOG_SECONDS"] = "2"
    with host.up() as supervisor:
        host.run("halt")
        lift(host)
        until(lambda: not pulled(host), "the lift is followed here")
        until(lambda: supervisor.text.count("is ready") > 1, "workers are started again")
        host.run("halt")
        control = host.control_pid()
        os.kill(control, signal.SIGSTOP)
        lift(host)
        epoch = latch.pull("ben", "it is odd again").epoch
        with suppress(ProcessLookupError):
            os.kill(control, signal.SIGCONT)
        with host.store() as store:
            until(store.latches, "the store knows of the newer pull")
        assert latch.look().epoch == epoch, "a pull was lifted unseen"
        assert latch.look().pulled, "a pull was lifted unseen"


def lift(host: Host) -> None:
    """In the store alone, as a person on another host would."""
    with host.store() as store:
        [one] = store.latches()
        store.write([Reauthorize(epoch=one.epoch, scope=one.scope, by="ana", why="looked")])
        assert not store.latches()


def cut_off(host: Host) -> None:
    """A host that loses contact with its store ends what it has begun."""
    # Long enough for a busy machine to begin.
    host.environment |= {"ANDON_LOST_CONTACT": "stop", "ANDON_LOST_CONTACT_SECONDS": "5"}
    with fleet(host) as (_, reader):
        os.kill(host.control_pid(), signal.SIGSTOP)
        assert_none_left(reader)


def stalled(host: Host) -> None:
    """A worker without a sign of life is ended, and another one is started."""
    host.environment["ANDON_WATCHDOG_SECONDS"] = "2"
    with host.up() as supervisor:
        worker = worker_of(host)
        os.kill(worker, signal.SIGSTOP)
        gone(worker)
        until(lambda: supervisor.text.count("is ready") > 1, "another worker")


# ── what supervisors leave behind and take over ───────────────────────────────────────────────────


def left_behind(host: Host) -> None:
    """A command has not ended while any of its processes is alive."""
    with fleet(host, LEAVES) as (process, reader):

        def over() -> bool:
            row = host.run_of(RUN)
            return row is not None and row.state not in ("queued", "running")

        until(over, "the end of the run")
        assert all_gone(reader), "its run has ended, and some of it live"
        process.ends()
    assert not [one for one in homes.live(str(host.home)) if one.kind == "supervisor"]


def neighbours(host: Host) -> None:
    """Two supervisors of one home: neither ends the other's processes."""
    with fleet(host) as (_, reader):
        stays = host.pid_in("stays")
        said = host.run("run", "--", sys.executable, "-c", "print('beside it')").stdout
        assert said == "beside it\n"
        assert alive(stays), "another supervisor has ended it"
        host.run("halt")
        assert all_gone(reader), "proved, and some live"


def upgraded(host: Host) -> None:
    """A new image in the same process owns the children of the old one."""
    with host.up() as supervisor:
        worker = worker_of(host)
        os.kill(supervisor_of(host), signal.SIGUSR2)
        supervisor.says("upgraded in place")
        assert alive(worker), "the upgrade has ended it"
        host.run("halt")
        assert not alive(worker), "proved, and it lives"


def worker_of(host: Host) -> int:
    def found() -> int:
        workers = [one["pid"] for one in host.status()["children"] if one["kind"] == "worker"]
        return int(workers[0] or 0)

    return int(until(found, "its worker"))


def stranger(host: Host) -> None:
    """A process that only reuses the number of a dead one, or of another boot, is left alone."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as innocent:
        try:
            _blame(host, innocent.pid)
            host.run("run", "--", sys.executable, "-c", "")
            assert innocent.poll() is None, "the next supervisor has ended it"
            _blame(host, innocent.pid)
            host.run("halt")
            assert innocent.poll() is None, "the halt has ended it"
        finally:
            innocent.kill()


def _blame(host: Host, pid: int) -> None:
    """Registers it under the name of a dead process."""
    ticks = proc.start_ticks(pid)
    homes.make(str(host.home))
    for name, owner, boot, started in (
        ("used", pid, proc.boot_id(), ticks + 1),
        ("owned", NOBODY, proc.boot_id(), ticks + 1),
        ("booted", NOBODY, "another", ticks),
    ):
        entry = homes.this_process(f"s{name}", "supervisor")
        entry = entry._replace(pid=owner, start_ticks=started, boot=boot)
        homes.register(str(host.home), entry)
        homes.register(str(host.home), entry._replace(id=f"w{name}", kind="worker", pid=pid))
        tree = {"name": name, "by": "walk", "pid": pid, "start_ticks": started, "mark": 12345}
        child = {"name": name, "kind": "worker", "argv": [], "pid": pid, "start_ticks": started}
        state = {**entry._asdict(), "children": [{**child, "tree": tree}]}
        (host.home / "state" / f"{entry.id}.json").write_text(json.dumps(state))


# By the point at which each of them is killed.
SCENES = {
    "halt:latched": (touched, newer),
    "halt:sent": (elsewhere, unseen),
    "halt:killing": (frozen, stopped, cut_off, stalled),
    "stop:told": (leaderless, launched, orphaned),
    "supervisor:spawned": (left_behind, neighbours, upgraded, stranger),
}
STORED = (newer, elsewhere, unseen)

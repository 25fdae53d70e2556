"""One system's side of the measurement: JSON lines on stdin and stdout, inside its environment.

    {"ask": "steps", "with": {"count": 200}}  →  {"answer": {…}}  or  {"absent": WHY}

Standard library only. Every measurement is here and the same for all: a system only implements how
its servers and workers are started and how a run is enqueued. Worker processes execute the runs;
their notes are read from the log that they write (scenes.py).
"""

import asyncio
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from driver import Cannot, spawn
from driver import main as answer_questions
from notes import LIMIT_SECONDS, Log
from resources import group_of, kill, postgres_bytes, processes, resident, sqlite_bytes
from scenes import note

LONG_SECONDS = 800
GRACE_SECONDS = 2
AGAIN_SECONDS = 20
FIRST_FEW = 10
WRITTEN_SECONDS = 1.0  # the end of a run is written after its last word
SETTLE_SECONDS = 3.0  # by then every system's leases of a dead worker have ended


class Absent(Exception):
    """The system has no such feature; the message says which."""


class Loop:
    """An event loop for an asynchronous client.

    It turns on the caller's own thread, as that of a program that awaits the call: another thread
    would add two switches to every enqueue.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self.began = self.ended = 0.0  # of the last work, on the loop: that of a program turns
        signal.signal(signal.SIGALRM, _over)

    def run(self, *works: Coroutine[Any, Any, Any]) -> Any:
        """Runs all at once, or a single one directly; returns the results."""
        signal.alarm(LIMIT_SECONDS)
        try:
            return self._loop.run_until_complete(self._timed(works))
        finally:
            signal.alarm(0)

    async def _timed(self, works: tuple[Coroutine[Any, Any, Any], ...]) -> Any:
        self.began = time.monotonic()
        answer = await (works[0] if len(works) == 1 else asyncio.gather(*works))
        self.ended = time.monotonic()
        return answer


def _over(*_: Any) -> None:
    raise TimeoutError(f"not done within {LIMIT_SECONDS} s")


class System:
    """The operations that each system implements, and the measurements."""

    standby = True  # another live worker resumes the runs of a dead one
    program = ""  # the file of its driver
    loop: Loop | None = None  # if its client is asynchronous

    def __init__(self, folder: Path, store: str) -> None:
        self.folder, self.store = folder, store
        self.postgres = os.environ.get("BENCH_POSTGRES", "")
        self.sqlite = folder / "store.db"
        os.environ["BENCH_LOG"] = str(folder / "log")
        os.environ["BENCH_STORE"] = store
        self.log = Log(folder / "log")
        self.workers: list[subprocess.Popen[bytes]] = []
        self.serves = (0, 0)
        self._numbers = itertools.count()

    # ── implemented by each system ────────────────────────────────────────────────────────────

    def open(self) -> dict[str, str]:
        """Starts its servers; returns the versions of everything."""
        raise NotImplementedError

    def close(self) -> None:
        self.dismiss()

    def submit(self, scene: str, runs: list[list[Any]]) -> None:
        """Enqueues runs, as quickly as its client can; each is a key and the scene's numbers."""
        raise NotImplementedError

    def worker(self, concurrency: int) -> "subprocess.Popen[bytes]":
        return self.spawn([sys.executable, self.program, "work", str(self.folder), self.store])

    def ready(self, process: "subprocess.Popen[bytes]") -> bool:
        """Whether that worker takes runs."""
        return any(group_of(one.pid) == process.pid for one in self.log.of("ready"))

    def size(self) -> int:
        """The bytes it keeps on disk."""
        return (
            sqlite_bytes(self.sqlite) if self.store == "sqlite" else postgres_bytes(self.postgres)
        )

    def copies(self) -> Any:
        """The rows of a finished run (copies.py); one was executed just before."""
        raise Absent("its finished runs cannot be written with SQL")

    # ── workers ───────────────────────────────────────────────────────────────────────────────

    def spawn(self, command: list[str], **environ: str) -> "subprocess.Popen[bytes]":
        return spawn([*command], self.folder, apart=True, **environ)

    def serve(self, workers: int = 1, concurrency: int = 10) -> None:
        """Exactly so many workers; existing ones stay if they are the right ones."""
        if self.serves == (workers, concurrency) and all(
            one.poll() is None for one in self.workers
        ):
            return
        self.dismiss()
        for _ in range(workers):
            self.hire(concurrency)
        self.serves = (workers, concurrency)

    def hire(self, concurrency: int) -> "subprocess.Popen[bytes]":
        os.environ["BENCH_CONCURRENCY"] = str(concurrency)
        process = self.worker(concurrency)
        self.workers.append(process)
        end = time.monotonic() + 60
        while not self.ready(process):
            if process.poll() is not None or time.monotonic() > end:
                raise Cannot(f"its worker did not start: {self.last_words()}")
            time.sleep(0.005)
        return process

    def dismiss(self) -> None:
        for process in self.workers:
            kill(process)
        self.workers.clear()
        self.serves = (0, 0)

    def last_words(self) -> str:
        logs = sorted(self.folder.glob("*.log"), key=lambda log: log.stat().st_mtime)
        texts = [log.read_text("utf-8", "replace").strip()[-600:] for log in logs]
        return "\n".join([text for text in texts if text][-2:])

    def key(self, word: str) -> str:
        return f"{word}{next(self._numbers)}"

    def begin(self, scene: str, *numbers: int) -> str:
        key = self.key(scene)
        self.submit(scene, [[key, *numbers]])
        return key

    # ── measurements ──────────────────────────────────────────────────────────────────────────

    def steps(self, count: int, scene: str = "steps") -> dict[str, Any]:
        """Durable steps of one run, one after the other: between the bodies of two of them."""
        self.serve()
        key = self.begin(scene, count)
        done = self.log.wait({f"done-{key}"})[f"done-{key}"]
        gaps = sorted(json.loads(done.text) or self._gaps(key))
        return {"step": statistics.median(gaps), "p99": gaps[int(0.99 * (len(gaps) - 1))]}

    def _gaps(self, key: str) -> list[float]:
        stamps = [one.at for one in self.log.of(f"step-{key}")]
        return [later - earlier for earlier, later in itertools.pairwise(stamps)]

    def plain(self, count: int) -> dict[str, Any]:
        """The same with a plain function, where that is another way."""
        return {}

    def crowd(self, runs: int, steps: int, workers: int = 1) -> dict[str, Any]:
        """Many runs at once, from the beginning of the first to the end of the last."""
        self.serve(workers, concurrency=-(-runs // workers))
        keys = [self.key("steps") for _ in range(runs)]
        self.submit("steps", [[key, steps] for key in keys])
        done = self.log.wait({f"done-{key}" for key in keys})
        began = min(self.log.wait({f"begun-{key}" for key in keys}).values(), key=lambda n: n.at)
        return {"rate": runs * steps / (max(one.at for one in done.values()) - began.at)}

    def latency(self, count: int) -> dict[str, Any]:
        """From the call that enqueues a run until its first line, with a worker that is idle."""
        self.serve()
        starts, calls = [], []
        for _ in range(count):
            # At a varying phase of the rhythm at which the system polls.
            time.sleep(random.uniform(0.02, 0.15))
            asked = time.monotonic()
            key = self.begin("short")
            answered = time.monotonic()
            if self.loop is not None:
                asked, answered = self.loop.began, self.loop.ended
            calls.append(answered - asked)
            begun = self.log.wait({f"begun-{key}"})[f"begun-{key}"]
            starts.append(begun.at - asked)
            self.log.wait({f"done-{key}"})
        return {"start": statistics.median(starts), "enqueue": statistics.median(calls)}

    def short(self, count: int) -> dict[str, Any]:
        """Runs of one step: from the first that is enqueued to the last that is done."""
        self.serve(concurrency=100)
        keys = [self.key("short") for _ in range(count)]
        asked = time.monotonic()
        self.submit("short", [[key] for key in keys])
        done = self.log.wait({f"done-{key}" for key in keys})
        return {"rate": count / (max(one.at for one in done.values()) - asked)}

    def recovery(self, steps: int) -> dict[str, Any]:
        """SIGKILL in the middle of an outside action, until the run is resumed."""
        self.serve(workers=2 if self.standby else 1)
        key = self.begin("crash", steps)
        acted = self.log.wait({f"acted-{key}"})[f"acted-{key}"]
        killed = time.monotonic()
        self.fell(acted.pid)
        if not self.standby:
            self.hire(10)
        went_on = self.log.wait({f"went-on-{key}"})[f"went-on-{key}"]
        acts = [one for one in self.log.of(f"acted-{key}") if one.at > killed]
        self.log.wait({f"done-{key}"})
        again = min([one.at for one in [*acts, went_on]])
        took = again - killed
        by = "another live worker" if self.standby else "a new process"
        return {
            "resumed": took,
            "worst": took,
            "repeated": len(acts),
            "steps repeated": len(self.log.of(f"step-{key}")) - steps,
            "by": by,
        }

    def fell(self, pid: int) -> None:
        """SIGKILL to the worker of this process, with all processes that belong to it."""
        victim = self.holder(pid)
        kill(victim)
        self.workers.remove(victim)
        self.serves = (0, 0)

    def holder(self, pid: int) -> "subprocess.Popen[bytes]":
        """The worker to which a process belongs."""
        [found] = [one for one in self.workers if one.pid == os.getpgid(pid)]
        return found

    def leaving(self) -> dict[str, Any]:
        """SIGTERM with a step of five seconds in flight and a grace period of two."""
        self.serve(workers=2 if self.standby else 1)
        key = self.begin("leave", 1)
        self.log.wait({f"writing-{key}"})
        time.sleep(1.0)
        leaver = self.holder(self.log.of(f"writing-{key}")[0].pid)
        asked = time.monotonic()
        leaver.send_signal(signal.SIGTERM)
        took = _exit_seconds(leaver, asked)
        code = None if leaver.returncode is None else str(leaver.returncode)
        found = {"exit": took, "code": code, **self.left_behind(leaver)}
        kill(leaver)
        self.workers.remove(leaver)
        self.serves = (0, 0)
        if self.log.of(f"written-{key}"):
            return {**found, "in flight": "waited for"}
        if not self.standby:
            self.hire(10)
        end = time.monotonic() + AGAIN_SECONDS
        while len(writings := self.log.of(f"writing-{key}")) < 2 and time.monotonic() < end:
            time.sleep(0.001)
        if len(writings) < 2:
            return {**found, "in flight": f"not resumed in {AGAIN_SECONDS} s"}
        kept = int(writings[1].text) > 0
        word = "kept and resumed" if kept else "lost"
        return {**found, "in flight": word, "elsewhere": writings[1].at - asked}

    def left_behind(self, leaver: "subprocess.Popen[bytes]") -> dict[str, Any]:
        """Other information of a system about a worker that has left."""
        return {}

    def storage(self, steps: int, messages: int) -> dict[str, Any]:
        """Bytes for a step of 1 KB, and for a message of a conversation that grows."""
        self.serve()
        sizes = []
        for scene, count in (("steps", steps), ("chat", messages // 4), ("chat", messages)):
            before = self.size()
            key = self.begin(scene, count)
            self.log.wait({f"done-{key}"})
            time.sleep(WRITTEN_SECONDS)
            sizes.append(self.size() - before)
        return {
            "per step": sizes[0] / steps,
            "conversation": sizes[2],
            "growth": sizes[2] / sizes[1] / 4 if sizes[1] > 0 else None,
        }

    def fill(self, count: int) -> None:
        """So many finished runs beside the existing ones."""
        self.serve()
        key = self.begin("tiny")
        self.log.wait({f"done-{key}"})
        time.sleep(WRITTEN_SECONDS)
        self.dismiss()
        program = Path(__file__).with_name("copies.py")
        place = str(self.sqlite) if self.store == "sqlite" else self.postgres
        given = [self.store, place, json.dumps(self.copies()), str(count)]
        done = subprocess.run(
            [sys.executable, program, *given], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Cannot(f"finished runs could not be written: {done.stderr[-300:]}")

    def resume(self, steps: int) -> dict[str, Any]:
        """A new worker resumes a run that has so many finished steps."""
        self.serve()
        key = self.begin("crash", steps)
        self.log.wait({f"acted-{key}"}, LONG_SECONDS)
        self.dismiss()
        time.sleep(SETTLE_SECONDS)
        self.hire(10)
        loaded = self.log.of("up")[-1]
        again = min(
            [*self.log.wait({f"went-on-{key}"}).values(), *self.log.of(f"acted-{key}")[1:]],
            key=lambda one: one.at,
        )
        return {"resume": max(0.0, again.at - loaded.at)}

    def suspended(self, count: int) -> dict[str, Any]:
        """The growth of the worker's processes, for each run that waits for an event.

        Beyond twice as many others: memory that those needed until they waited is there to be used
        again.
        """
        return {"suspended": self._grown("rest", "resting", count, count, count)}

    def running(self, count: int) -> dict[str, Any]:
        """And for each run that is in the middle of a step."""
        return {"running": self._grown("busy", "staying", FIRST_FEW, count)}

    def _grown(self, scene: str, word: str, *batches: int) -> float:
        """By the last batch; those before it pay for everything that all share."""
        self.dismiss()
        self.serve(concurrency=sum(batches))
        sizes = []
        for number in batches:
            keys = [self.key(scene) for _ in range(number)]
            self.submit(scene, [[key] for key in keys])
            self.log.wait({f"{word}-{key}" for key in keys})
            time.sleep(SETTLE_SECONDS)
            sizes.append(self.resident())
        self.dismiss()
        return (sizes[-1] - sizes[-2]) / batches[-1]

    def resident(self) -> int:
        """The memory of all processes of its workers."""
        groups = {one.pid for one in self.workers}
        return sum(resident(pid) for pid in processes() if group_of(pid) in groups)


def _exit_seconds(leaver: "subprocess.Popen[bytes]", asked: float) -> float:
    try:
        leaver.wait(30)
    except subprocess.TimeoutExpired:
        return float("inf")
    return time.monotonic() - asked


def up() -> None:
    """In a worker, once its program is loaded: its work begins here."""
    if "BENCH_CONCURRENCY" in os.environ:
        note("up")


def concurrency() -> int:
    return int(os.environ["BENCH_CONCURRENCY"])


def main(system: type[System], work: Callable[[], None] | None = None) -> None:
    """Runs as its driver, or as one of its workers."""
    if sys.argv[1] == "work":
        assert work is not None
        up()
        work()
    else:
        answer_questions(system, _answer_all)


def _answer_all(system: System, answer: Callable[..., None]) -> None:
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer(answer=getattr(system, question["ask"])(**question["with"]))
        except Absent as why:
            answer(absent=str(why))

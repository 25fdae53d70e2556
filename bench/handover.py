"""How quickly the fleet reacts: another worker resumes a dead worker's run, a halt reaches a host.

    python bench/handover.py [ROUNDS]

Two supervisors (two homes) on one store, SQLite and PostgreSQL. Printed: the time from SIGKILL of
the worker in the middle of a step until another worker is in that step; and from the halt here
(SIGUSR1) until the other host has proved that none of its processes is left.
"""

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from andon.store import open_store
from andon.store.messages.stops import Reauthorize
from andon.testing.postgres import Cluster

AGENTS = """
import asyncio, os, pathlib
import andon

async def linger(marker):
    pathlib.Path(marker).write_text(str(os.getpid()))
    await asyncio.sleep(600)

@andon.agent
async def stuck(ctx, marker):
    await ctx.step(lambda: 1, name="first")
    await ctx.step(linger, marker)
"""
LIMIT_SECONDS = 60.0


def until(condition: Callable[[], Any], pause: float = 0.0005) -> Any:
    end = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(pause)
    raise SystemExit("in vain")


def andon(*words: str) -> list[str]:
    return [sys.executable, "-m", "andon", *words]


@contextlib.contextmanager
def host(folder: Path, url: str, name: str, workers: int) -> Iterator["subprocess.Popen[bytes]"]:
    env = {**os.environ, "ANDON_STORE": url, "ANDON_HOME": str(folder / name)}
    env |= {"ANDON_LEASE_SECONDS": "600"}
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            andon("up", "agents.py", "--workers", str(workers)),
            cwd=folder,
            env=env,
            stdout=log,
            stderr=log,
        )
        try:
            yield process
        finally:
            process.terminate()
            time.sleep(0.1)
            process.terminate()
            process.wait(LIMIT_SECONDS)


def settled(store: Any, number: int) -> None:
    until(lambda: len([w for w in store.workers() if w.state == "live"]) == number, 0.02)


def handover(store: Any, folder: Path, url: str) -> float:
    marker = folder / f"mark-{time.monotonic_ns()}"
    env = {**os.environ, "ANDON_STORE": url}
    words = andon("start", "stuck", f"marker={marker}")
    run_id = subprocess.run(words, cwd=folder, env=env, check=True, capture_output=True, text=True)
    pid = int(until(lambda: marker.exists() and marker.read_text()))
    marker.unlink()
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    until(lambda: marker.exists() and marker.read_text())
    took = time.monotonic() - began
    cancel = andon("cancel", run_id.stdout.strip())
    subprocess.run(cancel, cwd=folder, env=env, check=False, capture_output=True)
    return took


def halt(store: Any, process: "subprocess.Popen[bytes]", home: Path) -> float:
    other = next(one.id for one in store.supervisors() if one.home == str(home))
    before = {one.id for one in store.stops()}
    began = time.monotonic()
    process.send_signal(signal.SIGUSR1)
    order = until(lambda: next((o.id for o in store.stops(1) if o.id not in before), None))

    def proved() -> bool:
        rows = [row for row in store.targets(order) if row.supervisor == other]
        return bool(rows) and all(row.stage == "verified" for row in rows)

    until(proved)
    took = time.monotonic() - began
    [latch] = store.latches()
    message = Reauthorize(epoch=latch.epoch, scope="fleet", by="bench", why="measured")
    store.write([message])
    return took


def report(name: str, values: list[float]) -> None:
    ms = sorted(1000 * value for value in values)
    text = f"median {statistics.median(ms):6.1f} ms   best {ms[0]:6.1f}   worst {ms[-1]:6.1f}"
    print(f"  {name:<44} {text}   ({len(ms)} times)", flush=True)


def measure(url: str, rounds: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="andon-handover-"))
    (folder / "agents.py").write_text(AGENTS)
    store = open_store(url or f"sqlite:///{folder}/andon.db")
    print(store.url.partition(":")[0])
    with host(folder, store.url, "one", 2) as first, host(folder, store.url, "two", 1):
        settled(store, 3)
        found = []
        for _ in range(rounds):
            found.append(handover(store, folder, store.url))
            settled(store, 3)
        report("SIGKILL of a worker → another is in the step", found)
        found = []
        for _ in range(rounds):
            found.append(halt(store, first, folder / "two"))
            settled(store, 3)
        report("halt here → proved on the other host", found)
    store.close()


def main() -> None:
    rounds = int(sys.argv[1]) if sys.argv[1:] else 11
    measure("", rounds)
    with Cluster() as cluster:
        measure(cluster.fresh_database(), rounds)


if __name__ == "__main__":
    main()

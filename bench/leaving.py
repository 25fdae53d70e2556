"""SIGTERM with a step of five seconds in flight and a grace period of two, beside a live worker."""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from andon.runtime import requests
from andon.store import open_store

Row = tuple[str, str, str, str]
GRACE_SECONDS = 2
WORDS = 50  # one each tenth of a second


def leaving(url: str, folder: Path, rounds: int) -> list[Row]:
    """How soon it is announced, over, and gone on with; and whether the partial value was used."""
    store = open_store(url)
    workers = [_worker(url, folder) for _ in range(2)]
    announced, exits, resumed, kept = [], [], [], 0
    try:
        _until(lambda: _all_serve(store, workers))
        for number in range(rounds):
            run = requests.start(store, "novel", (WORDS,), id=f"leaving-{number}")
            _until(lambda run=run: _words(store, run) > 5)
            holder = store.run(run).worker
            leaver = next(one for one in workers if f".{one.pid}." in holder)
            began = time.monotonic()
            leaver.send_signal(signal.SIGTERM)
            assert leaver.wait(30) == 0
            exits.append(time.monotonic() - began)
            workers.remove(leaver)
            [ended] = [one for one in store.fleet(0) if one.id == holder]
            announced.append(json.loads(ended.drain)["announced_after"])
            _until(lambda run=run: store.run(run).state == "succeeded")
            first, second = store.attempts(run)
            resumed.append(second.claimed_at - first.ended_at)
            result = json.loads(store.last_entry(run).body)
            kept += result["from"] > 0 and first.ending == "cut"
            workers.append(_worker(url, folder))
            _until(lambda: _all_serve(store, workers))
    finally:
        for process in workers:
            process.kill()
            process.wait()
        store.close()
    return [
        _row("SIGTERM → announced", announced, "ms", f"{rounds}×"),
        _row("SIGTERM → exit, a 5 s step in flight, grace 2 s", exits, "s", "exit code 0"),
        _row("given back → gone on with elsewhere", resumed, "ms", f"{kept} of {rounds} partial"),
    ]


def _row(what: str, times: list[float], unit: str, rest: str) -> Row:
    factor, digits = (1e3, 1) if unit == "ms" else (1, 2)
    median, worst = statistics.median(times) * factor, max(times) * factor
    return (what, f"{median:.{digits}f} {unit}", f"worst {worst:.{digits}f} {unit}", rest)


def _worker(url: str, folder: Path) -> "subprocess.Popen[bytes]":
    target = f"{Path(__file__).with_name('agents.py')}:novel"
    command = [sys.executable, "-m", "andon", "work", target, "--grace", str(GRACE_SECONDS)]
    with (folder / "workers").open("ab") as log:
        return subprocess.Popen(
            command, env={**os.environ, "ANDON_STORE": url}, stderr=log, cwd=folder
        )


def _all_serve(store: Any, workers: "list[subprocess.Popen[bytes]]") -> bool:
    return {one.pid for one in workers} <= {one.pid for one in store.workers()}


def _words(store: Any, run: str) -> int:
    return int(next(iter(store.load(run).checkpoints.values()), "0"))


def _until(claim: Any) -> None:
    end = time.monotonic() + 60
    while not claim():
        if time.monotonic() > end:
            raise SystemExit("waited 60 s")
        time.sleep(0.005)

"""The main job on embedded SQLite: an agent's worker is killed in the middle of an effect.

A second worker goes on. The table at the end is counted from the outside world's own files and
from the journal: every step executed once, every mail sent once.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ORDERS = [1, 2, 3, 4, 5]
LIMIT_SECONDS = 60


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="andon-demo-") as folder:
        world = Path(folder)
        environ = {
            **os.environ,
            "DEMO_WORLD": folder,
            "ANDON_STORE": f"sqlite:///{world}/andon.db",
        }
        first, second = (start_worker(environ) for _ in range(2))
        try:
            return show(world, environ, first, second)
        finally:
            for worker in (first, second):
                worker.kill()
                worker.wait()


def show(world: Path, environ: dict[str, str], first: "subprocess.Popen[str]", second: Any) -> int:
    say("two workers are up; starting run refund-1 of agent refunds")
    andon(environ, "start", "refunds", f"orders={ORDERS}", "--id", "refund-1")
    wait_until(lambda: "order-3" in read(world / "mails.txt"), "the third mail")
    run = json.loads(andon(environ, "show", "refund-1", "--json"))
    victim = first if str(first.pid) in run["worker"].split(".") else second
    say(f"mail 3 is out, its answer is not: kill -9 {victim.pid}, the worker of refund-1")
    killed_at = time.time()
    os.kill(victim.pid, signal.SIGKILL)
    andon(environ, "wait", "refund-1", "--timeout", str(LIMIT_SECONDS))
    say("the run has succeeded on the other worker")
    run = json.loads(andon(environ, "show", "refund-1", "--json"))
    return report(world, run, killed_at)


def report(world: Path, run: dict[str, Any], killed_at: float) -> int:
    steps = Counter(read(world / "steps.txt"))
    mails = Counter(read(world / "mails.txt"))
    recovery = run["attempts"][-1]["claimed_at"] - killed_at
    rows = [
        ("steps finished", f"{len(run['steps'])} of {len(ORDERS)}"),
        ("steps executed more than once", str(sum(count > 1 for count in steps.values()))),
        ("mails sent", f"{len(mails)} of {len(ORDERS)}"),
        ("mails sent more than once", str(sum(count > 1 for count in mails.values()))),
        ("attempts", f"{run['attempt']} (1 interrupted by SIGKILL)"),
        ("effects", ", ".join(sorted({effect["state"] for effect in run["effects"]}))),
        ("from kill -9 to the new owner", f"{recovery * 1000:.0f} ms"),
        ("state of the run", run["state"]),
    ]
    width = max(len(name) for name, _ in rows)
    print("\n" + "\n".join(f"  {name:<{width}}   {found}" for name, found in rows) + "\n")
    once = set(steps.values()) == set(mails.values()) == {1}
    complete = len(steps) == len(mails) == len(ORDERS) and run["state"] == "succeeded"
    print("Nothing was lost and nothing was done twice." if once and complete else "BROKEN")
    return 0 if once and complete else 1


def start_worker(environ: dict[str, str]) -> "subprocess.Popen[str]":
    worker = subprocess.Popen(
        [sys.executable, "-m", "andon", "work", str(HERE / "agent.py")],
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert worker.stderr is not None
    if not worker.stderr.readline():
        raise SystemExit("the worker did not start: run `andon doctor`")
    return worker


def andon(environ: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "andon", *words],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"andon {' '.join(words)}: {done.stderr}")
    return done.stdout


def read(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def wait_until(condition: Any, what: str) -> None:
    until = time.monotonic() + LIMIT_SECONDS
    while not condition():
        if time.monotonic() > until:
            raise SystemExit(f"waited {LIMIT_SECONDS} s for {what}")
        time.sleep(0.002)


def say(text: str) -> None:
    print(f"· {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""One system's side of the measurement: JSON lines on stdin and stdout, inside its environment.

    {"start": KIND, "stamps": PATH}  →  {"started": ID}
    {"stop": true}                   →  {"asked": T, "returned": T}, then {"said": WORD, "at": T}

Standard library only. The request is made from a connected, warm client, so that no system pays
for the start of a command. Everything it starts lives in its process group, which the measuring
script kills.
"""

import argparse
import asyncio
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.005
WATCH_SECONDS = 10.5
START_SECONDS = 60
LOGS: list[Path] = []


class Cannot(Exception):
    """This system cannot be measured here; the message says why."""


class Driver:
    """The operations that each system implements."""

    ended: tuple[str, ...] = ()  # its own words for a run that is over

    def __init__(self, folder: Path, way: str) -> None:
        self.folder, self.way = folder, way

    def open(self) -> dict[str, str]:
        """Starts servers and workers; returns the versions of everything started."""
        raise NotImplementedError

    def start(self, kind: str, stamps: str) -> Any:
        raise NotImplementedError

    def stop(self, run: Any) -> None:
        raise NotImplementedError

    def says(self, run: Any) -> str:
        """The state of the run, in the system's own word."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends everything that would leave something behind if it were killed."""


class Loop:
    """An event loop in a thread of its own, for systems whose client is asynchronous."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def run(self, work: Coroutine[Any, Any, Any], seconds: float = START_SECONDS) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(seconds)


def spawn(
    command: Sequence[str | Path],
    folder: Path,
    *,
    apart: bool = False,
    handed: tuple[int, ...] = (),
    **environ: str,
) -> "subprocess.Popen[bytes]":
    """Starts a program that dies with this one.

    `apart`: in a process group of its own; `handed`: with these open files.
    """
    log = folder / f"{Path(command[0]).name}-{len(LOGS)}.log"
    LOGS.append(log)
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            env={**os.environ, **environ},
            preexec_fn=die_with_parent,  # noqa: PLW1509
            process_group=0 if apart else None,
            pass_fds=handed,
        )


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(claim: Callable[[], Any], what: str, process: Any = None) -> Any:
    """Waits for a condition; an error it raises means not yet."""
    end, last = time.monotonic() + START_SECONDS, ""
    while time.monotonic() < end:
        try:
            if answer := claim():
                return answer
        except Exception as error:  # noqa: BLE001
            last = f" ({type(error).__name__}: {error})"
        if process is not None and process.poll() is not None:
            raise Cannot(f"{what}: it ended with {process.returncode}{last}{_log_ends()}")
        time.sleep(0.02)
    raise Cannot(f"{what}: not after {START_SECONDS} s{last}{_log_ends()}")


def _log_ends() -> str:
    texts = [log.read_text("utf-8", "replace").strip()[-600:] for log in LOGS if log.exists()]
    return "".join(f"\n{text}" for text in texts if text)


Answer = Callable[..., None]


def main(kind: Any, serve: "Callable[[Any, Answer], None] | None" = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("way")
    options = parser.parse_args()
    answers, sys.stdout = sys.stdout, sys.stderr  # output of a system is not an answer

    def answer(**values: Any) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    driver = kind(options.folder, options.way)
    try:
        answer(ready=driver.open())
        (serve or _serve)(driver, answer)
        driver.close()
    except Cannot as reason:
        answer(cannot=str(reason))
    except Exception as error:  # noqa: BLE001
        answer(cannot=f"its driver failed: {type(error).__name__}: {error}")
    finally:
        os.killpg(0, signal.SIGKILL)


def _serve(driver: Driver, answer: Answer) -> None:
    run: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        if "start" in request:
            run = driver.start(request["start"], request["stamps"])
            answer(started=str(run))
        else:
            asked = time.monotonic()
            driver.stop(run)
            answer(asked=asked, returned=time.monotonic())
            word = driver.says(run)
            while word not in driver.ended and time.monotonic() < asked + WATCH_SECONDS:
                time.sleep(POLL_SECONDS)
                word = driver.says(run)
            answer(said=word, at=time.monotonic(), over=word in driver.ended)

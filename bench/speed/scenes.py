"""The steps of the measured runs: the same in every system.

Standard library only: this runs inside every system's own environment. A scene is a list of steps,
each a name and its arguments, so that a system needs one program that executes a list. Each event
is noted in a file that the driver reads: a line for each note, with the clock that all processes
share.
"""

import asyncio
import base64
import hashlib
import itertools
import json
import os
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any

WORDS = 50  # of the long step, one each tenth of a second
WORD_SECONDS = 0.1
STAY_SECONDS = 600

# 1,000 characters that do not compress: a database that compresses must not win by that.
TEXT = base64.b64encode(b"".join(hashlib.sha512(bytes([n])).digest() for n in range(12)))[:1000]
RESULT = TEXT.decode()

Step = tuple[str, list[Any]]
# The steps of a run are in several processes: their times are in the log.
NOTES_STEPS = bool(os.environ.get("BENCH_STAMPS"))
STAMPS: dict[str, list[float]] = defaultdict(list)


def note(word: str, text: str = "") -> None:
    line = f"{word} {time.monotonic():.6f} {os.getpid()} {text}\n"
    log = os.open(os.environ["BENCH_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, line.encode())
    os.close(log)


def noted(word: str) -> bool:
    with open(os.environ["BENCH_LOG"]) as log:
        return any(line.startswith(f"{word} ") for line in log)


@lru_cache(maxsize=16)  # a graph asks again at every step
def plan(scene: str, key: str, *given: int) -> list[Step]:
    count = given[0] if given else 1
    plain: list[Step] = [("result", [key, number]) for number in range(count)]
    scenes: dict[str, list[Step]] = {
        "tiny": [("go_on", [key])],
        "busy": [("stay", [key])],
        "rest": [*plain, ("wait", [key])],
        "crash": [*plain, ("act", [key]), ("go_on", [key])],
        "leave": [*plain, ("write", [key]), *plain],
        "loop": [step for one in plain for step in (one, ("tool", one[1]))],
    }
    return scenes.get(scene, plain)  # steps, short, chat


def begun(key: str) -> None:
    """The first thing that a run does."""
    note(f"begun-{key}")


def done(key: str) -> None:
    """The last thing that a run does, after its last step is durable."""
    stamps = STAMPS.pop(key, [])
    gaps = [later - earlier for earlier, later in itertools.pairwise(stamps)]
    note(f"done-{key}", json.dumps(gaps))


def result(key: str, number: int) -> dict[str, Any]:
    """A step that costs nothing and returns 1 KB."""
    if NOTES_STEPS or key.startswith("crash"):  # counted there: how often the actions happen
        note(f"step-{key}")
    else:
        STAMPS[key].append(time.monotonic())
    return {"number": number, "text": RESULT}


def go_on(key: str) -> None:
    note(f"went-on-{key}")


async def act(key: str) -> None:
    """It acts outside, and is killed before its result is known."""
    again = noted(f"acted-{key}")
    note(f"acted-{key}")
    if not again:
        await asyncio.sleep(STAY_SECONDS)


async def write(
    key: str, begun_at: int = 0, keep: Callable[[int], Any] = lambda count: None
) -> int:
    """Five seconds of work in fifty parts; `keep` saves the progress, where a system can."""
    note(f"writing-{key}", str(begun_at))
    for count in range(begun_at, WORDS):
        await asyncio.sleep(WORD_SECONDS)
        keep(count + 1)
    note(f"written-{key}")
    return WORDS


async def stay(key: str, keep: Callable[[int], Any] = lambda count: None) -> None:
    note(f"staying-{key}")
    for second in range(STAY_SECONDS):
        await asyncio.sleep(1)
        keep(second)


def resting(key: str) -> None:
    """Noted before a run waits for something that never comes."""
    note(f"resting-{key}")


QUICK: dict[str, Callable[..., Any]] = {"result": result, "go_on": go_on}
SLOW: dict[str, Callable[..., Awaitable[Any]]] = {"act": act, "write": write, "stay": stay}


async def perform(name: str, given: list[Any]) -> Any:
    return QUICK[name](*given) if name in QUICK else await SLOW[name](*given)

"""The real writer and its line, on a real loop and thread, with a store that fails by chance.

    python verify/verify.py --only writers --seed 12

Runs write as real runs do: they wait for an answer, or for the last of several, or give up waiting.
The store is away before or after a commit, is locked by others, accepts nothing now, loses the
connection with several batches under way, or leaves out what it cannot carry out at once. It keeps
a chain per run, as a journal does. Every caller gets an answer: the outcome of its own message,
after the commit, in the order of its run.
"""

import asyncio
import contextlib
import random
import threading
import time
from collections import Counter
from concurrent.futures import Future
from typing import Any

from andon.errors import AndonError, StoreError, StoreUnavailable
from andon.store.writer.writer import Writer
from verify.layer import Effort, Outcome, Say
from verify.scripted_store import FAULTS, Message, ScriptedStore

STORIES = 400  # at scale 1
FEWEST = 60
LIMIT_SECONDS = 30.0
BEAT_SECONDS = 5.0  # how late a heartbeat may be answered, whatever the loop does
MOVES = 12
MEANS = ("write", "write", "several", "soon", "give up", "work", "block")
CROWD = 70  # a turn with this many messages is split in two
# How many runs a story has.
RUNS = (1, 1, 2, 5, CROWD)


class Story:
    """One writer and the runs that use it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        local = self.chance.random() < 0.5
        self.store = ScriptedStore(self.chance, "sqlite:///" if local else "postgresql://")
        self.runs = self.chance.choice(RUNS)
        self.wrong: list[str] = []
        self.submitted: Counter[str] = Counter()
        self.writer: Any = None  # a writer accepts what its store accepts

    def tell(self) -> list[str]:
        try:
            asyncio.run(asyncio.wait_for(self._live(), LIMIT_SECONDS))
        except TimeoutError:
            self.wrong.append("somebody is never answered")
        finally:
            self.store.close()
        return self.wrong

    async def _live(self) -> None:
        store: Any = self.store
        self.writer = Writer(store, patience_seconds=LIMIT_SECONDS)
        self.writer.runs = self.runs
        beats = threading.Thread(target=self._beat, daemon=True)
        beats.start()
        await asyncio.gather(*(self._run(f"r{number}") for number in range(self.runs)))
        await asyncio.to_thread(beats.join)
        last = [self.writer.submit(self._next("last")) for _ in range(3)]
        self.writer.close(LIMIT_SECONDS)
        late = self.writer.submit(Message("late", 1))
        for one in last:  # close waits for queued messages, and not for a store that is away
            with contextlib.suppress(StoreUnavailable):
                await self._look("last", one)
        with contextlib.suppress(StoreError):
            await late
            self.wrong.append("a closed writer says that it has written")
        for run, count in self.submitted.items():
            if run != "last" and self.store.heads[run] != count:
                self.wrong.append(f"{run} wrote {count} messages, {self.store.heads[run]} are kept")

    def _next(self, run: str) -> Message:
        self.submitted[run] += 1
        return Message(run, self.submitted[run])

    # ── behaviour of runs ─────────────────────────────────────────────────────────────────────

    async def _run(self, run: str) -> None:
        for _ in range(3 if self.runs == CROWD else MOVES):
            match self.chance.choice(MEANS):
                case "write":
                    await self._look(run, self.writer.write(self._next(run)))
                case "several":
                    some = [self.writer.submit(self._next(run)) for _ in range(3)]
                    for one in some:
                        await self._look(run, one)
                case "soon":
                    soon = self.writer.submit(self._next(run))
                    await asyncio.sleep(0)  # it is handed over
                    await self._look(run, self.writer.write(self._next(run)))
                    await self._look(run, soon)
                case "give up":
                    await self._give_up(run)
                case "work":
                    await asyncio.sleep(self.chance.uniform(0.0, 0.002))
                case _ if self.chance.random() < 0.02:
                    time.sleep(0.15)  # noqa: ASYNC251 (code that blocks the loop)
        self.writer.runs -= 1

    async def _give_up(self, run: str) -> None:
        """A run that gives up waiting loses nothing by it."""
        waiting = asyncio.ensure_future(self._look(run, self.writer.write(self._next(run))))
        await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        await self._look(run, self.writer.submit(self._next(run)))

    async def _look(self, run: str, answer: Any) -> None:
        number = self.submitted[run]
        try:
            found = await answer
        except AndonError as error:
            if run == "last" and isinstance(error, StoreUnavailable):
                raise
            self.wrong.append(f"{run} gets {error!r}")
            return
        self._judge(run, found, number)

    def _judge(self, run: str, found: Any, latest: int) -> None:
        whose, _, number = str(found).partition("/")
        if whose != run or not number.isdigit() or int(number) > latest:
            self.wrong.append(f"{run} gets the outcome of {found!r}")
        elif int(number) > self.store.heads[run]:
            self.wrong.append(f"{found} is answered, and not committed")

    # ── a thread beside them ──────────────────────────────────────────────────────────────────

    def _beat(self) -> None:
        for number in range(1, 6):
            began = time.monotonic()
            future: Future[Any] = self.writer.submit_from_thread(Message("beat", number))
            try:
                self._judge("beat", future.result(LIMIT_SECONDS), number)
            except Exception as error:  # noqa: BLE001 (whatever it gets instead)
                self.wrong.append(f"a heartbeat gets {error!r}")
            if time.monotonic() - began > BEAT_SECONDS:
                self.wrong.append(f"a heartbeat took {time.monotonic() - began:.1f} s")
            time.sleep(0.002)


def check(effort: Effort, say: Say) -> Outcome:
    began = time.monotonic()
    most = STORIES if effort.until_red else max(FEWEST, int(STORIES * effort.scale))
    seeds = [effort.seed] if effort.seed else range(1, most + 1)
    faults: Counter[str] = Counter()
    wrong: list[str] = []
    told = 0
    for seed in seeds:
        story = Story(seed)
        again = f"(python verify/verify.py --only writers --seed {seed})"
        wrong += [f"seed {seed}: {what} {again}" for what in story.tell()[:3]]
        faults += story.store.faults
        told += 1
        if wrong:
            say(wrong[0])
            break
    return Outcome(
        layer="writers",
        injected=", ".join(f"{name} {count}" for name, count in sorted(faults.items())),
        faults=faults.total(),
        runs=told,
        violations=wrong,
        guards=[] if wrong or effort.seed else [f"no {one}" for one in FAULTS if not faults[one]],
        seconds=time.monotonic() - began,
    )

"""Cells of the kill matrix: each is played with real processes and judged from outside."""

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.fleet import Forker, Process, until

from andon.host.proc import alive
from andon.runtime.requests import requests
from andon.store import open_store
from andon.testing import FakeModel, call
from andon.transcript import NOT_EXECUTED, UNKNOWN
from verify.drivers.shop import FIRST, LAST, MOMENTS, NEWS, TASK, Order

TOOLS = ("first of two", "second of two", "parallel")
THEN = ("resume", "message")
# No promise: a process that has not ended after this long hangs.
HANG_SECONDS = 30.0
SIGKILLED = -9
# The model's words about a call whose outcome it was shown as unknown.
IN_DOUBT = "in doubt"
YES_NO = {"effect": ("happened", "did_not_happen"), "value": ("respond", "approve")}


@dataclass(frozen=True)
class Cell:
    """The moment at which a process is killed, and how the conversation continues."""

    driver: str
    andon: bool
    moment: str
    tools: str
    then: str
    form: str
    store: str  # sqlite or postgres; file: the program's own, without andon

    def __str__(self) -> str:
        andon = "with andon" if self.andon else "without andon"
        how = f"{self.moment}, {self.tools}, {self.then}, {self.form}, {self.store}"
        return f"{self.driver} {andon}: {how}"


@dataclass
class Found:
    """The outcome of one cell."""

    cell: Cell
    doubled: int = 0  # effects that happened more than once
    missing: int = 0  # effects that never happened
    asked: int = 0  # effects that were shown as in doubt
    refused: int = 0  # answers of the provider that were 400
    answer: str = ""  # why the answer is wrong
    broken: str = ""  # the trial itself failed: no verdict

    @property
    def wrong(self) -> list[str]:
        """The promises of andon that this outcome breaks."""
        said = [
            f"{self.doubled} effects happened twice" if self.doubled else "",
            f"{self.missing} effects did not happen" if self.missing else "",
            f"{self.refused} requests were answered with 400" if self.refused else "",
            f"the answer: {self.answer}" if self.answer else "",
            self.broken,
        ]
        return [f"{self.cell}: {what}" for what in said if what]


def of_driver(name: str, driver: Any, *, andon: bool) -> Iterator[Cell]:
    """All cells of a driver."""
    stores = ("sqlite", "postgres") if andon else driver.KEPT
    for one in itertools.product(MOMENTS, TOOLS, THEN, driver.FORMS, stores):
        yield Cell(name, andon, *one)


class Model:
    """A model that makes one tool call after the other and reports the receipts it is shown.

    A call that it is shown as not executed it makes again.
    """

    def __init__(self, cell: Cell) -> None:
        wanted = [call(FIRST, amount=10), call(LAST, to="ann")]
        self.plan: list[Any] = [wanted] if cell.tools == "parallel" else wanted
        self.wanted = {FIRST: wanted[0], LAST: wanted[1]}

    def __call__(self, request: Any) -> Any:
        if request.turn < len(self.plan):
            return self.plan[request.turn]
        shown = json.dumps(request.body)
        receipts = {name: _receipts(name, shown) for name in (FIRST, LAST)}
        left = [self.wanted[name] for name, found in receipts.items() if not found]
        if left and NOT_EXECUTED in shown:
            return left
        without = IN_DOUBT if UNKNOWN in shown else "unknown"
        said = [f"{name}: {' '.join(found) or without}" for name, found in receipts.items()]
        return "; ".join([*said, *(text for text in (TASK, NEWS) if text in shown)])


def _receipts(name: str, text: str) -> list[str]:
    return sorted(set(re.findall(rf"receipt-{name}-\w+", text)))


class Trial:
    """Plays one cell."""

    def __init__(self, forker: Forker, cell: Cell, folder: Path, store: str) -> None:
        self.forker, self.cell, self.folder, self.url = forker, cell, folder, store
        self.found = Found(cell)
        self._doubted: set[str] = set()  # effects that a person was asked about
        self._honest: set[str] = set()  # effects that the model says are in doubt
        folder.mkdir(parents=True)

    def play(self) -> Found:
        with FakeModel(Model(self.cell)) as model:
            status = self._live(model, "begin", self.cell.moment)
            if status != SIGKILLED:
                self.found.broken = f"it was not killed: {self._last_words('begin', status)}"
                return self.found
            status = self._live(model, self.cell.then, "")
            self.found.answer = self._is_wrong(status)
            left_alone = self.cell.andon and self.cell.then == "message"
            # Any worker may continue it: nothing acts twice then.
            if left_alone and self._live(model, "resume", "") is None:
                self.found.broken = "the run that was left alone hangs"
            self.found.refused = sum(one.status == 400 for one in model.requests)
        self._outlast()
        self._count()
        return self.found

    def _outlast(self) -> None:
        """Waits for programs that tools started and nothing ended."""
        path = self.folder / "programs"
        pids = [int(line) for line in path.read_text().split()] if path.exists() else []
        until(lambda: not any(map(alive, pids)), f"the programs of {self.cell}", HANG_SECONDS)

    def _live(self, model: FakeModel, phase: str, moment: str) -> int | None:
        """Runs one process; None: it hung and was killed."""
        cell = self.cell
        order = Order(
            driver=cell.driver,
            andon=cell.andon,
            phase=phase,
            moment=moment,
            parallel=cell.tools == "parallel",
            deadly=FIRST if cell.tools == "first of two" else LAST,
            form=cell.form,
            name=self.folder.name,
            store=self.url,
            folder=str(self.folder),
            url=model.url,
        )
        process = self.forker.spawn(order)
        try:
            return self._wait(process)
        except AssertionError:
            process.kill()
            return None

    def _wait(self, process: Process) -> int:
        if not self.cell.andon:
            return process.wait(HANG_SECONDS)
        store = open_store(self.url)
        try:

            def over() -> bool:
                self._answer_effects_in_doubt(store)
                return process.status is not None

            until(over, str(self.cell), HANG_SECONDS)
        finally:
            store.close()
        return process.wait()

    def _answer_effects_in_doubt(self, store: Any) -> None:
        """Answers each question about an effect in doubt by looking at the world."""
        for ask in store.asks():
            if not ask.run_id.startswith(self.folder.name):
                continue
            [(name, receipts)] = ((a, b) for a, b in self._world().items() if a in ask.id)
            yes, no = YES_NO[ask.about]
            said = (yes, receipts[-1]) if receipts else (no, None)
            requests.answer(store, ask.run_id, *said, ask=ask.id, by="the trial")
            self._doubted.add(name)

    # ── judging ───────────────────────────────────────────────────────────────────────────────

    def _world(self) -> dict[str, list[str]]:
        path = self.folder / "world"
        lines = path.read_text().splitlines() if path.exists() else []
        done: dict[str, list[str]] = {FIRST: [], LAST: []}
        for name, receipt in map(str.split, lines):
            done[name].append(receipt)
        return done

    def _count(self) -> None:
        counts = {name: len(receipts) for name, receipts in self._world().items()}
        self.found.doubled = sum(count - 1 for count in counts.values() if count > 1)
        self.found.missing = sum(not counts[name] for name in counts.keys() - self._honest)
        self.found.asked = len(self._doubted | self._honest)

    def _is_wrong(self, status: int | None) -> str:
        """Whether the model was shown everything that happened and everything the person said."""
        path = self.folder / "answer"
        if status is None or not path.exists():
            how = "it hangs; " if status is None else ""
            return f"none: {how}{self._last_words(self.cell.then, status)}"
        said, world = path.read_text(), self._world()
        texts = (TASK, NEWS) if self.cell.then == "message" else (TASK,)
        self._honest = {name for name in world if f"{name}: {IN_DOUBT}" in said}
        shown = {name: _receipts(name, said) for name in world.keys() - self._honest}
        right = all(shown[name] and set(shown[name]) <= set(world[name]) for name in shown)
        return "" if right and all(text in said for text in texts) else said

    def _last_words(self, phase: str, status: int | None) -> str:
        path = self.folder / f"{phase}.err"
        lines = path.read_text().strip().splitlines() if path.exists() else []
        return f"status {status}, {(lines or ['it said nothing'])[-1][:300]}"

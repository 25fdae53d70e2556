"""A store that keeps a chain of messages per run and fails at random, to test the writer alone."""

import random
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from andon.errors import Conflict, StoreUnavailable

FAULTS = ("away", "lost acknowledgement", "held", "not now", "lost connection", "left out")
OFTEN = 0.08


@dataclass(frozen=True)
class Message:
    """The message of that number of a run: kept after the one before it, and no earlier."""

    run: str
    number: int


class ScriptedStore:
    """The part of a store that a writer uses."""

    def __init__(self, chance: random.Random, url: str) -> None:
        self.url, self.chance = url, chance
        self.heads: Counter[str] = Counter()  # run → the number of the last message that is kept
        self.faults: Counter[str] = Counter()
        self._flights: deque[Sequence[Message]] = deque()
        self._lock = threading.RLock()
        self._ours, self._theirs = socket.socketpair()
        for end in (self._ours, self._theirs):
            end.setblocking(False)

    def _strikes(self, fault: str) -> bool:
        if self.chance.random() > OFTEN:
            return False
        self.faults[fault] += 1
        return True

    def _keep(self, one: Message) -> Any:
        """Kept, or kept already: a message may be written twice. Otherwise it is out of order."""
        if one.number > self.heads[one.run] + 1:
            return Conflict(f"{one} comes after {self.heads[one.run]}")
        self.heads[one.run] = max(self.heads[one.run], one.number)
        return f"{one.run}/{one.number}"

    # ── waiting for it ────────────────────────────────────────────────────────────────────────

    def write(self, batch: Sequence[Message]) -> list[Any]:
        with self._lock:
            if self._flights:
                raise AssertionError("somebody writes while batches are under way")
            if self._strikes("away"):
                raise StoreUnavailable("it is away")
            time.sleep(self.chance.choice((0, 0, 0.001)))
            outcomes = [self._keep(one) for one in batch]
            if self._strikes("lost acknowledgement"):
                raise StoreUnavailable("it was away afterwards")
            return outcomes

    def write_at_once(self, batch: Sequence[Message]) -> list[Any]:
        if self._strikes("held"):
            raise StoreUnavailable("others hold it")
        return self.write(batch)

    def needs_upkeep(self) -> bool:
        return False

    def checkpoint(self) -> None:
        """There is no log to empty."""

    # ── without waiting ───────────────────────────────────────────────────────────────────────

    def send(self, batch: Sequence[Message], *, behind: bool = False) -> Any:
        with self._lock:
            if self._strikes("not now"):
                return None
            if behind and self._strikes("lost connection"):
                raise self._lost()
            self._flights.append(list(batch))
        self._answer_later()
        return self._ours

    def receive(self) -> tuple[list[tuple[list[Any], list[int]]], bool]:
        with self._lock:
            if not self._ready():
                return [], bool(self._flights)
            if self._strikes("lost connection"):
                raise self._lost()
            count = self.chance.randint(1, len(self._flights)) if self._flights else 0
            answered = [self._carry_out(self._flights.popleft()) for _ in range(count)]
            more = bool(self._flights)
        if more:
            self._answer_later()
        return answered, more

    def _carry_out(self, batch: Sequence[Message]) -> tuple[list[Any], list[int]]:
        outcomes: list[Any] = []
        left = []
        for place, one in enumerate(batch):
            found = None if self._strikes("left out") else self._keep(one)
            if found is None or isinstance(found, Exception):
                left.append(place)
            outcomes.append(found)
        return outcomes, left

    def _lost(self) -> StoreUnavailable:
        """Part of what was under way was carried out."""
        for _ in range(self.chance.randint(0, len(self._flights))):
            self._carry_out(self._flights.popleft())
        self._flights.clear()
        self._ready()
        return StoreUnavailable("the connection is lost")

    def _ready(self) -> bool:
        try:
            return bool(self._ours.recv(100))
        except BlockingIOError:
            return False

    def _answer_later(self) -> None:
        seconds = self.chance.choice((0.0, 0.0, 0.001, 0.003))
        if seconds:
            threading.Timer(seconds, self._answer).start()
        else:
            self._answer()

    def _answer(self) -> None:
        try:
            self._theirs.send(b".")
        except OSError:  # the story is over
            return

    def unsent(self) -> bool:
        return False

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()

"""A store filled by messages: workers that register, hold runs, and leave on request."""

import json
import time
from typing import Any

from tests.store.parts import Held, agent_row, do, effect, eventually, new_run, worker_row

from andon.store.messages.stops import WorkerGone
from andon.store.store import (
    AskDrain,
    Claim,
    Depart,
    Drain,
    Register,
    Start,
    Store,
    WorkerRow,
)

REPORT = {
    "why": "SIGTERM",
    "grace_seconds": 25.0,
    "announced_after": 0.003,
    "phases": [{"phase": "boundary", "took": 1.0, "limit": 16.0, "overran": False}],
    "exit": "clean",
    "unreturned": 0,
}


class SeededStore:
    """Workers and runs of one agent, in any number of versions."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def worker(self, name: str, version: str = "1", **changes: Any) -> str:
        plain = worker_row(name)
        values = {field: getattr(plain, field) for field in plain.__struct_fields__}
        values |= {"agents": json.dumps([["agent", version]]), "concurrency": 10} | changes
        row = WorkerRow(**values)
        agents = (agent_row(version=version),)
        do(self.store, Register(worker=row, agents=agents, lease_seconds=60))
        return name

    def start(self, *names: str, version: str = "1") -> None:
        for name in names:
            do(self.store, Start(run=new_run(name, version=version)))

    def take(self, worker: str, *names: str, version: str = "1") -> list[Held]:
        """Claims these runs, which must exist and be claimable."""
        message = Claim(
            worker_id=worker, agents=(("agent", version),), limit=len(names), only=tuple(names)
        )
        claimed = do(self.store, message).runs
        assert sorted(run.id for run in claimed) == sorted(names)
        return [Held(run) for run in sorted(claimed, key=lambda run: names.index(run.id))]

    def drain(self, worker: str, *, ago: float = 0.0, grace: float = 25.0) -> None:
        body = {"why": "SIGTERM", "grace_seconds": grace, "announced_after": 0.003}
        do(self.store, Drain(worker_id=worker, drain=json.dumps(body), ago=ago))

    def ask(self, worker: str) -> None:
        do(self.store, AskDrain(worker_id=worker, by="ann"))

    def back(self, held: Held, ending: str = "returned") -> None:
        do(self.store, held.settle("queued", ending=ending, returned=True))

    def end(self, held: Held, state: str = "succeeded") -> None:
        do(self.store, held.settle(state))

    def leave(self, worker: str, **changes: Any) -> None:
        do(self.store, Depart(worker_id=worker, drain=json.dumps(REPORT | changes)))

    def kill(self, worker: str, witness: str, *, ago: float = 0.0, buried: bool = False) -> None:
        """The worker's process ends; another worker sees it and takes its runs back."""
        seen_at, words = time.monotonic() - ago, "its process ended"
        message = Claim(
            worker_id=witness,
            agents=(),
            limit=0,
            dead=((worker, f"dead:{words}"),),
            seen=((worker, seen_at),),
        )
        bury = WorkerGone(worker_id=worker, evidence=words, seen_at=seen_at)
        do(self.store, bury if buried else message)

    def later(self) -> None:
        """The store's clock has moved on: in SQLite it counts milliseconds."""
        now = self.store.now()
        eventually(lambda: self.store.now() > now)

    def effect(self, held: Held, state: str, **changes: Any) -> None:
        """The next entry about the effect `pay`, with its line in the ledger."""
        key = changes.pop("key", "k")
        append = held.append(of={"kind": "effect", "state": state, "name": "pay", "key": key})
        [entry] = append.entries
        row = effect(
            seq=entry.seq, state=state, key=key, fence=held.fence.counter, quiet=False, **changes
        )
        values = {name: getattr(append, name) for name in append.__struct_fields__}
        do(self.store, type(append)(**values | {"effects": (row,)}))

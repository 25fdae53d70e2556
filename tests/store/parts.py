"""Messages, rows and runs for the tests of the stores."""

import time
from collections.abc import Callable
from typing import Any

from andon.core.journal import GENESIS, Entry, EntryKind, chain
from andon.core.lease import Fence
from andon.core.values.value import content_name
from andon.store.store import (
    AgentRow,
    Append,
    Blob,
    Claim,
    Claimed,
    ClaimResult,
    EffectRow,
    NewRun,
    Outcome,
    Register,
    Settle,
    Start,
    Store,
    WorkerRow,
)

# Calls back at every notification of a store; its result stops listening.
Listen = Callable[[Store, Callable[[], None]], Callable[[], None]]
AGENT = ("agent", "1")
LONG = 20.0  # generous: a loaded machine must not fail a promise that has no deadline


def eventually(claim: Callable[[], Any], what: str = "") -> Any:
    """Wait until the claim holds."""
    until = time.monotonic() + LONG
    while not (answer := claim()):
        assert time.monotonic() < until, what or "the claim never held"
        time.sleep(0.005)
    return answer


def do(store: Store, message: Any) -> Any:
    """Carry out one message and raise the error it is refused with."""
    [outcome] = store.write([message])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def worker_row(worker_id: str, lock: str | None = None) -> WorkerRow:
    return WorkerRow(
        id=worker_id, host="here", boot="b", namespace="n", pid=1, start_ticks=2, lock=lock
    )


def agent_row(parameters: str = "[]", *, name: str = "agent", version: str = "1") -> AgentRow:
    return AgentRow(name=name, version=version, queue="default", parameters=parameters)


def register(
    store: Store, worker_id: str = "w", *, lease_seconds: float = 60, lock: str | None = None
) -> str:
    worker = worker_row(worker_id, lock)
    do(store, Register(worker=worker, agents=(agent_row(),), lease_seconds=lease_seconds))
    return worker_id


def new_run(run_id: str, given: str = "input", **changes: Any) -> NewRun:
    entry = Entry(seq=0, kind=EntryKind.START, state="", name="agent", digest=given, body="{}")
    entry.hash = chain(GENESIS, entry)
    plain: dict[str, Any] = {
        "id": run_id,
        "agent": "agent",
        "version": "1",
        "queue": "default",
        "priority": 0,
        "labels": "{}",
        "entry": entry,
    }
    return NewRun(**plain | changes)


def start(store: Store, *run_ids: str, **changes: Any) -> list[Outcome]:
    return store.write([Start(run=new_run(run_id, **changes)) for run_id in run_ids])


def claim(store: Store, worker_id: str = "w", **changes: Any) -> ClaimResult:
    plain: dict[str, Any] = {"worker_id": worker_id, "agents": (AGENT,), "limit": 100}
    result = do(store, Claim(**plain | changes))
    assert isinstance(result, ClaimResult)
    return result


def take(store: Store, run_id: str = "r", worker_id: str = "w") -> "Held":
    """Claim this one run."""
    run = store.run(run_id)
    assert run is not None
    [claimed] = claim(store, worker_id, only=(run.root_id,)).runs
    assert claimed.id == run_id
    return Held(claimed)


def begin(store: Store, run_id: str = "r", worker_id: str = "w", **changes: Any) -> "Held":
    """Register, start and claim."""
    register(store, worker_id)
    start(store, run_id, **changes)
    return take(store, run_id, worker_id)


def blob(body: str) -> Blob:
    return Blob(name=content_name(body.encode()), body=body)


def effect(name: str = "pay", *, seq: int = 1, state: str = "started", **changes: Any) -> EffectRow:
    plain: dict[str, Any] = {
        "name": name,
        "key": "k",
        "place": ":0",
        "kind": "idempotent",
        "state": state,
        "seq": seq,
        "fence": 1,
        "quiet": False,
    }
    return EffectRow(**plain | changes)


class Held:
    """A claimed run: makes the messages that its owner would send."""

    def __init__(self, claimed: Claimed) -> None:
        self.claimed = claimed
        self.id, self.fence = claimed.id, claimed.fence
        self.seq, self.hash = claimed.head_seq, claimed.head_hash

    def look_again(self, store: Store) -> None:
        """Continue from the stored head, after a message was not written."""
        run = store.run(self.id)
        assert run is not None
        self.seq, self.hash = run.head_seq, run.head_hash

    def entry(self, **changes: Any) -> Entry:
        """The next entry of the chain."""
        plain: dict[str, Any] = {
            "seq": self.seq + 1,
            "kind": EntryKind.STEP,
            "state": "done",
            "place": f":{self.seq}",
            "name": "step",
            "fence": self.fence.counter,
        }
        entry = Entry(**plain | changes)
        entry.hash = chain(self.hash, entry)
        self.seq, self.hash = entry.seq, entry.hash
        return entry

    def append(
        self, *, entries: int = 1, fence: Fence | None = None, of: Any = None, **more: Any
    ) -> Append:
        """The next append; `of` are changes to its entries."""
        written = tuple(self.entry(**of or {}) for _ in range(entries))
        return Append(run_id=self.id, fence=fence or self.fence, entries=written, **more)

    def settle(self, state: str, **changes: Any) -> Settle:
        plain: dict[str, Any] = {"ending": state, "seen_inbox": self.claimed.inbox}
        return Settle(run_id=self.id, fence=self.fence, state=state, **plain | changes)

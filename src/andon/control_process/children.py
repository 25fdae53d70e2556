"""The supervisor's children, as the control process knows them.

All knowledge comes through the channel: the hello lists all children, and events report changes. A
process is identified by pid and start time together.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from andon.host import proc
from andon.store.store import WorkerRow
from andon.supervisor.spec import LIVE


@dataclass(slots=True)
class ChildRecord:
    """One child."""

    name: str
    kind: str
    state: str = "new"
    pid: int = 0
    ticks: int = 0
    run: str | None = None
    containment: dict[str, Any] = field(default_factory=dict)
    code: int | None = None
    signal: int | None = None
    asked: str = ""  # the kind of request that its end answers: kill, term, drain, halt ...
    order: str = ""
    left: frozenset[int] = frozenset()  # its processes that were still alive when it ended
    killed: dict[str, Any] | None = None  # the event that reports its last kill

    @property
    def alive(self) -> bool:
        return self.state in LIVE

    @property
    def quiet(self) -> bool:
        """Whether none of its processes executes any more."""
        return not self.alive and not any(proc.alive(pid) for pid in self.left)

    def how(self) -> str:
        """How it ended, in words."""
        if self.signal is not None:
            return proc.signal_name(self.signal)
        return "cause unknown" if self.code is None else f"exit code {self.code}"


class Children:
    """All children, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, ChildRecord] = {}

    def __iter__(self) -> Iterator[ChildRecord]:
        return iter(self.by_name.values())

    def greet(self, described: list[dict[str, Any]]) -> None:
        """Replace all children by those of a hello: earlier knowledge may be out of date."""
        known, self.by_name = self.by_name, {}
        for one in described:
            name = str(one.get("child"))
            child = ChildRecord(name, str(one.get("kind")), str(one.get("state")))
            before = known.get(name)
            if before is not None and before.pid == (one.get("pid") or 0):
                child.killed, child.left = before.killed, before.left
            _describe(child, one)
            self.by_name[name] = child

    def started(self, event: dict[str, Any]) -> None:
        name = str(event.get("child"))
        child = self.by_name[name] = ChildRecord(name, str(event.get("kind")), "running")
        _describe(child, event)

    def exited(self, event: dict[str, Any]) -> ChildRecord:
        name = str(event.get("child"))
        child = self.by_name.setdefault(name, ChildRecord(name, str(event.get("kind"))))
        _describe(child, event)
        child.state = "clearing"
        child.asked, child.order = str(event.get("by") or ""), str(event.get("order") or "")
        child.left = frozenset(event.get("left") or ())
        return child

    def changed(self, event: dict[str, Any]) -> None:
        """Record an event about a child that is known: killed, frozen, thawed, refused, gave_up."""
        child = self.by_name.get(str(event.get("child")))
        if child is None:
            return
        match event["event"]:
            case "killed":
                child.killed = event
                if not event.get("survivors"):
                    child.left = frozenset()
            case "frozen" if child.alive:
                child.state = "frozen"
                child.containment["pause"] = event.get("grade")
            case "thawed" if child.alive:
                child.state = "running"
            case "refused" | "gave_up" as state:
                child.state = state
            case _:
                pass

    def of(self, row: WorkerRow) -> ChildRecord | None:
        """The live child whose process a worker's row describes."""
        for child in self:
            if child.alive and child.pid == row.pid and child.ticks == row.start_ticks:
                return child
        return None

    def described(self) -> list[dict[str, Any]]:
        names = ("kind", "state", "pid", "run")
        return [{"child": one.name} | {name: getattr(one, name) for name in names} for one in self]


def _describe(child: ChildRecord, said: dict[str, Any]) -> None:
    child.pid = int(said.get("pid") or 0)
    child.ticks = int(said.get("start_ticks") or 0)
    child.run = said.get("run") or child.run
    child.containment = dict(said.get("containment") or child.containment)
    child.code, child.signal = said.get("code"), said.get("signal")
    child.asked = str(said.get("by") or said.get("asked") or "") if child.state != "running" else ""

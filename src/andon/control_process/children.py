"""The supervisor's children, as the control process knows them.

All knowledge comes through the channel: the hello lists all children, and events report changes. A
process is identified by pid and start time together.
"""

import signal
from dataclasses import dataclass, field
from typing import Any

from andon.host import proc
from andon.store.store import WorkerRow

ALIVE = frozenset({"running", "frozen", "stopping"})
OVER = frozenset({"ended", "gave_up", "refused"})


@dataclass(slots=True)
class Ward:
    """One child."""

    name: str
    kind: str
    state: str = "new"
    pid: int = 0
    ticks: int = 0
    run: str | None = None
    log: str | None = None
    containment: dict[str, Any] = field(default_factory=dict)
    code: int | None = None
    signal: int | None = None
    asked: str = ""  # the kind of request that its end answers: kill, term, drain, halt ...
    order: str = ""
    left: frozenset[int] = frozenset()  # its processes that were still alive when it ended
    killed: dict[str, Any] | None = None  # the event that reports its last kill

    @property
    def alive(self) -> bool:
        return self.state in ALIVE

    @property
    def quiet(self) -> bool:
        """Whether none of its processes executes any more."""
        return not self.alive and not any(proc.alive(pid) for pid in self.left)

    def how(self) -> str:
        """How it ended, in words."""
        if self.signal is not None:
            return signal_name(self.signal)
        return "cause unknown" if self.code is None else f"exit code {self.code}"


class Wards:
    """All children, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, Ward] = {}

    def greet(self, described: list[dict[str, Any]]) -> None:
        """Replace all children by those of a hello: earlier knowledge may be out of date."""
        known, self.by_name = self.by_name, {}
        for one in described:
            name = str(one.get("child"))
            ward = Ward(name, str(one.get("kind")), str(one.get("state")))
            before = known.get(name)
            if before is not None and before.pid == (one.get("pid") or 0):
                ward.killed, ward.left = before.killed, before.left
            _describe(ward, one)
            self.by_name[name] = ward

    def started(self, event: dict[str, Any]) -> Ward:
        name = str(event.get("child"))
        ward = self.by_name[name] = Ward(name, str(event.get("kind")), "running")
        _describe(ward, event)
        return ward

    def exited(self, event: dict[str, Any]) -> Ward:
        name = str(event.get("child"))
        ward = self.by_name.setdefault(name, Ward(name, str(event.get("kind"))))
        _describe(ward, event)
        ward.state = "clearing"
        ward.asked, ward.order = str(event.get("by") or ""), str(event.get("order") or "")
        ward.left = frozenset(event.get("left") or ())
        return ward

    def get(self, event: dict[str, Any]) -> Ward | None:
        return self.by_name.get(str(event.get("child")))

    def of(self, row: WorkerRow) -> Ward | None:
        """The live child whose process a worker's row describes."""
        for ward in self.by_name.values():
            if ward.alive and ward.pid == row.pid and ward.ticks == row.start_ticks:
                return ward
        return None

    def described(self) -> list[dict[str, Any]]:
        return [
            {
                "child": one.name,
                "kind": one.kind,
                "state": one.state,
                "pid": one.pid,
                "run": one.run,
            }
            for one in self.by_name.values()
        ]


def _describe(ward: Ward, said: dict[str, Any]) -> None:
    ward.pid = int(said.get("pid") or 0)
    ward.ticks = int(said.get("start_ticks") or 0)
    ward.run = said.get("run") or ward.run
    ward.log = said.get("log") or ward.log
    ward.containment = dict(said.get("containment") or ward.containment)
    ward.code, ward.signal = said.get("code"), said.get("signal")
    ward.asked = str(said.get("by") or said.get("asked") or "") if ward.state != "running" else ""


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

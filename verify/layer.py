"""The outcome that every layer of the verification returns."""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Outcome:
    layer: str  # its name, as in the table
    injected: str  # the injected faults, in words with counts: "crash 812, pause 640"
    faults: int
    runs: int
    violations: list[str] = field(default_factory=list)  # a sentence each, with its replay
    guards: list[str] = field(default_factory=list)  # vacuity guards that are not met: red too
    seconds: float = 0.0


@dataclass(frozen=True)
class Effort:
    name: str  # ci, verify, soak
    scale: float  # 1.0 = verify; ci 0.1; soak 30
    seed: int = 0
    until_red: bool = False  # a canary's: after the first violation there is nothing more to learn


Say = Callable[[str], None]
Layer = Callable[[Effort, Say], Outcome]

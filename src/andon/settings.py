"""Every setting with its default and the reason for it.

Settings are built once at the edge and passed down as values. Precedence: argument > ANDON_* >
andon.toml > default.
"""

from __future__ import annotations

import os
from math import inf

from andon.core.duration import seconds
from andon.core.values.struct import Struct
from andon.errors import BadInput

TYPE_CHECKING = False  # every command imports this module
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any


class Settings(Struct):
    """The settings of a process; andon.toml uses the same names, the environment ANDON_*."""

    # A file in the current folder needs nothing to be installed or started.
    store: str = "sqlite:///.andon/andon.db"
    # How many runs one worker executes at once. Agents mostly wait for models.
    concurrency: int = 10
    # How long a silent worker keeps its runs. A dead worker is noticed at once, without this.
    lease_seconds: float = 10.0
    # How often to poll for work that no notification announced; notifications may be lost.
    poll_seconds: float = 0.5
    # How long a write waits for an unavailable database before this worker gives the run up.
    patience_seconds: float = 120.0
    # How long a draining worker has to finish the steps in hand. Kubernetes gives 30 s.
    grace_seconds: float = 25.0
    # A run that loses its worker this often without a finished step or a new checkpoint is dead.
    interruption_limit: int = 10
    # The port for a worker's probes and metrics: -1 none, 0 any free port.
    health_port: int = -1
    # Probes come from outside the container; anything that could do harm is for this machine only.
    health_host: str = "0.0.0.0"  # noqa: S104
    # A worker counts as dead if its event loop, or its contact with a store that is up, is silent
    # for longer. Three leases: one slow moment must not cause a restart.
    liveness_seconds: float = 30.0
    # Creating this file drains the workers of the folder.
    stop_file: str = ".stop"
    # The cloud whose preemption notices to poll: ec2, gce, azure, or auto.
    preemption: str = ""
    # The URL to poll for notices instead of the cloud's own address.
    preemption_url: str = ""
    # The orchestrator's time before it kills, which `andon doctor` compares; 0 is unknown.
    orchestrator_grace_seconds: float = 0.0
    # Where the traceback of an agent's error goes: journal and stderr, stderr, or off (nowhere).
    # It shows source lines and no values of variables, but a source line can hold a secret too.
    tracebacks: str = "journal"
    # How long a host goes on without contact to its store. Three leases: by then others have
    # given its runs up, and no stop could reach it.
    lost_contact_seconds: float = 30.0
    # The host's reaction to that: stop everything it runs, or continue and report it.
    lost_contact: str = "stop"
    # A supervised worker that sends no heartbeat for this long is ended and started again.
    watchdog_seconds: float = 10.0
    # A step that takes longer is a stall; 0 means that steps may take any time.
    step_seconds: float = 0.0
    # The supervisor's reaction to a stalled worker: restart it, or only show it.
    on_stall: str = "restart"
    # A child that ends this often within restart_seconds is not restarted, or it would spin.
    restart_limit: int = 5
    restart_seconds: float = 60.0
    # Receivers of alerts about overruns, stalls, unproved stops and halts: a URL for a POST, a
    # command that gets the alert on stdin. `andon doctor` reports if there is neither.
    alert_url: str = ""
    alert_command: str = ""
    # Signs the POST, so that the receiver can verify the sender.
    alert_secret: str = ""


# The least value of settings that accept 0 or less.
_LEAST = {"health_port": -1, "orchestrator_grace_seconds": 0, "step_seconds": 0}
_CHOICES = {
    "preemption": ("", "ec2", "gce", "azure", "auto"),
    "lost_contact": ("stop", "continue"),
    "on_stall": ("restart", "show"),
    "tracebacks": ("journal", "stderr", "off"),
}


def load(
    given: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Settings:
    """Return the settings in force: `given` (not None), then the environment, then the file."""
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    for source, found in (
        (_file(folder), _from_file(folder)),
        ("the environment", _from_environment(environ)),
        ("the arguments", {k: v for k, v in (given or {}).items() if v is not None}),
    ):
        for name, value in found.items():
            values[name] = _checked(name, value, source)
    return Settings(**values)


def _file(folder: Path | None) -> str:
    return os.path.join(folder or "", "andon.toml")


def _from_file(folder: Path | None) -> dict[str, Any]:
    path = _file(folder)
    if not os.path.isfile(path):
        return {}
    import tomllib

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except (ValueError, RecursionError) as error:  # not TOML, not text, or an endless number
        raise BadInput(f"{path}: expected TOML, found: {error}") from None


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    # Variables that are not settings: fault points of tests, the author of an answer, the home
    # folder, and variables that a supervisor sets for its children.
    others = {"ANDON_FAULTS", "ANDON_BY", "ANDON_HOME", "ANDON_RUN", "ANDON_SUPERVISOR"}
    others |= {"ANDON_SUPERVISOR_FD", "ANDON_CONTAINMENT", "ANDON_PING_FD", "ANDON_STACKS"}
    others |= {"ANDON_COMMAND", "ANDON_MARK"}
    return {
        name.removeprefix("ANDON_").lower(): value
        for name, value in environ.items()
        if name.startswith("ANDON_") and name not in others and value
    }


def _checked(name: str, value: Any, source: str) -> Any:
    kinds = Settings.__annotations__  # as strings, as they are written
    if name not in kinds:
        from difflib import get_close_matches

        close = get_close_matches(name, kinds, 1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(sorted(kinds))}"
        raise BadInput(f"unknown setting {name!r} in {source}{hint}")
    kind = kinds[name]

    def refusal(wanted: str) -> BadInput:
        return BadInput(f"setting {name!r} in {source}: expected {wanted}, found {value!r}")

    if kind == "str":
        if not isinstance(value, str):
            raise refusal("text")
        choices = _CHOICES.get(name, (value,))
        if value not in choices:
            known = ", ".join(filter(None, choices)) + (", or nothing" if "" in choices else "")
            raise BadInput(f"setting {name!r} in {source}: expected {known}; found {value!r}")
        return value
    number = _number(value, name)
    if number is None:
        timed = name.endswith("_seconds")
        raise refusal("a number or a time like 90s or 5m" if timed else "a number")
    if kind == "int" and not number.is_integer():
        raise refusal("a whole number")
    least = _LEAST.get(name)
    if not (number > 0 if least is None else least <= number) or number == inf:
        raise refusal("more than 0" if least is None else f"at least {least}")
    return int(number) if kind == "int" else number


def _number(value: Any, name: str) -> float | None:
    """Return the number in any of its spellings; None for everything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and name.endswith("_seconds") and not value.startswith("-"):
        return seconds(value)
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None

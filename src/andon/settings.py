"""Every setting, its default and its reason.

Built once at the edge and passed down as values: argument > ANDON_* > andon.toml > default.
"""

from __future__ import annotations

import os
from math import inf

from andon.core.duration import seconds
from andon.core.values.struct import Struct
from andon.errors import BadInput

TYPE_CHECKING = False  # every command imports this
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any


class Settings(Struct):
    """What a process was told. Names are the same in andon.toml, and ANDON_* in the environment."""

    # A file in the current folder: nothing to install and nothing to start.
    store: str = "sqlite:///.andon/andon.db"
    # How many runs one worker executes at once. Agents mostly wait for models.
    concurrency: int = 10
    # How long a silent worker keeps its runs. A dead one is noticed at once and not by this.
    lease_seconds: float = 10.0
    # How often to look for work that no wake-up announced: wake-ups may be lost.
    poll_seconds: float = 0.5
    # How long a write waits for a database that is away before the run is given up here.
    patience_seconds: float = 120.0
    # How long a worker that was told to go finishes what it has in hand. Kubernetes gives 30 s.
    grace_seconds: float = 25.0
    # A run that loses its worker this often without a finished step or a new checkpoint is buried.
    interruption_limit: int = 10
    # Where a worker answers probes and metrics: -1 nowhere, 0 on any free port.
    health_port: int = -1
    # Probes come from outside the container; what they could do to harm is for this machine only.
    health_host: str = "0.0.0.0"  # noqa: S104
    # A worker whose event loop, or whose contact with a store that is there, is silent for longer
    # is not alive. Three leases: a restart must not be a reaction to one slow moment.
    liveness_seconds: float = 30.0
    # Creating this file drains the workers of the folder.
    stop_file: str = ".stop"
    # Whose notices to watch for before a machine is taken away: ec2, gce, azure, or auto.
    preemption: str = ""
    # Where to ask for them, instead of the cloud's own address.
    preemption_url: str = ""
    # What the orchestrator gives before it kills: 0 is not known. `andon doctor` compares.
    orchestrator_grace_seconds: float = 0.0
    # Where the traceback of an agent's error goes: journal and stderr, stderr, or off.
    # It has source lines and no values of variables; but a source line can hold a secret too.
    tracebacks: str = "journal"
    # How long a host that hears nothing from its store goes on. Three leases: others have given its
    # runs up by then, and a stop could not reach it.
    lost_contact_seconds: float = 30.0
    # What it does then: stop everything it has, or continue and say so.
    lost_contact: str = "stop"
    # A supervised worker that shows no sign of life for so long is ended and started again.
    watchdog_seconds: float = 10.0
    # A step that takes longer is a stall; 0: a step may take as long as it likes.
    step_seconds: float = 0.0
    # What becomes of a stalled worker: restart, or show.
    on_stall: str = "restart"
    # A child that ends this often within restart_seconds is not started again: it would spin.
    restart_limit: int = 5
    restart_seconds: float = 60.0
    # Whom to tell of overruns, stalls, unproved stops and halts: a POST there, a command with the
    # alert on its stdin. Without either nobody hears of them, and `andon doctor` says so.
    alert_url: str = ""
    alert_command: str = ""
    # Signs the POST, so that whoever takes it knows whose it is.
    alert_secret: str = ""


# Where 0 and less mean something: the least that is allowed.
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
    """The settings in force: `given` (not None), then the environment, then the file."""
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
    except (ValueError, RecursionError) as error:  # no TOML, no text, a number without an end
        raise BadInput(f"{path}: expected TOML, found: {error}") from None


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    # Names that are no settings: the fault points of tests, who answers an ask, where the latch is,
    # and what a supervisor tells its children.
    others = {"ANDON_FAULTS", "ANDON_BY", "ANDON_HOME", "ANDON_RUN", "ANDON_SUPERVISOR"}
    others |= {"ANDON_SUPERVISOR_FD", "ANDON_CONTAINMENT", "ANDON_PING_FD", "ANDON_STACKS"}
    others |= {"ANDON_COMMAND", "ANDON_MARK"}
    return {
        name.removeprefix("ANDON_").lower(): value
        for name, value in environ.items()
        if name.startswith("ANDON_") and name not in others and value
    }


def _checked(name: str, value: Any, source: str) -> Any:
    kinds = Settings.__annotations__  # as they are written
    if name not in kinds:
        from difflib import get_close_matches

        close = get_close_matches(name, kinds, 1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(sorted(kinds))}"
        raise BadInput(f"unknown setting {name!r} in {source}{hint}")
    kind = kinds[name]
    if kind == "str":
        if isinstance(value, str):
            return _chosen(name, value, source)
        raise BadInput(f"setting {name!r} in {source}: expected text, found {value!r}")
    number = _number(value, name)
    if number is None:
        wanted = "a number or a time like 90s or 5m" if name.endswith("_seconds") else "a number"
        raise BadInput(f"setting {name!r} in {source}: expected {wanted}, found {value!r}")
    if kind == "int" and not number.is_integer():
        raise BadInput(f"setting {name!r} in {source}: expected a whole number, found {value!r}")
    least = _LEAST.get(name)
    if not (number > 0 if least is None else least <= number) or number == inf:
        wanted = "more than 0" if least is None else f"at least {least}"
        raise BadInput(f"setting {name!r} in {source}: expected {wanted}, found {value!r}")
    return int(number) if kind == "int" else number


def _chosen(name: str, value: str, source: str) -> str:
    choices = _CHOICES.get(name, (value,))
    if value not in choices:
        known = ", ".join(filter(None, choices)) + (", or nothing" if "" in choices else "")
        raise BadInput(f"setting {name!r} in {source}: expected {known}; found {value!r}")
    return value


def _number(value: Any, name: str) -> float | None:
    """A number, however it was written; None for everything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and name.endswith("_seconds") and not value.startswith("-"):
        return seconds(value)
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None

"""The spec of a supervisor, which it reads once from an inherited descriptor."""

import json
import os
from dataclasses import dataclass, field, fields
from typing import Any

from andon.core.fleet.restart import Mode, RestartPolicy
from andon.errors import BadInput

KINDS = ("control", "worker", "command")
GRADES = ("none", "C", "B", "A")  # of a kill mechanism, worst first
# States of a child. waiting: for permission to start · held: by the latch or lost contact ·
# resting: before a restart · clearing: it ended, and what it left behind is being killed
LIVE = ("running", "frozen", "stopping")
OVER = ("ended", "gave_up", "refused")


@dataclass(frozen=True, slots=True)
class Limits:
    """Time and size limits of a supervisor."""

    lost_contact_seconds: float = 30.0
    lost_contact: str = "stop"
    watchdog_seconds: float = 10.0
    on_stall: str = "restart"  # or show: record the stall and leave the worker alone
    start_seconds: float = 60.0  # until the first ping: big models and imports load slowly
    grace_seconds: float = 25.0
    restart_limit: int = 5
    restart_seconds: float = 60.0
    halt_seconds: float = 5.0  # until survivors are reported; the kill goes on after that
    go_seconds: float = 60.0  # until a command that waits for permission to start is refused
    log_bytes: int = 10_000_000


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """The definition of one child: its command and how it is started."""

    name: str
    kind: str
    argv: list[str]
    env: dict[str, str]
    cwd: str | None = None
    wait: bool = False
    restart: str = "never"
    run: str | None = None
    uid: int | None = None
    log: bool | str = True  # "tee": on the terminal as well
    stdin: bool = False

    def policy(self, limits: Limits) -> RestartPolicy:
        if self.kind == "control":  # never given up: it has to report to the store
            return RestartPolicy(Mode.ALWAYS, None)
        return RestartPolicy(Mode(self.restart), limits.restart_limit, limits.restart_seconds)


@dataclass(frozen=True, slots=True)
class Spec:
    """The definition of all that one supervisor runs."""

    home: str
    children: list[ChildSpec]
    limits: Limits = field(default_factory=Limits)
    require: dict[str, str] = field(default_factory=dict)
    store: str | None = None
    foreground: dict[str, Any] = field(default_factory=dict)
    raw: dict[str, Any] = field(default_factory=dict)  # for the next image of this process

    @property
    def single(self) -> ChildSpec | None:
        """The command, if the supervisor exists to run a single one."""
        others = [child for child in self.children if child.kind != "control"]
        return others[0] if len(others) == 1 and others[0].kind == "command" else None


def read(fd: int) -> Spec:
    """Read the spec from a descriptor and close it."""
    with os.fdopen(fd, "rb") as file:
        text = file.read()
    try:
        return parse(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"the spec is not JSON: {error}. It comes from `andon up`.") from None


def parse(raw: dict[str, Any]) -> Spec:
    try:
        children = [_child(each) for each in raw["children"]]
        limits = _limits(raw.get("settings") or {})
        spec = Spec(
            home=str(raw["home"]),
            children=children,
            limits=limits,
            require=dict(raw.get("require") or {}),
            store=raw.get("store"),
            foreground=dict(raw.get("foreground") or {}),
            raw=raw,
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BadInput(f"the spec is not valid: {type(error).__name__}: {error}") from None
    names = [child.name for child in children]
    if len(set(names)) != len(names):
        raise BadInput(f"the spec: expected children of different names, found {names}")
    return spec


def _limits(given: dict[str, Any]) -> Limits:
    usual = Limits()
    known = {each.name: getattr(usual, each.name) for each in fields(Limits)}
    return Limits(**{name: type(known[name])(given[name]) for name in known if name in given})


def _child(raw: dict[str, Any]) -> ChildSpec:
    kind, argv = str(raw["kind"]), [str(word) for word in raw["argv"]]
    if kind not in KINDS or not argv:
        raise ValueError(f"expected a kind of {', '.join(KINDS)} and an argv, found {raw!r}")
    uid = raw.get("uid")
    return ChildSpec(
        name=str(raw["name"]),
        kind=kind,
        argv=argv,
        env={str(name): str(value) for name, value in (raw.get("env") or {}).items()},
        cwd=raw.get("cwd"),
        wait=bool(raw.get("wait")),
        restart=str(Mode(raw.get("restart") or "never")),
        run=raw.get("run"),
        uid=None if uid is None else int(uid),
        log=raw.get("log", True),
        stdin=bool(raw.get("stdin")),
    )

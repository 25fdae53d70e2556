"""`andon up` and `andon exec -- CMD`: check, then become the supervisor.

All checks are made before anything starts. Then this process executes the supervisor in its place,
which is small and shares none of the imports made here.
"""

import json
import os
import pwd
import shlex
import shutil
import sys
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from andon.control.runs.command_run import VERSION, again
from andon.control_process.command_runner import CommandRun, held, refusal_of
from andon.core.run import TERMINAL
from andon.core.values import value
from andon.errors import BadInput, Refused
from andon.host import home as homes
from andon.host.latch import Latch
from andon.runtime.requests import requests
from andon.runtime.requests.start import refuse_bad_id
from andon.settings import Settings
from andon.store import absolute
from andon.store.messages.rows import RunRow
from andon.store.store import Store
from andon.supervisor.spec import GRADES

WHAT = ("kill", "pause", "parent_death")
# -P: the files of this folder are an agent's, and must not be taken for Python's own.
PYTHON = [sys.executable, "-P", "-m"]
EXIT_SECONDS = 2.0
# Variables that the control process needs and a child must not see.
_PRIVATE = ("ANDON_ALERT_SECRET", "ANDON_ALERT_URL", "ANDON_ALERT_COMMAND", "ANDON_FAULTS")
# Hidden from a child of another user as well, which must not reach the store.
_STORE = ("ANDON_STORE", "PGPASSWORD", "PGPASSFILE", "PGSERVICEFILE")


def requirements(given: str | None) -> dict[str, str]:
    """Parse --require, such as kill=A,pause=C."""
    found: dict[str, str] = {}
    for part in filter(None, (given or "").split(",")):
        what, _, grade = part.strip().partition("=")
        if what not in WHAT or grade not in GRADES:
            raise BadInput(
                f"--require {part!r}: expected WHAT=GRADE with {', '.join(WHAT)} and "
                f"{', '.join(reversed(GRADES))}; as in --require kill=A,pause=C"
            )
        found[what] = grade
    return found


def user(name: str | None) -> int | None:
    """The uid that children run under; None for this user."""
    if name is None:
        return None
    if os.geteuid() != 0:
        raise BadInput(f"--uid {name}: only root can start processes of another user")
    try:
        return int(name) if name.isdigit() else pwd.getpwnam(name).pw_uid
    except KeyError:
        raise BadInput(f"--uid {name}: there is no user of that name on this host") from None


def refuse_latched(home: str) -> None:
    """Refuse to start on a host whose latch is pulled or cannot be read."""
    found = Latch(home).init()
    if found.pulled:
        by = found.by or "an unnamed person"
        words = found.unreadable or f"pulled by {by}{f': {found.why}' if found.why else ''}"
        raise Refused(
            f"this host is halted: the latch in {home} ({words}). To allow starts "
            "again: andon reauthorize"
        )


def refuse_held(store: Store, command: CommandRun) -> None:
    """Refuse a run that could not begin."""
    row = store.run(command.run)
    if row is not None and row.state not in TERMINAL:
        why = refusal_of(store, row) or _other_than(store, row, command)
    elif row is not None:
        why = f"run {row.id} is {row.state} already; andon show {row.id}"
    else:
        why = held(store, command.agent, command.labels)
    if why:
        raise Refused(f"not started: {why}")


def _other_than(store: Store, row: RunRow, command: CommandRun) -> str:
    """Why a run cannot continue with this command: no worker would take it with another one."""
    [first, *_] = requests.journal(store, row.id)
    given = value.decode(requests.body_of(store, first))
    if row.version != VERSION:
        return f"run {row.id} is one of agent {row.agent}, and no command's; choose another --id"
    if (row.agent, given["argv"]) == (command.agent, command.argv):
        return ""
    return f"run {row.id} is another command's: {again(row.id, row.agent, given['argv'])}"


def command_run_of(argv: Sequence[str], options: Mapping[str, Any]) -> CommandRun:
    if not argv:
        raise BadInput("expected a command after --, as in: andon exec -- python my_agent.py")
    run_id = options.get("id") or uuid.uuid4().hex[:16]
    refuse_bad_id(run_id)
    name = options.get("name") or os.path.basename(argv[0])
    return CommandRun(
        child="command",
        run=run_id,
        agent=name,
        argv=list(argv),
        labels=dict(options.get("labels") or {}),
        restart=options.get("restart") or "never",
    )


NO_PROGRAM = 127  # the exit code of a shell


def why_nowhere(program: str) -> str:
    """Why a program certainly does not exist, in which case no run is created; empty if it may."""
    if shutil.which(program) is not None or os.path.exists(program):
        return ""
    where = "there is no such file" if os.sep in program else "there is no such program in PATH"
    agent = f". An agent in a file: andon run {shlex.quote(program)}" if ".py" in program else ""
    return f"cannot execute {program!r}: {where}{agent}"


def spec(
    settings: Settings,
    *,
    children: Sequence[dict[str, Any]],
    require: Mapping[str, str] | None = None,
    command: CommandRun | None = None,
    environ: Mapping[str, str] = os.environ,
) -> dict[str, Any]:
    """The specification that a supervisor starts from."""
    env = {**environ, "ANDON_STORE": settings.store, "ANDON_HOME": homes.find(environ)}
    env.pop("ANDON_FAULTS", None)
    if command is not None:
        env["ANDON_COMMAND"] = msgspec.json.encode(command).decode()
    control = {
        "name": "control",
        "kind": "control",
        "argv": [*PYTHON, "andon.control_process.main"],
        "env": env,
        "restart": "always",
        "cwd": os.getcwd(),
    }
    names: tuple[str, ...] = ("lost_contact_seconds", "lost_contact", "watchdog_seconds")
    names += ("grace_seconds", "restart_limit", "restart_seconds", "on_stall")
    limits = {name: getattr(settings, name) for name in names}
    if command is None:  # a drain may use its whole grace period; the exit needs time after it
        limits["grace_seconds"] += EXIT_SECONDS
    return {
        "home": env["ANDON_HOME"],
        "store": absolute(settings.store),
        "settings": limits,
        "require": dict(require or {}),
        "children": [control, *children],
        "foreground": {"quiet": command is not None},
    }


def environment(settings: Settings, uid: int | None, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child: ours without the variables it must not see."""
    hidden = {*_PRIVATE, *(_STORE if uid is not None else ())}
    env = {name: text for name, text in environ.items() if name not in hidden}
    env["ANDON_HOME"] = homes.find(environ)
    return env if uid is None else env | _names(uid)


def _names(uid: int) -> dict[str, str]:
    """The variables that tell programs their home folder and user."""
    try:
        found = pwd.getpwuid(uid)
    except KeyError:  # a number without a name
        return {"HOME": "/", "USER": str(uid), "LOGNAME": str(uid)}
    return {"HOME": found.pw_dir, "USER": found.pw_name, "LOGNAME": found.pw_name}


def worker_children(
    settings: Settings,
    words: Sequence[str],
    number: int,
    uid: int | None = None,
    environ: Mapping[str, str] = os.environ,
) -> list[dict[str, Any]]:
    """Specify `number` workers; `words` are the arguments of `andon work`."""
    env = environment(settings, None, environ)
    env |= _names(uid) if uid is not None else {}
    env |= {"ANDON_STORE": settings.store, "ANDON_GRACE_SECONDS": f"{settings.grace_seconds:g}"}
    argv = [*PYTHON, "andon", "work", *words]
    # On failure only: a worker that exits after a drain was asked to.
    worker = {"kind": "worker", "argv": argv, "env": env, "restart": "on-failure"}
    names = [f"worker-{index + 1}" for index in range(number)]
    return [worker | _child(name, uid) for name in names]


def command_child(
    settings: Settings,
    command: CommandRun,
    uid: int | None = None,
    environ: Mapping[str, str] = os.environ,
) -> dict[str, Any]:
    """Specify the child that executes a command."""
    env = environment(settings, uid, environ)
    own = {"kind": "command", "argv": command.argv, "env": env, "stdin": True}
    return own | {"restart": command.restart, "run": command.run} | _child(command.child, uid)


def _child(name: str, uid: int | None) -> dict[str, Any]:
    """The part of its specification that every child has."""
    return {"name": name, "cwd": os.getcwd(), "wait": True, "uid": uid, "log": "tee"}


def become(specification: dict[str, Any]) -> None:
    """Replace this process by the supervisor; does not return."""
    descriptor = os.memfd_create("andon-spec", 0)
    os.write(descriptor, json.dumps(specification).encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.set_inheritable(descriptor, True)
    sys.stdout.flush()
    sys.stderr.flush()
    argv = [*PYTHON, "andon.supervisor", "--spec-fd", str(descriptor)]
    os.execv(argv[0], argv)  # noqa: S606

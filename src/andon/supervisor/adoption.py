"""Records what a supervisor owns, and adopts the processes that a dead one left alive.

A process is the recorded one only if its start time matches, checked after its pidfd was opened.
The supervisor can watch and end an adopted child like any other. Its exit code is unknown, its
output is not kept, and it is restarted only if our own spec has a child of its name.
"""

import json
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from andon.host import descriptors, proc
from andon.host import home as homes
from andon.supervisor.children.child import Child
from andon.supervisor.spec import ChildSpec

if TYPE_CHECKING:
    from andon.supervisor.supervisor import Supervisor


def save(own: "Supervisor") -> None:
    """Write what a successor needs, without the environment, which has secrets."""
    me = os.getpid()
    state = {
        "id": own.id,
        "pid": me,
        "start_ticks": proc.start_ticks(me),
        "boot": proc.boot_id(),
        "namespace": proc.pid_namespace(),
        "receipt": own.halt_state.receipt,
        "children": [_described(child) for child in own.children if child.tree is not None],
    }
    with suppress(OSError):  # a full disk costs only the adoption
        homes.write(homes.state_path(own.spec.home, own.id), json.dumps(state).encode())


def _described(child: Child) -> dict[str, Any]:
    return {
        "name": child.name,
        "kind": child.kind,
        "run": child.run,
        "argv": child.spec.argv,
        "pid": child.pid,
        "start_ticks": child.ticks,
        "started_at": child.started_at,
        "state": child.state,
        "tree": child.tree.describe() if child.tree is not None else None,
    }


def adopt(own: "Supervisor") -> None:
    """Take over the children of every dead supervisor of this home.

    The rename lets only one successor take each.
    """
    folder = os.path.join(own.spec.home, "state")
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    except OSError:
        return
    for name in names:
        state = _read(os.path.join(folder, name))
        if state is None or state.get("id") == own.id or not _is_dead(state):
            continue
        claimed = os.path.join(folder, f"{name}.{own.id}")
        try:
            os.rename(os.path.join(folder, name), claimed)
        except OSError:
            continue  # another supervisor was quicker
        homes.unregister(own.spec.home, str(state["id"]))
        for each in state.get("children") or []:
            with suppress(KeyError, TypeError, ValueError, OSError):
                _take(own, each, str(state["id"]))
        own.save()
        with suppress(OSError):
            os.unlink(claimed)


def _read(path: str) -> dict[str, Any] | None:
    state = homes.read_json(path, homes.LONGEST_STATE)
    return state if isinstance(state, dict) and isinstance(state.get("id"), str) else None


def _is_dead(state: dict[str, Any]) -> bool:
    """Whether it is dead for certain: of this boot and namespace, and no longer there."""
    here = (proc.boot_id(), proc.pid_namespace())
    if (state.get("boot"), state.get("namespace")) != here:
        return False
    return not proc.alive(int(state.get("pid") or 0), int(state.get("start_ticks") or 0))


def _take(own: "Supervisor", each: dict[str, Any], before: str) -> None:
    tree = own.mechanism.restore(each["tree"])
    pid, ticks = int(each["pid"] or 0), int(each["start_ticks"] or 0)
    pidfd = proc.open_pidfd(pid, ticks) if pid and ticks else -1
    alive = pidfd >= 0 and proc.alive(pid, ticks)
    if not alive and not tree.pids():
        tree.close()
        descriptors.close(pidfd)
        return
    spec = ChildSpec(f"{each['name']}~{before}", str(each["kind"]), list(each["argv"]), {})
    if not alive or spec.kind == "control":  # not worth adopting: kill what is left of it
        child = Child(spec, state="clearing", run=each.get("run"), tree=tree, asked="term")
        own.children.append(child)
        descriptors.close(pidfd)
        own.say(child.name, f"left behind by supervisor {before}; ended")
        own.kill([child], own.report_killed, why="left behind")
        return
    child = _unstarted(own, each["name"], each["kind"]) or Child(spec)
    if child.spec is spec:
        own.children.append(child)
    child.tree, child.pid, child.ticks, child.pidfd = tree, pid, ticks, pidfd
    child.state = "frozen" if each.get("state") == "frozen" else "running"
    child.adopted, child.run = True, child.run or each.get("run")
    child.began, child.started_at = time.monotonic(), float(each.get("started_at") or 0.0)
    child.starts = 1
    own.lifecycle.watch(child)
    own.say(child.name, f"adopted (pid {pid}) from supervisor {before}")
    own.lifecycle.report_start(child, adopted=True)


def _unstarted(own: "Supervisor", name: str, kind: str) -> Child | None:
    return next(
        (one for one in own.children if (one.name, one.kind, one.state) == (name, kind, "new")),
        None,
    )

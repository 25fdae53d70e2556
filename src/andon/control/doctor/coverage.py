"""Reports what a halt can reach on this host, and what it cannot.

Grades are measured, not inferred from versions: a separate process performs every mechanism on
scratch processes.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from andon.control.doctor import attribution
from andon.control.doctor.check import OK, WARN, Check, advised
from andon.core.text import age, plural
from andon.host import home as homes
from andon.runtime.worker.peers import is_gone, this_process
from andon.settings import Settings
from andon.store.store import Store

PROBE_SECONDS = 20.0
# An emergency stop that was not tested for this long cannot be relied on.
DRILL_SECONDS = 30 * 86_400.0
DRILLS = "drills.jsonl"
BEYOND = "beyond a halt"
NAMED = 3
# Used where the supervisor is PID 1: this process is not, and cannot try what only PID 1 can do.
_FIRST = {
    "kill": {
        "grade": "A",
        "found": "by pid1: the supervisor is PID 1, one call ends every process of the container",
        "better": "",
    },
    "parent death": {
        "grade": "A",
        "found": "by pid1: when the supervisor dies the kernel ends all others",
        "better": "",
    },
}


def here(settings: Settings) -> Iterator[Check]:
    """The lines that need no store."""
    found = grades()
    if not found:
        advice = "andon halt still works; what it can end is not known"
        yield Check("kill", WARN, "the check of the mechanisms did not end", advice)
    first = any(
        entry.kind == "supervisor" and entry.pid == 1 and homes.is_here(entry)
        for entry in homes.live(homes.find())
    )
    for one in found:
        yield _graded({**one, **(_FIRST.get(one["stop"], {}) if first else {})})
    yield attribution.line()
    yield from _alone()
    yield _drilled(homes.find(), time.time())
    yield _alerted(settings)


def grades() -> list[dict[str, Any]]:
    """Try every mechanism in a new process: trials fork, and this one has threads and a store."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "andon.supervisor.trees.grades"],
            capture_output=True,
            check=False,
            env={**os.environ, "PYTHONPATH": _path()},
            stdin=subprocess.DEVNULL,
            timeout=PROBE_SECONDS,
        )
        found = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return []
    return list(found)


def _path() -> str:
    return os.pathsep.join(filter(None, (homes.SOURCE, os.environ.get("PYTHONPATH"))))


def _graded(one: dict[str, Any]) -> Check:
    if one["stop"] in ("network", "keys"):
        return Check(BEYOND, WARN, f"{one['stop']}: {one['found']}", one["better"])
    status = OK if one["grade"] in ("A", "B") else WARN
    return Check(one["stop"], status, f"{one['grade']}, {one['found']}", one["better"])


def _alone() -> Iterator[Check]:
    """Workers of this host without a supervisor."""
    live = homes.live(homes.find())
    alone = [entry for entry in live if entry.kind == "worker"]
    if alone:
        pids = ", ".join(str(entry.pid) for entry in alone[:NAMED])
        found = (
            f"{plural(len(alone), 'worker')} of this host without a supervisor (pid {pids}): "
            "a halt ends what it can find of them, one by one"
        )
        yield Check(BEYOND, WARN, found, "start them with: andon up FILE")


def _drilled(home: str, now: float) -> Check:
    last = last_drill(home)
    if last is None:
        return Check(
            "drill", WARN, "never run: whether a halt works here is not known", "andon drill"
        )
    ago = max(now - float(last["at"]), 0.0)
    found = (
        f"{age(ago)} ago: {last['processes']} processes, {last['survivors']} survived, "
        f"verified in {last['verified_ms']:.0f} ms"
    )
    if not last["passed"]:
        return Check("drill", WARN, f"FAILED {found}", "andon drill says what survived")
    return advised("drill", found, "run it again: andon drill" if ago > DRILL_SECONDS else "")


def last_drill(home: str) -> dict[str, Any] | None:
    """The newest drill on record that can be read."""
    try:
        with open(os.path.join(home, DRILLS), encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    wanted = ("at", "processes", "survivors", "verified_ms")
    for line in reversed(lines):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and all(
            isinstance(found.get(name), int | float) for name in wanted
        ):
            return {"passed": False, **found}
    return None


def _alerted(settings: Settings) -> Check:
    targets = [name for name in ("alert_url", "alert_command") if getattr(settings, name, "")]
    if targets:
        return Check("alerts", OK, f"stops that overrun are reported to {' and '.join(targets)}")
    advice = "set ANDON_ALERT_URL or ANDON_ALERT_COMMAND"
    return Check("alerts", WARN, "stops that overrun are not reported anywhere", advice)


def elsewhere(store: Store) -> Iterator[Check]:
    """Workers of other hosts without a live supervisor: a halt fences them, but proves nothing."""
    owners = {one.id for one in store.supervisors() if one.lease_until > store.now()}
    me = this_process()
    alone = [
        worker
        for worker in store.workers()
        if worker.state == "live" and worker.supervisor not in owners and not is_gone(me, worker)
    ]
    others = sorted({worker.host for worker in alone if worker.host != me.host})
    if others:
        names = ", ".join(others[:NAMED]) + (" ..." if len(others) > NAMED else "")
        found = (
            f"{plural(len(others), 'other host')} with workers but no supervisor ({names}): "
            "a halt is unproved there until their leases end"
        )
        yield Check(BEYOND, WARN, found, "start them with: andon up FILE")

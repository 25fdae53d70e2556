"""`andon migrate`: move a run to another version, once a worker has found that its code fits."""

import json as json_
import time

from andon.cli import output
from andon.control.runs.runs import Surroundings
from andon.core.text import clean, clean_lines, command
from andon.errors import Conflict
from andon.runtime.requests import requests
from andon.store.messages.rows import RunRow
from andon.store.store import Store

MOVED, REFUSED, LATE = 0, 1, 3
LOOK_SECONDS = 0.05


def migrate(store: Store, row: RunRow, version: str, by: str, timeout: float, *, json: bool) -> int:
    """Ask for it and wait for the answer; answers the exit code."""
    carried = Surroundings(store).is_version_carried(row.agent, version)
    if not carried and _is_known(store, row, version):
        raise Conflict(
            f"no running worker serves {row.agent} (version {version}), so its code cannot be "
            "checked against the journal. Start one: andon work FILE --no-promote"
        )
    requests.migrate(store, row.id, version, by=by)
    until = time.monotonic() + timeout
    now = requests.find(store, row.id)
    while now.trial is not None and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
        now = requests.find(store, row.id)
    ending = "late" if now.trial is not None else _ending(store, row)
    if json:
        facts = {"run": row.id, "from": row.version, "to": version, "outcome": ending}
        output.document({**facts, "error": json_.loads(now.error) if now.error else None})
    else:
        _say(row, now, version, ending)
    return {"migrated": MOVED, "late": LATE}.get(ending, REFUSED)


def _is_known(store: Store, row: RunRow, version: str) -> bool:
    return version in {one.version for one in store.agents(row.agent)}


def _ending(store: Store, row: RunRow) -> str:
    """How the trial ended: the first attempt since then that was one."""
    later = [one.ending for one in store.attempts(row.id) if one.fence > row.fence]
    return next((one for one in later if one in ("migrated", "refused")), "refused")


def _say(row: RunRow, now: RunRow, version: str, ending: str) -> None:
    name = clean(row.id)
    match ending:
        case "migrated":
            output.say(f"migrated: {name} continues with version {clean(version)}")
        case "late":
            output.note(f"run {name}: no worker has answered yet: {command('show', row.id)}")
        case _:
            error = json_.loads(now.error) if now.error else {}
            why = clean_lines(str(error.get("message", "")), "  ")
            kept = clean(row.version)
            output.note(f"not migrated: {name} keeps version {kept}. {why}")

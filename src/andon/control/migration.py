"""Migration of a run to another version, once a worker has checked its code on the journal.

The worker checks it in runtime/attempt/rehearsal.py.
"""

import json
import time
from typing import Any

from andon.control.runs.shown_state import Surroundings
from andon.errors import Conflict
from andon.runtime.requests import requests
from andon.store.messages.rows import RunRow
from andon.store.store import Store

LOOK_SECONDS = 0.05


def migrate(store: Store, row: RunRow, version: str, by: str, timeout: float) -> dict[str, Any]:
    """Request a migration and wait for its outcome: migrated, refused (with the error) or late."""
    served = Surroundings(store).serves_version(row.agent, version)
    known = version in {one.version for one in store.agents(row.agent)}
    if known and not served:
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
    return {
        "run": row.id,
        "from": row.version,
        "to": version,
        "outcome": "late" if now.trial is not None else _outcome(store, row),
        "error": json.loads(now.error) if now.error else None,
    }


def _outcome(store: Store, row: RunRow) -> str:
    """How the trial ended: read from the first attempt since the request that was a trial."""
    later = [one.ending for one in store.attempts(row.id) if one.fence > row.fence]
    return next((one for one in later if one in ("migrated", "refused")), "refused")

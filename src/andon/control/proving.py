"""What `andon verify` and `andon doctor` print."""

import time
from typing import Any

from andon.control import output
from andon.settings import Settings
from andon.store import open_store
from andon.store.store import Store
from andon.supervisor import home as homes

# A walk that takes longer says how far it is.
PROGRESS_SECONDS = 2.0

_MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


def verify(store: Store, run_id: str | None, *, json: bool) -> int:
    """0 if everything is as it was written, 1 with every damage listed."""
    from andon.control.verify import Tally
    from andon.control.verify import verify as walk

    told = time.monotonic()

    def progress(tally: Tally) -> None:
        nonlocal told
        if not json and time.monotonic() - told > PROGRESS_SECONDS:
            told = time.monotonic()
            output.note(f"{tally.runs:,} runs, {tally.entries:,} entries so far")

    tally = walk(store, run_id, progress)
    counts = {name: getattr(tally, name) for name in ("runs", "entries", "effects", "blobs")}
    if json:
        output.document({"ok": not tally.damage, **counts, "damage": tally.damage})
    else:
        for one in tally.damage:
            where = f"run {one['run']}: " if one["run"] else ""
            output.say("DAMAGED  " + output.clean(where + one["what"].removeprefix(where)))
        walked = ", ".join(f"{count:,} {word}" for word, count in counts.items())
        verdict = f"{len(tally.damage)} damages found in" if tally.damage else "verified:"
        output.say(f"{verdict} {walked}")
        if tally.damage:
            output.note("restore the database from a backup, then: andon verify")
    return 1 if tally.damage else 0


def doctor(settings: Settings, *, json: bool) -> int:
    """0 unless something fails."""
    url = settings.store
    from andon.control.doctor import FAIL, Check, examine
    from andon.store import sqlite_path

    path = sqlite_path(url)
    path = path.absolute() if path else None
    found: list[Check] = []
    if not json:
        output.say(f"store {output.clean(homes.without_password(url))}")
    for check in examine(lambda: open_store(url, create=False), path, settings):
        found.append(check)
        if not json:
            advice = f"  -> {check.advice}" if check.advice else ""
            line = f"{check.name:<18} {check.found}{advice}"
            output.say(f"{_MARKS[check.status]}  {output.clean(line)}")
    failed = any(check.status == FAIL for check in found)
    if json:
        output.document({"ok": not failed, "checks": [_facts(check) for check in found]})
    return 1 if failed else 0


def _facts(check: Any) -> dict[str, str]:
    return {name: getattr(check, name) for name in ("name", "status", "found", "advice")}

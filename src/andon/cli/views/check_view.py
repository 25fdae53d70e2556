"""Output of `andon verify` and `andon doctor`."""

from typing import Any

from andon.cli import output, progress
from andon.cli.app import advise, print_answer, wants_json
from andon.cli.table import hang
from andon.core.text import clean, plural
from andon.host import home as homes
from andon.settings import Settings
from andon.store import open_store
from andon.store.store import Store

_SINGULAR = {"runs": "run", "entries": "entry", "effects": "effect", "blobs": "blob"}
_MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


def verify(store: Store, run_id: str | None) -> int:
    """Verify the store and print every damage; return 0 if there is none, else 1."""
    from andon.control.verification import VerifyTally
    from andon.control.verification import verify as walk

    with progress.line(json=wants_json()) as line:
        line.show("checking the database file")
        total = store.run_count() if run_id is None and line.shown else None

        def look(tally: VerifyTally) -> None:
            line.show(f"runs checked, {tally.entries:,} journal entries", tally.runs, total)

        tally = walk(store, run_id, look)
    counts = {
        "runs": tally.runs,
        "entries": tally.entries,
        "effects": tally.effects,
        "blobs": len(tally.blobs),
    }
    print_answer({"ok": not tally.damage, **counts, "damage": tally.damage}, _verified)
    if tally.damage:
        advise("restore the database from a backup, then: andon verify")
    return 1 if tally.damage else 0


def _verified(found: dict[str, Any]) -> None:
    for one in found["damage"]:
        where = f"run {one['run']}: " if one["run"] else ""
        what = clean(where + one["what"].removeprefix(where))
        hang("DAMAGED  ", what, tint="wrong")
    walked = ", ".join(
        f"{found[word]:,} {singular if found[word] == 1 else word}"
        for word, singular in _SINGULAR.items()
    )
    damage = f"{plural(len(found['damage']), 'damage')} found in"
    hang("", f"{'verified:' if found['ok'] else damage} {walked}")


def doctor(settings: Settings) -> int:
    """Print every check; return 0 unless one fails."""
    url = settings.store
    from andon.control.doctor.check import FAIL, Check
    from andon.control.doctor.checks import examine
    from andon.store import sqlite_path

    path = sqlite_path(url)
    path = path.absolute() if path else None
    found: list[Check] = []
    if not wants_json():
        output.say(f"store {clean(homes.without_password(url))}")

    def opened() -> Any:
        return open_store(url, create=False, look="once", reserved=True)

    for check in examine(opened, path, settings):
        found.append(check)
        if not wants_json():
            advice = f"  -> {check.advice}" if check.advice else ""
            head = f"{_MARKS[check.status]}  {check.name:<18} "
            hang(head, clean(check.found + advice), tint=check.status)
    failed = any(check.status == FAIL for check in found)
    print_answer({"ok": not failed, "checks": [check._asdict() for check in found]}, "")
    return 1 if failed else 0

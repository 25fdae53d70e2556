"""The progress of a step that works through many items: as stored and as shown."""

from __future__ import annotations

import json

from andon.errors import BadInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def progress_of(name: str, done: int, total: int | None) -> str:
    """Return the stored form of a checkpoint's progress."""
    for word, given in (("done", done), ("total", total)):
        if given is not None and (type(given) is not int or given < 0):
            raise BadInput(f"checkpoint: expected {word}= as a number of items, found {given!r}")
    return json.dumps({"step": name, "done": done, "total": total})


def progress_text(progress: list[dict[str, Any]]) -> str:
    """Format progress for people, e.g. "batch 1010/3000"."""
    return ", ".join(
        f"{one['step']} {one['done']}" + (f"/{one['total']}" if one["total"] is not None else "")
        for one in progress
    )

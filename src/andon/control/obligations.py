"""Obligations: confirmed effects that will be undone unless their run goes on, and when."""

from typing import Any

from andon.control.facts import facts
from andon.core.run import TERMINAL, State
from andon.core.text import command, length
from andon.store.messages.rows import Obligation
from andon.store.store import Store


def listing(store: Store, limit: int) -> list[dict[str, Any]]:
    """The effects that would have to be undone, nearest deadline first."""
    now = store.now()
    return [
        {
            "run": one.run_id,
            **facts(one, "agent version"),
            "state": one.run_state,
            "effect": one.name,
            "key": one.key,
            "effect_state": one.state,
            "undo": one.undo,
            "undo_within_seconds": one.undo_within,
            "undo_at": one.undo_at,
            "undone": when(one, now),
        }
        for one in store.obligations(limit=limit)
    ]


def when(one: Obligation, now: float) -> str:
    """When the effect will be undone, in words."""
    if one.state == "undoing":
        return "now"
    if one.undo_at is not None:
        left = one.undo_at - now
        return f"in {length(left)} unless it is resumed" if left > 0 else "now"
    if one.run_state in TERMINAL and one.run_state != State.SUCCEEDED:
        return f"on request: {command('compensate', one.run_id)}"
    return "when it fails"

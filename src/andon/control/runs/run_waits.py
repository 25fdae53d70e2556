"""Describes in words what a suspended run waits for."""

from collections.abc import Sequence
from typing import Any

from andon.core.text import age


def words(waits: Sequence[dict[str, Any]], now: float) -> str:
    """All waits of a run; several children are only counted, as `andon ps` lists them below it."""
    children = [wait for wait in waits if wait.get("kind") == "child"]
    others = [_one(wait, now) for wait in waits if wait.get("kind") != "child"]
    if len(children) > 1:
        return "; ".join([*others, f"waits for {len(children):,} runs that it has started"])
    return "; ".join([*others, *(f"waits for run {wait.get('name')}" for wait in children)])


def _one(wait: dict[str, Any], now: float) -> str:
    until = wait.get("until")
    limit = f" for {age(until - now)} more" if until is not None else ""
    match wait.get("kind"):
        case "timer":
            return f"sleeps{limit}"
        case "answer":
            return f"waits for an answer{limit}"
        case kind:
            return f"waits for {kind} {wait.get('name')}{limit}"

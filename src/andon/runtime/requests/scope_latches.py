"""Finds the latches that hold a run back, and the command that lifts each."""

from __future__ import annotations

import json

from andon.core.stop import StopKind, StopScope, lifted_by, severest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from andon.store.messages.rows import RunRow
    from andon.store.messages.stops import StopRow

# State shown to people for a run that waits in a held scope.
SHOWN = {StopKind.PAUSE: "paused", StopKind.KILL: "killed", StopKind.HALT: "killed"}


def on_path(latches: Sequence[StopRow], row: RunRow) -> StopRow | None:
    """Return the severest latch that keeps the run from being claimed; of several, the newest."""
    return on_path_of(latches, row.agent, json.loads(row.labels))


def on_path_of(latches: Sequence[StopRow], agent: str, labels: Mapping[str, str]) -> StopRow | None:
    """Like `on_path`, for a run of this agent with these labels, which may not exist yet."""
    found = [latch for latch in latches if _is_about(latch, agent, labels)]
    worst = severest(latch.kind for latch in found)
    return next((latch for latch in found if latch.kind == worst), None)


def over(
    held: Sequence[StopRow], row: RunRow, find: Callable[[str], RunRow | None]
) -> StopRow | None:
    """Return the latch that holds a run, on its own path or on that of an ancestor."""
    above: RunRow | None = row
    while held and above is not None:
        latch = on_path(held, above)
        if latch is not None:
            return latch
        above = find(above.parent_id) if above.parent_id is not None else None
    return None


def holds(latch: StopRow, row: RunRow) -> bool:
    """Whether the run is in the scope of the order."""
    return _is_about(latch, row.agent, json.loads(row.labels))


def _is_about(latch: StopRow, agent: str, labels: Mapping[str, str]) -> bool:
    match StopScope(latch.scope):
        case StopScope.FLEET:
            return True
        case StopScope.AGENT:
            return latch.name == agent
        case StopScope.LABEL:
            return labels.get(latch.name) == latch.value
        case _:
            return False


def called(order: StopRow) -> str:
    """Name the scope of an order for people."""
    if order.scope == StopScope.FLEET:
        return "everything"
    return (
        f"{order.scope} {order.name}{f'={order.value}' if order.scope == StopScope.LABEL else ''}"
    )


def options(scope: str, name: str, value: str) -> tuple[str, ...]:
    """Name the scope of an order as options of a command."""
    match StopScope(scope):
        case StopScope.AGENT:
            return ("--agent", name)
        case StopScope.LABEL:
            return ("--label", f"{name}={value}")
        case _:
            return ()


def lift_command(latch: StopRow) -> str:
    """Return the command that lifts a latch, quoted so that it can be pasted safely."""
    from shlex import quote

    verb, chosen = lifted_by(StopKind(latch.kind)), options(latch.scope, latch.name, latch.value)
    if verb == "resume":
        chosen = chosen or ("--all",)
    return " ".join(["andon", verb, *(quote(_visible(word)) for word in chosen)])


def _visible(text: str) -> str:
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def held_by(latch: StopRow) -> str:
    """Say for people why a run is held."""
    word = "paused" if latch.kind == StopKind.PAUSE else f"stopped by a {latch.kind}"
    why = f": {latch.why}" if latch.why else ""
    return f"{called(latch)} is {word} by {latch.by or 'an unnamed person'}{why} ({latch.id})"

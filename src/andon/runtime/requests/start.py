"""Prepares a run: resolves its agent, checks the arguments and builds what the store keeps."""

import json
import os
import re
from collections.abc import Callable
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from andon.core.journal import GENESIS, Entry, EntryKind, Mark, chain
from andon.core.values import value
from andon.core.values.shape import ANY, OTHERS, misfit
from andon.errors import BadInput, NotFound
from andon.store.store import AgentRow, Blob, NewRun, Store

QUEUE = re.compile(r"[\w.\-]{1,100}")


def resolve(store: Store, agent: Any) -> AgentRow:
    """Return an agent's row: the promoted version for a name, an agent object's own otherwise."""
    if isinstance(agent, AgentRow):
        return agent
    if not isinstance(agent, str):
        row: AgentRow = agent.row
        return row
    found = store.agents(agent)
    if found and found[0].promoted_at is None:
        there = ", ".join(row.version for row in found)
        raise NotFound(
            f"agent {agent!r} has no promoted version (registered: {there}). "
            f"Choose one: andon promote VERSION --agent {agent}"
        )
    if found:
        return found[0]
    known = sorted({row.name for row in store.agents()})
    if not known:
        raise NotFound(
            f"agent {agent!r} is not known: no worker has registered any agent here yet. "
            "Start one: andon work FILE"
        )
    close = get_close_matches(agent, known, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
    raise NotFound(f"agent {agent!r} is not known; {hint}")


def reader_of(agent: Any) -> Callable[[str], Any] | None:
    """Return an agent's argument reader; None if all is plain JSON or only its name is known."""
    return agent.arguments if getattr(agent, "decoders", None) else None


@lru_cache(maxsize=4096)
def _spec(text: str) -> dict[str, Any]:
    """Parse a registered specification. The result is cached: do not change it."""
    spec: dict[str, Any] = json.loads(text)
    return spec


def bind(row: AgentRow, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments by name, checked against the agent's parameters."""
    spec = _spec(row.parameters)
    names = [parameter["name"] for parameter in spec["parameters"]]
    takes = ", ".join(names) or "nothing"
    if len(args) > len(names):
        raise BadInput(
            f"agent {row.name!r}: expected at most {len(names)} arguments ({takes}), "
            f"found {len(args)}"
        )
    bound = dict(zip(names, args, strict=False))
    for name, given in kwargs.items():
        if name in bound:
            raise BadInput(f"agent {row.name!r}: argument {name!r} was given twice")
        if name not in names and not spec["extra"]:
            close = get_close_matches(name, names, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise BadInput(f"agent {row.name!r}: unknown argument {name!r}; it takes {takes}{hint}")
        bound[name] = given
    missing = [p["name"] for p in spec["parameters"] if p["required"] and p["name"] not in bound]
    if missing:
        raise BadInput(
            f"agent {row.name!r}: missing argument {', '.join(map(repr, missing))}; "
            f"it takes {takes}; give {' '.join(f'{name}=…' for name in missing)}"
        )
    types = _spec(row.types)
    for name, given in bound.items():
        why = misfit(types.get(name, types.get(OTHERS, ANY)), given, name)
        if why is not None:
            raise BadInput(f"agent {row.name!r}: argument {why}")
    return bound


def new_run(
    row: AgentRow,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    run_id: str | None = None,
    priority: int = 0,
    queue: str | None = None,
    labels: dict[str, str] | None = None,
    at: float | None = None,
    parent_id: str | None = None,
    root_id: str | None = None,
    now: float = 0.0,
    reads: Callable[[str], Any] | None = None,
) -> NewRun:
    """Check a run and build its row; `reads` is the argument reader of its agent, if known."""
    run_id = os.urandom(8).hex() if run_id is None else run_id
    refuse_bad_id(run_id)
    bound = bind(row, args, kwargs)
    raw = value.encode(bound, f"the input of agent {row.name!r}")
    inline = len(raw) <= value.INLINE_BYTES
    name = None if inline else value.content_name(raw)
    entry = Entry(
        seq=0,
        kind=EntryKind.START,
        state=Mark.DONE,
        name=row.name,
        digest=value.digest((bound,), {}, f"agent {row.name!r}"),
        body=raw.decode() if inline else None,
        blob=name,
        since=now,
        at=now,
    )
    entry.hash = chain(GENESIS, entry)
    if reads is not None:
        reads(raw.decode())
    return NewRun(
        id=run_id,
        agent=row.name,
        version=row.version,
        queue=row.queue if queue is None else checked_queue(queue),
        priority=_whole(priority),
        labels=json.dumps(checked_labels(labels)) if labels else "{}",
        entry=entry,
        at=at,
        parent_id=parent_id,
        root_id=root_id,
        blobs=() if name is None else (Blob(name=name, body=raw.decode()),),
    )


def refuse_bad_id(run_id: str) -> None:
    if not isinstance(run_id, str) or not 0 < len(run_id) <= 200 or not run_id.isprintable():
        raise BadInput(f"run id {run_id!r:.80}: expected 1 to 200 printable characters")


def checked_queue(queue: str) -> str:
    if not isinstance(queue, str) or not QUEUE.fullmatch(queue):
        raise BadInput(f"queue {queue!r:.80}: expected letters, digits, '_', '-', '.'")
    return queue


def _whole(priority: int) -> int:
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > 2**31 - 1:
        raise BadInput(f"priority {priority!r}: expected a whole number; higher goes first")
    return priority


def checked_labels(labels: dict[str, str]) -> dict[str, str]:
    for name, given in labels.items():
        if not isinstance(name, str) or not isinstance(given, str) or "\x00" in name + given:
            raise BadInput(f"label {name!r}={given!r}: expected text without NUL characters")
    return labels

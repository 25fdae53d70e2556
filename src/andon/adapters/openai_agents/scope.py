"""Scopes: each call of the SDK's loop numbers its operations, the same on every replay."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

from agents.run import AgentRunner

from andon.errors import BadInput
from andon.runtime.attempt import branch
from andon.runtime.sync import Portal, current

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from andon.runtime.context import Context

    Effects = Mapping[str, str | Callable[[Any], Any]]

PLAIN = AgentRunner()  # the SDK's own runner


class CallScope:
    """One call of the loop; numbers its operations the same on every replay."""

    def __init__(
        self, ctx: Context, label: str, effects: Effects, owner: str | None = None
    ) -> None:
        self.ctx, self.label, self.effects = ctx, label, effects
        self.owner = label if owner is None else owner  # of the calls planned in this scope
        self.numbers: Counter[str] = Counter()
        # Whether a call of the loop uses this scope; an agent used as a tool brings an unused one.
        self.taken = True

    def key(self, what: str = "") -> str:
        number = self.numbers[what]
        self.numbers[what] += 1
        return f"{self.label}{what}{number}"

    def call_id(self, given: str) -> str:
        """Return the key of a call: the provider's id, which the tool sees too.

        A provider that numbers anew may repeat an id in the run; then the scope's owner is
        prefixed.
        """
        owner = _owners.setdefault(self.ctx, {}).setdefault(given, self.owner)
        return given if owner == self.owner else f"{self.owner}{given}"


here: contextvars.ContextVar[CallScope | None] = contextvars.ContextVar(
    "andon_agents", default=None
)
# The owner of the scope in which each call was planned first.
_owners: weakref.WeakKeyDictionary[Any, dict[str, str]] = weakref.WeakKeyDictionary()
# How often each branch of a run's own code has called the loop.
_calls: weakref.WeakKeyDictionary[Any, Counter[str]] = weakref.WeakKeyDictionary()


def active() -> CallScope | None:
    """The scope whose code executes here; None inside a step or an effect, which is one unit."""
    return None if branch.current.get() is None else here.get()


def joining(effects: Effects | None) -> CallScope | None:
    """Return a scope for a call of the loop by the run's code or the SDK; None outside of a run."""
    outer, ctx, place = active(), current(), branch.current.get()
    if isinstance(ctx, Portal):
        if asyncio.get_running_loop() is not ctx._loop:  # noqa: SLF001
            raise BadInput("Runner.run in a thread of a plain agent: call Runner.run_sync there")
        ctx = ctx.target
    if ctx is None or place is None:
        return None
    if outer is not None and not outer.taken:
        outer.taken = True
        return outer
    numbers = _calls.setdefault(ctx, Counter())
    label = f"{place.path}#{numbers[place.path]}/"
    numbers[place.path] += 1
    return CallScope(ctx, label, {**(outer.effects if outer else {}), **(effects or {})})


@contextlib.contextmanager
def within(scope: CallScope | None) -> Iterator[None]:
    before = here.set(scope)
    try:
        yield
    finally:
        here.reset(before)

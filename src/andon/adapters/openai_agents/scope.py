"""Scopes: one call of the SDK's loop each, in which what it asks and does is numbered."""

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

PLAIN = AgentRunner()  # the SDK's own


class Scope:
    """One call of the loop: what it asks and does is numbered in it, the same on replay."""

    def __init__(
        self, ctx: Context, label: str, effects: Effects, owner: str | None = None
    ) -> None:
        self.ctx, self.label, self.effects = ctx, label, effects
        self.owner = label if owner is None else owner  # of the calls that are planned in it
        self.numbers: Counter[str] = Counter()
        self.taken = True  # by a call of the loop; an agent that is a tool brings one along

    def key(self, what: str = "") -> str:
        number = self.numbers[what]
        self.numbers[what] += 1
        return f"{self.label}{what}{number}"

    def call_id(self, given: str) -> str:
        """The provider's id of a call, which the tool sees too; of one that is used elsewhere in
        the run, by a provider that numbers anew, it is kept apart."""
        owner = _owners.setdefault(self.ctx, {}).setdefault(given, self.owner)
        return given if owner == self.owner else f"{self.owner}{given}"


here: contextvars.ContextVar[Scope | None] = contextvars.ContextVar("andon_agents", default=None)
# In which scope each call was planned first.
_owners: weakref.WeakKeyDictionary[Any, dict[str, str]] = weakref.WeakKeyDictionary()
# How often the loop was called in each branch of a run's own code.
_calls: weakref.WeakKeyDictionary[Any, Counter[str]] = weakref.WeakKeyDictionary()


def active() -> Scope | None:
    """The scope whose code executes here; none inside a step or an effect, which is one unit."""
    return None if branch.current.get() is None else here.get()


def joining(effects: Effects | None) -> Scope | None:
    """A scope for a call of the loop inside a run, of the run's own code or of the SDK's."""
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
    return Scope(ctx, label, {**(outer.effects if outer else {}), **(effects or {})})


@contextlib.contextmanager
def within(scope: Scope | None) -> Iterator[None]:
    before = here.set(scope)
    try:
        yield
    finally:
        here.reset(before)

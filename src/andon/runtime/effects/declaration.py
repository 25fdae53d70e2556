"""Declarations of effects (kind, probe, undo), and the answers a probe may return."""

from collections.abc import Callable, Hashable
from math import inf
from typing import Any, TypeVar

import msgspec

from andon.core import duration
from andon.core.effect import EffectKind, kind_of
from andon.errors import BadInput, DidNotHappen

F = TypeVar("F", bound=Callable[..., Any])


class Happened(msgspec.Struct, frozen=True):
    """A probe's answer: it happened, with this result."""

    result: Any = None


class Unknown(msgspec.Struct, frozen=True):
    """A probe's answer: it cannot tell."""


def happened(result: Any = None) -> Happened:
    """For a probe to return: the effect happened, and this is what it returned."""
    return Happened(result)


def did_not_happen(reason: str | None = None) -> DidNotHappen:
    """For a probe to return, or an effect to raise: it certainly did not happen."""
    return DidNotHappen(reason)


def unknown() -> Unknown:
    """For a probe to return: it cannot tell. A person is asked."""
    return Unknown()


class Postponed(DidNotHappen):
    """The effect has not happened yet. Not a failure: the code may call it again."""


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """The kind of an effect, and the functions that resolve or undo it."""

    kind: EffectKind
    probe: Callable[..., Any] | None
    undo: Callable[..., Any] | None
    undo_within: float | None


def effect_of(
    *,
    kind: str | None = None,
    probe: Callable[..., Any] | None = None,
    undo: Callable[..., Any] | None = None,
    undo_within: str | float | None = None,
) -> Callable[[F], F]:
    """Declare an effect's kind, and the functions that probe its outcome or undo it."""
    declared = _declare(kind, probe, undo, undo_within)

    def mark(function: F) -> F:
        function.__andon_effect__ = declared  # type: ignore[attr-defined]
        return function

    return mark


def _declare(
    kind: str | None,
    probe: Callable[..., Any] | None,
    undo: Callable[..., Any] | None,
    undo_within: str | float | None,
) -> Declaration:
    try:
        found = kind_of(kind, probe=probe is not None, undo=undo is not None)
    except ValueError:
        raise BadInput(f"effect kind {kind!r}: expected one of {', '.join(EffectKind)}") from None
    if found is EffectKind.PROBEABLE and probe is None:
        raise BadInput(
            "a probeable effect needs probe=: the function that finds out whether it happened"
        )
    if found is EffectKind.COMPENSATABLE and undo is None:
        raise BadInput("a compensatable effect needs undo=: the function that undoes it")
    for function in (probe, undo):
        if function is not None and (not callable(function) or not isinstance(function, Hashable)):
            raise BadInput(f"probe= and undo=: expected a function, found {function!r}")
    within = _seconds(undo_within)
    if within is not None and (undo is None or not 0 < within < inf):
        raise BadInput(
            f"undo_within={undo_within!r}: expected undo= with it, and more than 0 seconds"
        )
    return Declaration(kind=found, probe=probe, undo=undo, undo_within=within)


def declaration(
    function: Callable[..., Any],
    kind: str | None,
    probe: Callable[..., Any] | None,
    undo: Callable[..., Any] | None,
    undo_within: str | float | None,
) -> Declaration:
    """The declaration in the arguments of ctx.effect, or else the function's own."""
    own: Declaration | None = getattr(function, "__andon_effect__", None)
    if own is None or (kind, probe, undo, undo_within) != (None, None, None, None):
        return _declare(kind, probe, undo, undo_within)
    return own


def _seconds(given: str | float | None) -> float | None:
    if given is None or isinstance(given, int | float):
        return given
    found = duration.seconds(given.strip())
    if found is None:
        raise BadInput(f"duration {given!r}: expected {duration.EXAMPLES}")
    return found

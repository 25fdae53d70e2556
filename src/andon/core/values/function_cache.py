"""What was found out about a function, for as long as the function lives.

Agents define steps inside themselves. A cache of the whole process would keep thousands of these
functions, and with each of them all that it has captured: its run, and what that run has read.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

T = TypeVar("T")
Ask = Callable[[Callable[..., Any]], T]


def remembered(ask: Ask[T]) -> Ask[T]:
    """The same, asked once of every function. Not of a partial, or another object: each time."""
    name = f"__andon_{ask.__name__}__"
    lasting = lru_cache(maxsize=4096)(ask)

    @wraps(ask)
    def answer(function: Callable[..., Any]) -> T:
        kind = type(function)
        if kind is FunctionType:
            found = function.__dict__.get(name)  # the way of every step, without a further call
            if found is not None and found[0] == id(function):
                known: T = found[1]
                return known
            return _kept(function.__dict__, name, id(function), ask, function)
        if isinstance(function, MethodType) and type(function.__func__) is FunctionType:
            inner = function.__func__
            return _kept(inner.__dict__, f"{name}bound", id(inner), ask, function)
        if kind is type or isinstance(getattr(function, "__self__", None), ModuleType):
            return lasting(function)  # a class, or a function of Python's own
        return ask(function)

    return answer


def _kept(
    known: dict[str, Any], name: str, owner: int, ask: Ask[T], function: Callable[..., Any]
) -> T:
    # functools.wraps copies what a function knows to another one, of which it is not true.
    found: tuple[int, T] | None = known.get(name)
    if found is None or found[0] != owner:
        found = known[name] = owner, ask(function)
    return found[1]

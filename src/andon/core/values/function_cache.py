"""Cache of per-function metadata, dropped with the function.

Agents define steps inside other functions. A process-wide cache would keep thousands of these
functions alive, each with everything it has captured: its run, and the data that run has read.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

T = TypeVar("T")
Ask = Callable[[Callable[..., Any]], T]


def remembered(ask: Ask[T]) -> Ask[T]:
    """Cache `ask` per function. Partials and other callable objects are asked each time."""
    name = f"__andon_{ask.__name__}__"
    lasting = lru_cache(maxsize=4096)(ask)

    @wraps(ask)
    def answer(function: Callable[..., Any]) -> T:
        kind = type(function)
        if kind is FunctionType:
            found = function.__dict__.get(name)  # the fast path of every step, without another call
            if found is not None and found[0] == id(function):
                known: T = found[1]
                return known
            return _kept(function.__dict__, name, id(function), ask, function)
        if isinstance(function, MethodType) and type(function.__func__) is FunctionType:
            inner = function.__func__
            return _kept(inner.__dict__, f"{name}bound", id(inner), ask, function)
        if kind is type or isinstance(getattr(function, "__self__", None), ModuleType):
            return lasting(function)  # a class or a builtin function
        return ask(function)

    return answer


def _kept(
    known: dict[str, Any], name: str, owner: int, ask: Ask[T], function: Callable[..., Any]
) -> T:
    # functools.wraps copies the cached entry to another function, for which it is wrong.
    found: tuple[int, T] | None = known.get(name)
    if found is None or found[0] != owner:
        found = known[name] = owner, ask(function)
    return found[1]

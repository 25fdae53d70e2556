"""Finds functions by name and decodes journaled arguments, to call them in another process."""

import inspect
import sys
from collections.abc import Callable
from typing import Any

from andon.core.values import value
from andon.core.values.function_cache import remembered
from andon.errors import BadInput

NAMELESS = "?"  # a function that cannot be found by its name: only the agent's code has it


# True while a program's own file is loaded to find a function in it: it must not start a worker.
reading = False


@remembered
def reference_of(function: Callable[..., Any]) -> str:
    """The name that finds a function in another process: `module:name`, or NAMELESS."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    return f"{module}:{name}" if named(module, name) is function else NAMELESS


def named(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


@remembered
def parameters(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return {}


def typed(
    function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Convert journaled values to the types in the function's annotations."""
    hints = value.annotations(function)
    names = list(parameters(function))

    def as_said(name: str, given: Any) -> Any:
        decoder = value.decoder_for(hints[name]) if name in hints else None
        return given if decoder is None else decoder(value.encode(given, name))

    placed = [
        as_said(names[place] if place < len(names) else "", one) for place, one in enumerate(args)
    ]
    return placed, {name: as_said(name, one) for name, one in kwargs.items()}


@remembered
def accepted(function: Callable[..., Any]) -> tuple[str, ...]:
    """Which of the parameters `key` and `fence` a function has."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return ()
    return tuple(name for name in ("key", "fence") if name in parameters)


def refuse_wrong_arguments(
    name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Refuse arguments that do not fit, before the call can become an effect in doubt."""
    extras = dict.fromkeys(accepted(function))
    try:
        inspect.signature(function).bind(*args, **{**kwargs, **extras})
    except TypeError as error:
        raise BadInput(f"effect {name!r}: {error}; it was not executed") from None
    except ValueError:
        return  # a built-in without a signature

"""Immutable records with named fields, created by keyword and compared by value.

Every stop command creates some. So this is plain Python that imports nothing: libraries with the
same feature take longer to import than the rest of such a command.
"""

from __future__ import annotations

TYPE_CHECKING = False  # avoids importing typing
if TYPE_CHECKING:
    from typing import Any, ClassVar, Self, dataclass_transform
else:

    def dataclass_transform(**_: object) -> object:
        return lambda cls: cls


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Struct:
    """The annotations of a class are its fields; assigned values are defaults."""

    __struct_fields__: ClassVar[tuple[str, ...]] = ()
    _defaults: ClassVar[dict[str, Any]] = {}
    _names: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls) -> None:
        own = tuple(cls.__annotations__)
        defaults = {name: cls.__dict__[name] for name in own if name in cls.__dict__}
        shared = [name for name, value in defaults.items() if isinstance(value, list | dict | set)]
        if shared:
            raise TypeError(f"{cls.__name__}.{shared[0]}: all would share this default; use ()")
        cls.__struct_fields__ += own
        cls._defaults = {**cls._defaults, **defaults}
        cls._names = frozenset(cls.__struct_fields__)

    def __init__(self, **given: Any) -> None:
        values = self.__dict__
        values.update(self._defaults)
        values.update(given)
        if values.keys() != self._names:
            raise TypeError(f"{type(self).__name__}: {_wrong(self._names, set(values))}")

    def __setattr__(self, name: str, _: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be changed; replace the value")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__dict__ == self.__dict__

    def __hash__(self) -> int:
        return hash((type(self), *(self.__dict__[name] for name in self.__struct_fields__)))

    def __repr__(self) -> str:
        shown = (f"{name}={self.__dict__[name]!r}" for name in self.__struct_fields__)
        return f"{type(self).__name__}({', '.join(shown)})"

    def but(self, **changed: Any) -> Self:
        """Return a copy with some fields changed."""
        return type(self)(**{**self.__dict__, **changed})


def _wrong(expected: frozenset[str], found: set[str]) -> str:
    parts = (("missing", expected - found), ("unknown", found - expected))
    return ", ".join(f"{word} {', '.join(sorted(names))}" for word, names in parts if names)

"""Shapes: the types of an agent's arguments as JSON, readable without the agent's code.

A shape is a word ("int"), or an object with one key ({"list": "int"}). It rejects a value only if
the annotation certainly does. Everything unknown fits, such as classes with their own decoding and
anything that a later version of andon may write here.
"""

import datetime
import decimal
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import msgspec.inspect as inspected

Shape = Any  # JSON

ANY = "any"
OTHERS = "**"  # the shape of arguments that have no parameter of their own
# Beyond this depth or number of parts an annotation accepts anything: it may contain itself, and
# every start reads it.
_DEEPEST, _MOST_PARTS = 4, 200

_WORDS: dict[type, Shape] = {
    inspected.IntType: "int",
    inspected.FloatType: "float",
    inspected.StrType: "str",
    inspected.BoolType: "bool",
    inspected.NoneType: "none",
}
# Types that JSON lacks, written as msgspec writes them, each with an example for people.
_TEXTS: dict[str, tuple[type[inspected.Type], type, str]] = {
    "date": (inspected.DateType, datetime.date, "2026-01-31"),
    "datetime": (inspected.DateTimeType, datetime.datetime, "2026-01-31T14:00:00Z"),
    "time": (inspected.TimeType, datetime.time, "14:00:00"),
    "timedelta": (inspected.TimeDeltaType, datetime.timedelta, "PT90S"),
    "UUID": (inspected.UUIDType, uuid.UUID, "01234567-89ab-cdef-0123-456789abcdef"),
    "Decimal": (inspected.DecimalType, decimal.Decimal, "9.99"),
    "bytes": (inspected.BytesType, bytes, "aGVsbG8=, in base64"),
}
_KINDS = {kind: name for name, (kind, _, _) in _TEXTS.items()}
_LISTS = (inspected.ListType, inspected.SetType, inspected.FrozenSetType, inspected.VarTupleType)
_OBJECTS = (inspected.DataclassType, inspected.TypedDictType, inspected.StructType)
_LEAST = {"int": int, "str": str, "bool": bool, "none": type(None)}


def shape_of(annotation: Any) -> Shape:
    """Return the shape of the values that an annotation accepts."""
    try:
        return _Reading().shape(inspected.type_info(annotation), 0)
    except (TypeError, ValueError, RecursionError, NotImplementedError):  # not a JSON type
        return ANY


def with_default(shape: Shape, default: Any) -> Shape:
    """Extend a shape so that the parameter's default always fits it."""
    if misfit(shape, default) is None:
        return shape
    return {"union": [shape, "none"]} if default is None else ANY


class _Reading:
    """Reads one annotation, part by part."""

    def __init__(self) -> None:
        self._parts = 0

    def shape(self, annotated: inspected.Type, depth: int) -> Shape:
        kind = type(annotated)
        if kind in _WORDS:
            return _WORDS[kind]
        self._parts += 1
        if depth > _DEEPEST or self._parts > _MOST_PARTS:
            return ANY

        return self._whole(annotated, lambda part: self.shape(part, depth + 1))

    def _whole(self, annotated: inspected.Type, inner: Callable[[inspected.Type], Shape]) -> Shape:
        found: Shape = ANY
        if isinstance(annotated, _LISTS):
            found = {"list": inner(annotated.item_type)}
        elif isinstance(annotated, inspected.TupleType):
            found = {"tuple": [inner(part) for part in annotated.item_types]}
        elif type(annotated) in _KINDS:
            found = {"text": _KINDS[type(annotated)]}
        elif isinstance(annotated, inspected.DictType):
            found = {"dict": inner(annotated.value_type)}
        elif isinstance(annotated, inspected.UnionType):
            found = {"union": [inner(part) for part in annotated.types]}
        elif isinstance(annotated, inspected.LiteralType):
            found = {"one_of": list(annotated.values)}
        elif isinstance(annotated, inspected.EnumType):
            values = [member.value for member in annotated.cls]
            found = {"one_of": values} if all(type(one) in (int, str) for one in values) else ANY
        elif isinstance(annotated, _OBJECTS):
            found = _object(annotated, inner)
        return found


def _object(annotated: Any, inner: Callable[[Any], Shape]) -> Shape:
    # A struct can also be encoded as a list, or carry a tag.
    if getattr(annotated, "array_like", False) or getattr(annotated, "tag", None) is not None:
        return ANY
    return {
        "object": {
            "name": annotated.cls.__name__,
            "fields": {field.encode_name: inner(field.type) for field in annotated.fields},
            "required": [field.encode_name for field in annotated.fields if field.required],
        }
    }


def misfit(shape: Shape, given: Any, path: str = "") -> str | None:
    """Return why a value does not fit, in words; None if it fits or if that is unknown."""
    if isinstance(shape, str):
        return None if _fits_word(shape, given) else _found(path, shape, given)
    if not isinstance(shape, dict) or len(shape) != 1 or not _is_plain(given):
        return None
    [(kind, of)] = shape.items()
    look = _LOOKS.get(kind)
    return None if look is None else look(of, given, path, shape)


def _is_plain(given: Any) -> bool:
    """Whether the value is plain JSON; how other objects are encoded is not known here."""
    return given is None or isinstance(given, (bool, int, float, str, list, tuple, Mapping))


def _fits_word(word: str, given: Any) -> bool:
    if not _is_plain(given):
        return True
    if word == "float":
        return isinstance(given, (int, float)) and not isinstance(given, bool)
    if word == "int":
        whole = isinstance(given, int) or (isinstance(given, float) and given.is_integer())
        return whole and not isinstance(given, bool)
    kind = _LEAST.get(word)
    return kind is None or isinstance(given, kind)


def _look_at_list(of: Shape, given: Any, path: str, shape: Shape) -> str | None:
    """Check a list, whose elements share a shape, or a tuple, which has a shape for each."""
    if not isinstance(given, (list, tuple)):
        return _found(path, shape, given)
    parts = of if isinstance(of, list) else [of] * len(given)
    if len(parts) != len(given):
        return _found(path, shape, given)
    pairs = enumerate(zip(parts, given, strict=True))
    return _first(misfit(part, one, f"{path}[{n}]") for n, (part, one) in pairs)


def _look_at_text(of: str, given: Any, path: str, shape: Shape) -> str | None:
    if of not in _TEXTS:
        return None
    try:
        msgspec.json.decode(msgspec.json.encode(given), type=_TEXTS[of][1])
    except msgspec.ValidationError:
        return _found(path, shape, given)
    except (TypeError, ValueError, RecursionError):  # not JSON: the encoder reports this better
        return None
    return None


def _look_at_dict(of: Shape, given: Any, path: str, shape: Shape) -> str | None:
    if not isinstance(given, Mapping):
        return _found(path, shape, given)
    return _first(misfit(of, one, f"{path}.{name}") for name, one in given.items())


def _look_at_object(of: Any, given: Any, path: str, shape: Shape) -> str | None:
    if not isinstance(given, Mapping):
        return _found(path, shape, given)
    missing = [name for name in of["required"] if name not in given]
    if missing:
        return f"{path}: expected {of['name']}, found no {missing[0]!r} in it".lstrip(": ")
    known = ((name, part) for name, part in of["fields"].items() if name in given)
    return _first(misfit(part, given[name], f"{path}.{name}") for name, part in known)


def _look_at_choice(of: list[Any], given: Any, path: str, shape: Shape) -> str | None:
    same = any(given == one and isinstance(given, bool) == isinstance(one, bool) for one in of)
    return None if same else _found(path, shape, given)


def _look_at_union(of: list[Shape], given: Any, path: str, shape: Shape) -> str | None:
    if any(misfit(one, given) is None for one in of):
        return None
    return _found(path, shape, given)


_LOOKS: dict[str, Callable[[Any, Any, str, Shape], str | None]] = {
    "list": _look_at_list,
    "tuple": _look_at_list,
    "text": _look_at_text,
    "dict": _look_at_dict,
    "object": _look_at_object,
    "one_of": _look_at_choice,
    "union": _look_at_union,
}


def _first(faults: Iterable[str | None]) -> str | None:
    return next((fault for fault in faults if fault), None)


def _found(path: str, shape: Shape, given: Any) -> str:
    shown = repr(given)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return f"{path}: expected {words(shape)}, found {shown}".lstrip(": ")


def words(shape: Shape) -> str:
    """Return a shape as an annotation would spell it."""
    if isinstance(shape, str):
        return "None" if shape == "none" else shape
    [(kind, of)] = shape.items()
    return _SPOKEN.get(kind, lambda _: ANY)(of)


_SPOKEN: dict[str, Callable[[Any], str]] = {
    "list": lambda of: f"list[{words(of)}]",
    "tuple": lambda of: f"tuple[{', '.join(map(words, of))}]",
    "text": lambda of: f"{of}, like {_TEXTS[of][2]}" if of in _TEXTS else ANY,
    "dict": lambda of: f"dict[str, {words(of)}]",
    "object": lambda of: str(of["name"]),
    "one_of": lambda of: "one of " + ", ".join(map(repr, of)),
    "union": lambda of: " or ".join(map(words, of)),
}

"""Values in the journal: strict JSON.

A step's result and the result of its replay must be the same, so a caller always gets the result as
it was stored. JSON has no NaN, bytes or dates. Without a type that says how to read them back they
are refused, never silently converted.
"""

import hashlib
import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
import msgspec.inspect

from andon.core.values.function_cache import remembered
from andon.errors import NotStorable

# 10 MB: store larger values in a file or an object store, and their address in the journal.
LIMIT_BYTES = 10_000_000
# A larger value is stored once as a content-addressed blob, and the entry only names it.
INLINE_BYTES = 64_000
# Far deeper than any encoder here can follow; it only ends a search through a cycle.
_DEEPEST = 10_000

# `find` is five times as fast as `in`, which first tries to interpret its operand as a number.
_NULL = b"null"

_PLAIN = (type(None), bool, int, float, str, dict, list, Any, object, inspect.Parameter.empty)
_NATURAL = (bool, int, list, tuple, type(None))


def _hook(value: object) -> object:
    if isinstance(value, str):  # a subclass of str, such as LangChain's texts
        return str(value)
    dump = getattr(value, "model_dump", None)  # pydantic
    if callable(dump) and not isinstance(value, type):
        return dump(mode="json")
    raise NotImplementedError(f"{type(value).__qualname__} has no JSON form")


_encoder = msgspec.json.Encoder(enc_hook=_hook)
_canonical = msgspec.json.Encoder(enc_hook=_hook, order="deterministic")
_decoder = msgspec.json.Decoder()

Decoder = Callable[[bytes | str], Any]


def decode(text: bytes | str) -> Any:
    return _decoder.decode(text)


def encode(value: Any, what: str) -> bytes:
    """Encode the value as JSON; `what` is its name in errors."""
    try:
        raw = _encoder.encode(value)
        found = _not_finite(value) if raw.find(_NULL) >= 0 else None
    except RecursionError:
        raise NotStorable(f"{what} is nested too deeply to be stored; flatten it") from None
    except (TypeError, NotImplementedError, UnicodeEncodeError, OverflowError, ValueError) as error:
        where = offence(value)
        raise NotStorable(_unfit(what, f"{where} ({error})" if where else str(error))) from None
    if found:
        raise NotStorable(_unfit(what, f"{found} is not a number that JSON can hold"))
    if len(raw) >= LIMIT_BYTES:
        raise NotStorable(
            f"{what} has {len(raw):,} bytes as JSON; the limit is {LIMIT_BYTES:,} (10 MB). "
            "Store it elsewhere and return its address."
        )
    return raw


def encode_result(value: Any, what: str, typed: Decoder | None = None) -> tuple[bytes, Any]:
    """Return the value as JSON, and as it will come back from the journal."""
    raw = encode(value, what)
    try:
        back = _decoder.decode(raw) if typed is None else typed(raw)
    except Exception as error:  # noqa: BLE001 (a type's own validation may raise anything)
        raise NotStorable(
            f"{what} is not what its annotation says, so it could not be read back: {error}"
        ) from None
    if typed is None and not _equal(back, value) and (found := offence(value)):
        advice = "would come back changed; return plain JSON, or annotate the function's result"
        raise NotStorable(_unfit(what, f"{found} {advice}"))
    return raw, back


def _equal(back: Any, value: Any) -> bool:
    try:
        return bool(back == value)
    except Exception:  # noqa: BLE001 (a value's own __eq__ may raise anything)
        return False


def _unfit(what: str, why: str) -> str:
    return f"{what} cannot be stored: {why}"


class _Spot(NamedTuple):
    """A value nested in another, with the path to it."""

    value: Any
    label: str = ""
    outer: "_Spot | None" = None
    depth: int = 0

    def path(self) -> str:
        labels, spot = [self.label], self.outer
        while spot is not None:
            labels.append(spot.label)
            spot = spot.outer
        return "".join(reversed(labels))

    def inside(self) -> "list[_Spot]":
        if isinstance(self.value, Mapping):
            named = [(f".{key}", item) for key, item in self.value.items()]
        elif isinstance(self.value, (list, tuple)):
            named = [(f"[{n}]", item) for n, item in enumerate(self.value)]
        else:
            named = []
        return [_Spot(item, label, self, self.depth + 1) for label, item in named]


def offence(value: Any) -> str | None:
    """Describe the first part of `value` that plain JSON cannot hold, and where it is."""
    spots = [_Spot(value)]
    while spots:  # not recursive: it may be at any depth
        spot = spots.pop()
        if fault := _fault(spot.value) if spot.depth < _DEEPEST else "something nested too deeply":
            path = spot.path()[:200]
            return f"{fault} at {path}" if path else fault
        spots.extend(reversed(spot.inside()))
    return None


def _fault(value: Any) -> str | None:
    """Describe what is wrong with this value itself, regardless of its contents."""
    if isinstance(value, str):
        return None if _encodable(value) else "a str with characters that are not Unicode text"
    if isinstance(value, float):
        return None if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return next((fault for key in value if (fault := _key_fault(key))), None)
    return None if isinstance(value, _NATURAL) else _article(type(value).__name__)


def _article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"


def _key_fault(key: Any) -> str | None:
    if not isinstance(key, str):
        return f"a key of type {type(key).__name__} ({key!r})"
    return None if _encodable(key) else f"a key that is not Unicode text ({key!r})"


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _not_finite(value: Any) -> str | None:
    """Describe a number JSON cannot hold. msgspec writes it as null, even inside user classes."""
    plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_hook)
    # Every step comes through here and nulls are common, so search first and describe only a find.
    return None if _finite(plain) else offence(plain)


def _finite(plain: Any) -> bool:
    inner = [plain]
    while inner:
        item = inner.pop()
        if isinstance(item, dict):
            inner.extend(item.values())
        elif isinstance(item, (list, tuple)):
            inner.extend(item)
        elif isinstance(item, float) and not math.isfinite(item):
            return False
    return True


def digest(args: Sequence[Any], kwargs: Mapping[str, Any], what: str) -> str:
    """Return a fingerprint of the arguments that is the same in every process."""
    try:
        raw = _canonical.encode((args, kwargs))
        found = _not_finite((args, kwargs)) if raw.find(_NULL) >= 0 else None
    except RecursionError:
        raise NotStorable(f"the arguments of {what} are nested too deeply; flatten them") from None
    except (TypeError, NotImplementedError, UnicodeEncodeError, OverflowError, ValueError) as error:
        raise NotStorable(_unfit_argument(args, kwargs, what, str(error))) from None
    if found:
        raise NotStorable(_unfit_argument(args, kwargs, what, "JSON has no NaN and no infinity"))
    if len(raw) >= LIMIT_BYTES:
        raise NotStorable(
            f"the arguments of {what} have {len(raw):,} bytes as JSON; the limit is "
            f"{LIMIT_BYTES:,} (10 MB). Pass the address of what they hold."
        )
    return hashlib.blake2b(raw, digest_size=16).hexdigest()


def _unfit_argument(args: Sequence[Any], kwargs: Mapping[str, Any], what: str, why: str) -> str:
    named = [(f"argument {n + 1}", value) for n, value in enumerate(args)]
    named += [(f"argument {name!r}", value) for name, value in kwargs.items()]
    for name, value in named:
        try:
            _canonical.encode(value)
            found = _not_finite(value)
        except Exception:  # noqa: BLE001 (this one is the culprit, whatever it raises)
            found = offence(value) or _article(type(value).__name__)
        if found:
            return (
                f"{name} of {what} cannot be stored: {found} ({why}). The step was not executed; "
                "pass plain JSON values, and create clients and connections inside the step."
            )
    return _unfit(f"the arguments of {what}", why)


def _plain(annotation: Any) -> bool:
    if annotation in _PLAIN:
        return True
    if get_origin(annotation) is dict and get_args(annotation)[0] in (int, float):
        return False  # JSON keys are text, so the annotation must say how to convert them
    if get_origin(annotation) in (list, dict, Union, types.UnionType):
        return all(_plain(argument) for argument in get_args(annotation))
    return False


def _revive(kind: type, value: Any) -> Any:
    validate = getattr(kind, "model_validate", None)  # pydantic
    if callable(validate):
        return validate(value)
    raise NotImplementedError(f"{kind.__qualname__} cannot be made from JSON")


@lru_cache(maxsize=4096)
def decoder_for(annotation: Any) -> Decoder | None:
    """Return a decoder for values of the declared type, or None for plain JSON."""
    if _plain(annotation):
        return None
    try:
        shape = msgspec.inspect.type_info(annotation)
        decoder = msgspec.json.Decoder(annotation, dec_hook=_revive)
    except (TypeError, ValueError):  # this type cannot be restored; the value decides
        return None
    if isinstance(shape, msgspec.inspect.CustomType) and not hasattr(shape.cls, "model_validate"):
        return None  # Iterable[int] and Protocols cannot be restored either
    return decoder.decode


@remembered
def annotations(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the resolved annotations of a function, or none if they cannot be resolved."""
    try:
        return get_type_hints(function)
    except Exception:  # noqa: BLE001 (user annotations may name anything)
        return {}


def result_decoder(function: Callable[..., Any]) -> Decoder | None:
    try:
        return _result_decoder(function)
    except TypeError:  # an unhashable function or annotation
        return None


@remembered
def _result_decoder(function: Callable[..., Any]) -> Decoder | None:
    return decoder_for(annotations(function).get("return", Any))


def content_name(raw: bytes) -> str:
    """Return the address of a blob."""
    return hashlib.sha256(raw).hexdigest()

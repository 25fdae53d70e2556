"""Values that go into the journal: JSON, strictly.

What a step returned and what its replay returns must be the same thing, so a result is always
given back as it was stored. JSON has no NaN, bytes or dates: without a type that says how to read
them back they are refused, never quietly changed into something else.
"""

import hashlib
import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from andon.errors import NotStorable

# 10 MB: larger ones belong into a file or an object store, with their address in the journal.
LIMIT_BYTES = 10_000_000
# Above this a value is kept as a content-addressed blob, once, and the entry only names it.
INLINE_BYTES = 64_000

_PLAIN = (type(None), bool, int, float, str, dict, list, Any, object, inspect.Parameter.empty)
_SCALARS = (bool, int, str, type(None))


def _hook(value: object) -> object:
    dump = getattr(value, "model_dump", None)  # pydantic's
    if callable(dump) and not isinstance(value, type):
        return dump(mode="json")
    raise NotImplementedError(type(value).__qualname__)


_encoder = msgspec.json.Encoder(enc_hook=_hook)
_canonical = msgspec.json.Encoder(enc_hook=_hook, order="deterministic")
_decoder = msgspec.json.Decoder()

Decoder = Callable[[bytes | str], Any]


def decode(text: bytes | str) -> Any:
    return _decoder.decode(text)


def encode(value: Any, what: str) -> bytes:
    """The value as JSON; `what` is how an error names it."""
    try:
        raw = _encoder.encode(value)
        # msgspec writes NaN and infinity as null; only then is a walk needed to tell them apart.
        if b"null" in raw and (found := _not_finite(value, "")):
            raise NotStorable(_unfit(what, found, "is not a number that JSON can hold"))
    except RecursionError:
        raise NotStorable(f"{what} is nested too deeply to be stored; flatten it") from None
    except (TypeError, NotImplementedError, UnicodeEncodeError, OverflowError, ValueError) as error:
        raise NotStorable(_unfit(what, offence(value, "") or "", str(error))) from None
    if len(raw) >= LIMIT_BYTES:
        raise NotStorable(
            f"{what} has {len(raw):,} bytes as JSON; the limit is {LIMIT_BYTES:,} (10 MB). "
            "Store it elsewhere and return its address."
        )
    return raw


def encode_result(value: Any, what: str, typed: Decoder | None = None) -> tuple[bytes, Any]:
    """The value as JSON, and as it will come back from the journal."""
    raw = encode(value, what)
    if typed is not None:
        try:
            return raw, typed(raw)
        except msgspec.ValidationError as error:
            raise NotStorable(
                f"{what} is not what its annotation says, so it could not be read back: {error}"
            ) from None
    back = decode(raw)
    try:
        same = back == value
    except RecursionError:
        raise NotStorable(f"{what} is nested too deeply to be stored; flatten it") from None
    except Exception:  # noqa: BLE001 (a value's own __eq__ may raise anything)
        same = False
    if not same and (found := offence(value, "")):
        advice = "would come back changed; return plain JSON, or annotate the function's result"
        raise NotStorable(_unfit(what, found, advice))
    return raw, back


def _unfit(what: str, found: str, why: str) -> str:
    return f"{what} cannot be stored: {found + ' ' if found else ''}{why}"


def offence(value: Any, path: str) -> str | None:
    """Where in `value` something is that plain JSON does not have, in words."""
    here = f"a {type(value).__name__}" + (f" at {path}" if path else "")
    if isinstance(value, str):
        return None if _encodable(value) else f"{here} with characters that are not Unicode text"
    if isinstance(value, _SCALARS):
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{value} at {path or 'the top'}"
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                return (
                    f"a key of type {type(key).__name__} ({key!r}){' at ' + path if path else ''}"
                )
            if found := offence(item, f"{path}.{key}"):
                return found
        return None
    if isinstance(value, (list, tuple)):
        found_in = (offence(item, f"{path}[{n}]") for n, item in enumerate(value))
        return next((found for found in found_in if found), None)
    return here


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _not_finite(value: Any, path: str) -> str | None:
    found = offence(value, path)
    return found if found and found.split(" ", 1)[0] in ("nan", "inf", "-inf") else None


def digest(args: Sequence[Any], kwargs: Mapping[str, Any], what: str) -> str:
    """A fingerprint of the arguments, the same in every process."""
    try:
        raw = _canonical.encode((args, kwargs))
    except (TypeError, NotImplementedError, UnicodeEncodeError, OverflowError, ValueError) as error:
        raise NotStorable(_unfit_argument(args, kwargs, what, str(error))) from None
    except RecursionError:
        raise NotStorable(f"the arguments of {what} are nested too deeply; flatten them") from None
    if b"null" in raw and _not_finite([args, dict(kwargs)], ""):
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
            if b"null" not in _canonical.encode(value) or not _not_finite(value, ""):
                continue
            found = _not_finite(value, "")
        except Exception:  # noqa: BLE001 (this one is the culprit, whatever it raises)
            found = offence(value, "")
        return (
            f"{name} of {what} cannot be stored: {found} ({why}). The step was not executed; "
            "pass plain JSON values, and create clients and connections inside the step."
        )
    return f"the arguments of {what} cannot be stored: {why}"


def _plain(annotation: Any) -> bool:
    if annotation in _PLAIN:
        return True
    if get_origin(annotation) in (list, dict, Union, types.UnionType):
        return all(_plain(argument) for argument in get_args(annotation))
    return False


def _revive(kind: type, value: Any) -> Any:
    validate = getattr(kind, "model_validate", None)  # pydantic's
    if callable(validate):
        return validate(value)
    raise NotImplementedError(kind.__qualname__)


@lru_cache(maxsize=4096)
def decoder_for(annotation: Any) -> Decoder | None:
    """How to read a value of that declared type back; None for plain JSON."""
    if _plain(annotation):
        return None
    try:
        return msgspec.json.Decoder(annotation, dec_hook=_revive).decode
    except (TypeError, ValueError):  # a type that cannot be restored: the value decides
        return None


@lru_cache(maxsize=4096)
def annotations(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The resolved annotations of a function; none where they cannot be resolved."""
    try:
        return get_type_hints(function)
    except Exception:  # noqa: BLE001 (user annotations may name anything)
        return {}


def result_decoder(function: Callable[..., Any]) -> Decoder | None:
    try:
        return decoder_for(annotations(function).get("return", Any))
    except TypeError:  # an unhashable function or annotation
        return None


def content_name(raw: bytes) -> str:
    """The address of a blob."""
    return hashlib.sha256(raw).hexdigest()

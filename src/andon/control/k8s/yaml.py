"""Writes values as YAML with comments: a small, unambiguous subset that is enough for manifests.

Text is quoted unless it is plainly a word, so that no reader takes it for a number, a date, a
boolean or a structure.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from andon.errors import BadInput

# Words that some YAML parsers do not read as text.
_MEANINGFUL = {"true", "false", "yes", "no", "on", "off", "null", "y", "n", "inf", "nan"}
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9/_.-]*")


def document(found: Mapping[str, Any], remarks: Mapping[str, str]) -> str:
    """One YAML document, with each remark as a comment above the key at its path."""
    return "".join(f"{line}\n" for line in _mapping(found, remarks, ""))


def _mapping(found: Mapping[str, Any], remarks: Mapping[str, str], path: str) -> Iterator[str]:
    for key, value in found.items():
        here = f"{path}.{key}" if path else key
        yield from (f"# {line}" for line in remarks.get(here, "").splitlines())
        if isinstance(value, Mapping):
            yield f"{_text(key)}:"
            yield from (f"  {line}" for line in _mapping(value, remarks, here))
        elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            yield f"{_text(key)}:"
            for item in value:
                yield from _item(list(_mapping(item, remarks, here)))
        else:
            yield f"{_text(key)}: {_scalar(value)}"


def _item(lines: list[str]) -> Iterator[str]:
    first = next(number for number, line in enumerate(lines) if not line.startswith("#"))
    for number, line in enumerate(lines):
        yield f"  - {line}" if number == first else f"    {line}"


def _scalar(value: Any) -> str:
    match value:
        case bool() | int():
            return json.dumps(value)
        case list():
            return f"[{', '.join(map(_in_line, value))}]"
        case _:
            return _text(str(value))


def _in_line(value: Any) -> str:
    return _text(value, quoted=True) if isinstance(value, str) else _scalar(value)


def _text(text: str, *, quoted: bool = False) -> str:
    if not text.isprintable():
        raise BadInput(f"{text!r}: expected text that can be printed")
    if _PLAIN.fullmatch(text) and not quoted and text.lower() not in _MEANINGFUL:
        return text
    return json.dumps(text, ensure_ascii=False)

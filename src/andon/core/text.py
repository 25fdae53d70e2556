"""Text for people, made from values of any origin.

Agents write the text in the store, and agents read the internet. So none of it may move the cursor,
change a title, or reorder or hide the text beside it: every character that is not plainly visible
is shown as an escape.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

# Invisible, but some scripts and emoji need them.
_JOINERS = "\u200c\u200d"


def clean(text: object, limit: int | None = None) -> str:
    """Return one line of visible text, cut at `limit` characters."""
    found = str(text)
    if not found.isprintable():
        found = "".join(map(_visible, found))
    if limit is not None and len(found) > limit:
        found = found[: max(limit - 3, 0)] + "..."
    return found


def _visible(character: str) -> str:
    if character.isprintable() or character in _JOINERS:
        return character
    if character.isspace():
        return " "
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def clean_lines(text: str, indent: str) -> str:
    """Return text of several lines, indented so that none can be mistaken for other output."""
    return ("\n" + indent).join(clean(line) for line in text.rstrip("\n").split("\n"))


def brief(value: Any, limit: int = 200) -> str:
    """Return a value as JSON for people, cut at `limit` characters."""
    return clean(json.dumps(value, ensure_ascii=False), limit)


def plural(count: int, noun: str, nouns: str = "") -> str:
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"


def either(names: Sequence[str]) -> str:
    """Join quoted names: 'a', 'b' or 'c'."""
    quoted = [repr(name) for name in names]
    return " or ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


def age(seconds: float) -> str:
    """Return a rough duration in the largest unit that still shows at least 2."""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def length(seconds: float) -> str:
    """Return a duration precisely enough to compare."""
    seconds = max(seconds, 0.0)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def command(verb: str, *words: str, options: Sequence[str] = ()) -> str:
    """Return a command line to copy, quoted so that no name is taken for anything but a name."""
    import shlex

    names = [shlex.quote(clean(word)) for word in words]
    asked = [shlex.quote(clean(option)) for option in options]
    if any(word.startswith("-") for word in words):
        return " ".join(["andon", verb, *asked, "--", *names])
    return " ".join(["andon", verb, *names, *asked])


def failure(error: Mapping[str, Any]) -> str:
    """Return an error in one line; a stop's message stands alone, like "killed by ana"."""
    kind, message = str(error.get("type", "error")), str(error.get("message", ""))
    stopped = kind == "Held" or message.startswith(f"{kind.lower()} by ")
    return message if stopped else f"{kind}: {message}"


def sentence(text: str) -> str:
    """Add a full stop if the text has none, so that another sentence may follow."""
    return text if text.endswith((".", "!", "?")) else f"{text}."

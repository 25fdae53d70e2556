"""What is printed: stdout is the answer, stderr is progress and advice.

Text from the store was written by agents, and agents read the internet. Nothing of it may move
the cursor, change a title, reorder or hide what stands beside it: every character that is not
plainly visible is shown as an escape.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import time

from andon.cli.colour import Tinted, tinted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

SYMBOLS = {
    "queued": ("○", "."),
    "running": ("●", "*"),
    "suspended": ("◍", "o"),
    "paused": ("◐", "~"),
    "stranded": ("▲", "^"),
    "succeeded": ("✓", "+"),
    "failed": ("✗", "x"),
    "cancelled": ("■", "#"),
    "dead": ("☠", "X"),
    "killed": ("■", "#"),
    "stopping": ("◐", "~"),
    "stalled": ("▲", "^"),
    # of orders
    "proved": ("■", "#"),
    "nothing": ("·", "-"),
    "unproved": ("!", "!"),
    # of workers
    "serving": ("●", "*"),
    "asked": ("◐", "~"),
    "draining": ("◐", "~"),
    "exited": ("■", "#"),
    "died": ("☠", "X"),
    "silent": ("!", "!"),
    # of what was asked for
    "done": ("✓", "+"),
}
# When a stop, or its end, leaves nobody who could go on with the runs.
START_ONE = "To start one: andon work FILE, or andon up FILE, which starts it again when it ends"
# Invisible, but part of how some scripts and emoji are written.
_JOINERS = "\u200c\u200d"
_UNUSUAL = re.compile(r"[^\x20-\x7e\n]")  # the newline is indentation


def prepare() -> None:
    """No text may fail to print: what the terminal cannot show is escaped."""
    _keep_descriptors()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _keep_descriptors() -> None:
    """A closed one would become the number of the store's file, and then be written to."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or io.TextIOWrapper(io.FileIO(1, "w", closefd=False))
    sys.stderr = sys.stderr or io.TextIOWrapper(io.FileIO(2, "w", closefd=False))


def say(text: str = "") -> None:
    """A line of the answer."""
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """A line of progress or advice."""
    sys.stdout.flush()
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def document(value: Any) -> None:
    """The answer as one JSON document."""
    say(as_json(value, indent=2))


def as_json(value: Any, *, indent: int | None = None) -> str:
    """JSON whose every character is visible, and none beyond what stdout can encode."""
    text = json.dumps(value, ensure_ascii=not speaks_unicode(), indent=indent)
    return _UNUSUAL.sub(_visible_in_json, text)


def _visible_in_json(found: re.Match[str]) -> str:
    character = found[0]
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def clean(text: object, limit: int | None = None) -> str:
    """One line of visible text, cut at `limit` characters."""
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
    """Text of several lines; the indent keeps its lines from passing for others."""
    return ("\n" + indent).join(clean(line) for line in text.rstrip("\n").split("\n"))


def brief(value: Any, limit: int = 200) -> str:
    """A value for people: JSON, cut."""
    return clean(json.dumps(value, ensure_ascii=False), limit)


def failure(error: Mapping[str, Any]) -> str:
    """An error in one line; of a stop its message says all: "killed by ana"."""
    kind, message = str(error.get("type", "error")), str(error.get("message", ""))
    stopped = kind == "Held" or message.startswith(f"{kind.lower()} by ")
    return message if stopped else f"{kind}: {message}"


def sentence(text: str) -> str:
    """With a full stop, so that another sentence may follow."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def speaks_unicode() -> bool:
    try:
        "●✓☠".encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def state(word: str) -> Tinted:
    """A state as symbol and word, in its tint."""
    return tinted(f"{symbol(word)} {word}", word)


def symbol(word: str) -> str:
    pretty, plain = SYMBOLS.get(word, ("?", "?"))
    return pretty if speaks_unicode() else plain


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def either(names: Sequence[str]) -> str:
    """'a', 'b' or 'c'."""
    quoted = [repr(name) for name in names]
    return " or ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


def joined(parts: Sequence[str]) -> str:
    """Several short facts in one line."""
    return (" · " if speaks_unicode() else ", ").join(parts)


def age(seconds: float) -> str:
    """How long, in the unit that says most."""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def length(seconds: float) -> str:
    """How long, exactly enough to compare."""
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


def clock(at: float | None) -> str:
    """A time of the store, as the clock on the wall shows it."""
    if at is None:
        return "-"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return f"{at:.0f}"


def command(verb: str, *words: str, options: Sequence[str] = ()) -> str:
    """A command to be copied: quoted, so that no name in it is more than a name."""
    import shlex

    names = [shlex.quote(clean(word)) for word in words]
    asked = [shlex.quote(clean(option)) for option in options]
    if any(word.startswith("-") for word in words):
        return " ".join(["andon", verb, *asked, "--", *names])
    return " ".join(["andon", verb, *names, *asked])

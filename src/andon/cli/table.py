"""Tables and long lines that fit the terminal; nothing is cut where there is no terminal.

A table that is too wide first cuts the columns that allow it, the widest first, then leaves out the
least important ones. Text that people copy (ids, commands) is never cut: an id that is too long for
its column gets a line of its own.
"""

from __future__ import annotations

import os
import sys
import unicodedata

from andon.cli.colour import paint, tinted
from andon.cli.output import note, say, speaks_unicode
from andon.core.text import clean
from andon.core.values.struct import Struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import IO, Any

GAP = "  "
# The least room for the rest of a line beside its head; with less, the text goes below.
LEAST_TEXT = 24
BELOW = " " * 4
_EMOJI_STYLE, _JOINER = "\ufe0f", "\u200d"
_LEFT_TO_RIGHT = "\u200e"


class Column(Struct):
    """A column: what it shows of a row, and how it shrinks when the terminal is narrow."""

    title: str
    of: str | Callable[[Any], Any]  # a field of the row, or a function of it
    rank: int = 0  # 0 is always shown; of the others the highest is left out first
    least: int = 0  # the width it may be cut to; 0: never cut
    whole: bool = False  # an id: gets a line of its own instead of being cut


def column(
    title: str,
    rank: int = 0,
    of: str | Callable[[Any], Any] = "",
    *,
    least: int = 0,
    whole: bool = False,
) -> Column:
    """Return a column, by default of the field that has its title as its name."""
    of = of or title.lower().replace(" ", "_")
    return Column(title=title, of=of, rank=rank, least=least, whole=whole)


def table(
    columns: Sequence[Column], rows: Sequence[Any], indent: str = "", *, none: str = ""
) -> bool:
    """Print rows under their titles, or the advice for `none`; return whether there were rows."""
    if rows:
        for line in lines(columns, [cells(columns, row) for row in rows], room(sys.stdout), indent):
            say(line)
    elif none:
        note(none)
    return bool(rows)


def cells(columns: Sequence[Column], row: Any) -> list[str]:
    """Return what the columns show of a row; of a value that is not known they show "-"."""
    found = [row[one.of] if isinstance(one.of, str) else one.of(row) for one in columns]
    return [one if isinstance(one, str) else "-" if one is None else str(one) for one in found]


def lines(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    most: int | None = None,
    indent: str = "",
) -> list[str]:
    """Return the lines of a table, at most `most` columns wide unless an id alone is wider."""
    cells = [[_visible(cell) for cell in row] for row in rows]
    head: list[str] = [tinted(one.title, "head") for one in columns]
    left = None if most is None else max(most - len(indent), 1)
    shown = [head, *cells] if any(head) else cells
    kept, widths = _fit(columns, shown, left)
    return [text for row in shown for text in _lines(row, columns, kept, widths, indent)]


def _visible(cell: str) -> str:
    found = clean(cell)
    tint = getattr(cell, "tint", None)
    return found if tint is None else tinted(found, tint)


def _fit(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], most: int | None
) -> tuple[list[int], list[int]]:
    """Return the columns to show and the width of each."""
    natural = [max((width(row[n]) for row in rows), default=0) for n in range(len(columns))]
    kept = [n for n in range(len(columns)) if natural[n]]
    if most is None:
        return kept, [natural[n] for n in kept]
    wholes = [_beside(rows, n, most // 2) if columns[n].whole else natural[n] for n in kept]
    widths = dict(zip(kept, wholes, strict=True))
    while True:
        least = {n: min(columns[n].least or widths[n], widths[n]) for n in kept}
        if _total([least[n] for n in kept]) <= most:
            return kept, _cut([widths[n] for n in kept], [least[n] for n in kept], most)
        lowest = max(kept, key=lambda n: (columns[n].rank, n), default=0)
        if not kept or not columns[lowest].rank:
            return kept, _squeeze([0 if columns[n].whole else least[n] for n in kept], most)
        kept.remove(lowest)


def _beside(rows: Sequence[Sequence[str]], n: int, most: int) -> int:
    """Return the width of a column of ids; longer ids get a line of their own."""
    return max((width(row[n]) for row in rows if width(row[n]) <= most), default=0)


def _cut(widths: list[int], least: list[int], most: int) -> list[int]:
    over = _total(widths) - most
    while over > 0:
        widest = max(
            (n for n in range(len(widths)) if widths[n] > least[n]), key=lambda n: widths[n]
        )
        widths[widest] -= 1
        over -= 1
    return widths


def _squeeze(widths: list[int], most: int) -> list[int]:
    """For a very narrow terminal: put ids on lines of their own and cut everything else."""
    return _cut(
        widths, [min(one, 1) for one in widths], max(most, _total([min(one, 1) for one in widths]))
    )


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _lines(
    row: Sequence[str],
    columns: Sequence[Column],
    kept: Sequence[int],
    widths: Sequence[int],
    indent: str,
) -> list[str]:
    found, parts = [], []
    for n, wide in zip(kept, widths, strict=True):
        cell = row[n]
        if columns[n].whole and width(cell) > wide:
            found.append(indent + paint(cell))
            cell = ""
        short = cut(cell, wide)
        padding = " " * (wide - width(short))
        parts.append(paint(short) + padding + (_LEFT_TO_RIGHT if _runs_left(short) else ""))
    rest = (indent + GAP.join(parts)).rstrip()
    return [*found, rest] if rest or not found else found


def cut(text: str, most: int, sign: str | None = None) -> str:
    """Shorten the text with an ellipsis if it is too wide; keep its tint."""
    if width(text) <= most:
        return text
    sign = ("…" if speaks_unicode() else "...")[: max(most, 0)] if sign is None else sign
    found = ""
    for one in _signs(text):
        if width(found) + width(one) + len(sign) > most:
            break
        found += one
    tint = getattr(text, "tint", None)
    return found + sign if tint is None else tinted(found + sign, tint)


def _signs(text: str) -> list[str]:
    """Split text into characters, each with the marks combined with it or joined to it."""
    found: list[str] = []
    for character in text:
        if found and (
            character == _EMOJI_STYLE or not _columns(character) or found[-1][-1] == _JOINER
        ):
            found[-1] += character
        else:
            found.append(character)
    return found


def width(text: str) -> int:
    """Return how many columns a terminal needs for the text, too many rather than too few."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(character: str) -> int:
    if character.isascii() or character == _EMOJI_STYLE:  # the emoji style widens its character
        return 1
    if unicodedata.category(character) in ("Mn", "Me", "Cf") or "\u1160" <= character <= "\u11ff":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _runs_left(text: str) -> bool:
    """Whether right-to-left text here would make the terminal reorder the cells after it, too."""
    if text.isascii() or not sys.stdout.isatty():
        return False
    return any(unicodedata.bidirectional(one) in ("R", "AL", "AN") for one in text)


def room(stream: IO[str]) -> int | None:
    """Return the columns of a terminal, or COLUMNS if it is set; None without a terminal."""
    if not stream.isatty():
        return None
    try:
        said = int(os.environ.get("COLUMNS", ""))
    except ValueError:
        said = 0
    if said > 0:
        return said
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def hang(head: str, text: str, *, tint: str = "") -> None:
    """Print a line and continue text that is too long below the column where it began.

    Where that leaves too little room, the text continues below the head with a small indent.
    """
    most, before = room(sys.stdout), width(head)
    shown = paint(tinted(head, tint)) if tint else head
    if most is None or before + width(text) <= most:
        say(shown + text)
        return
    if before > len(BELOW) and most - before < LEAST_TEXT:
        say(shown.rstrip())
        for line in wrapped(text, max(most - len(BELOW), 1)):
            say(BELOW + line)
        return
    first, *others = wrapped(text, most - before)
    say(shown + first)
    for line in others:
        say(" " * before + line)


def wrapped(text: str, most: int) -> list[str]:
    """Split text into lines of whole words; a word wider than a line gets its own line, uncut."""
    found: list[str] = []
    for word in text.split(" "):
        if found and width(found[-1]) + 1 + width(word) <= most:
            found[-1] += " " + word
        else:
            found.append(word)
    return found or [""]

"""Lays out the fleet as coloured text for a screen of a given size; prints nothing."""

import re
from collections.abc import Sequence
from typing import Any

from andon.cli.colour import paint, tinted
from andon.cli.output import clock, speaks_unicode, state, symbol
from andon.cli.table import cells, column, cut, lines, width, wrapped
from andon.cli.views.run_view import alone, how_to_answer
from andon.core.text import age, brief, clean, plural
from andon.core.values.struct import Struct

KEYS = "j/k or arrows: select   Enter: show   q: quit"
SHORT_KEYS = "j/k  Enter  q"
PAGE_KEYS = "j/k or arrows: scroll   Enter or q: back"
SHORT_PAGE_KEYS = "j/k  Enter or q: back"
# A longer header would push the table off a small screen.
MOST_HEADER_LINES = 4
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# States that need a person's attention, as the header names them.
_WRONG = ("stalled", "stranded")
_STATES = ("running", "queued", "suspended", "paused", "killed")


class Size(Struct):
    """Columns and lines; None means no limit."""

    columns: int | None = None
    rows: int | None = None


class Lamp(Struct):
    """The colour of the whole fleet; its word says the same."""

    word: str
    symbol: str
    tint: str


def lamp(found: dict[str, Any]) -> Lamp:
    """Return the most urgent state of the fleet."""
    runs = found["runs"]
    if found["halted"]:
        word = "PAUSED" if found["halted"]["kind"] == "pause" else "HALTED"
        return Lamp(word=word, symbol=symbol("killed"), tint="held")
    if any(runs.get(word) for word in _WRONG):
        return Lamp(word="TROUBLE", symbol=symbol("stalled"), tint="wrong")
    if runs.get("stopping"):
        return Lamp(word="STOPPING", symbol=symbol("stopping"), tint="held")
    if found["asked"]:
        return Lamp(word="ASKING", symbol="?", tint="held")
    if runs.get("running"):
        return Lamp(word="RUNNING", symbol=symbol("running"), tint="alive")
    return Lamp(word="IDLE", symbol=symbol("queued"), tint="quiet")


def sentence(found: dict[str, Any]) -> str:
    """Summarize the whole fleet in words."""
    runs = found["runs"]
    parts = [f"{runs[word]:,} {word}" for word in ("stopping", *_WRONG) if runs.get(word)]
    if found["asked"]:
        parts.append(f"{found['asked']:,} waiting for a person")
    others = {word: runs.get(word, 0) for word in _STATES}
    others["suspended"] = max(others["suspended"] - found["asked"], 0)
    parts += [f"{count:,} {word}" for word, count in others.items() if count]
    text = ", ".join(parts) or "no unfinished runs"
    return f"{text}; {_workers(found['workers'])}"


def _workers(counts: dict[str, int]) -> str:
    live = {word: count for word, count in counts.items() if word not in ("died", "silent")}
    text = plural(sum(live.values()), "live worker") if live else "no live worker"
    leaving = counts.get("draining", 0) + counts.get("asked", 0)
    more = [f"{leaving} draining"] if leaving else []
    more += [f"{counts[word]} {word}" for word in ("stalled", "died", "silent") if counts.get(word)]
    return ", ".join([text, *more])


def _halt(halted: dict[str, Any], now: float) -> str:
    by = f" by {halted['by']}" if halted["by"] else ""
    since = "" if halted["at"] is None else f" {age(now - halted['at'])} ago"
    why = f": {halted['why']}" if halted["why"] else ""
    word = "pause" if halted["kind"] == "pause" else "halt"
    return f"{word} of everything{by}{since}{why}"


def header(found: dict[str, Any], size: Size, away: str = "") -> list[str]:
    """Return the lamp with its sentence; `away` first, if the picture is not live."""
    light = lamp(found)
    text = sentence(found)
    texts: list[tuple[str, str]] = [(f"{light.symbol} {light.word}: {text}", light.tint)]
    if found["halted"]:
        texts.append((_halt(found["halted"], found["at"]), light.tint))
        texts.append((f"to allow starts again: {found['halted']['lift']}", light.tint))
    if away:
        texts.insert(0, (f"! NOT LIVE: {away}", "wrong"))
    most = size.columns
    return [
        paint(tinted(line, tint))
        for text, tint in texts
        for line in _limited(clean(text, 500), most)
    ]


def _limited(text: str, most: int | None) -> list[str]:
    if most is None:
        return [text]
    found = [cut(line, most) for line in wrapped(text, most)]
    if len(found) > MOST_HEADER_LINES:
        last = cut(found[MOST_HEADER_LINES - 1] + " " + "." * most, most)
        found = [*found[: MOST_HEADER_LINES - 1], last]
    return found


def table(rows: Sequence[dict[str, Any]], size: Size, selected: str | None = None) -> list[str]:
    """Return a line of titles and one line for each run."""
    sign = "▸" if speaks_unicode() else ">"
    mark = column(" ", of=lambda row: sign if row["id"] == selected else " ")
    # A terminal shows a child run by its short name; other programs get whole ids.
    run = column("RUN", of="id" if size.columns is None else alone, least=10)
    columns = [*([] if selected is None else [mark]), run, *COLUMNS]
    return lines(columns, [cells(columns, row) for row in rows], size.columns)


COLUMNS = (
    column("AGENT", 2, least=8),
    column("STATE", of=lambda row: state(row["state"])),
    column("ATTEMPT", 5),
    column("AGE", 4, lambda row: age(row["age_seconds"])),
    column("DOING", 1, lambda row: clean(row["doing"], 300), least=16),
)


def frame(found: dict[str, Any], size: Size, *, selected: str | None, away: str = "") -> list[str]:
    """Return a whole screen, no larger than `size`."""
    top = [*header(found, size, away), ""]
    bottom = _footer(found, size, selected)
    rows = found["rows"]
    if not rows:
        body = [_cut("no runs; start one: andon start AGENT key=value", size)]
        return _fitted(top, body, bottom, size)
    room = len(rows) if size.rows is None else max(size.rows - len(top) - len(bottom) - 1, 1)
    begin = first_shown([row["id"] for row in rows], selected, room)
    body = table(rows[begin : begin + room], size, selected)
    more = found["listed"] - begin - len(rows[begin : begin + room])
    if more > 0 and bottom:
        bottom[0] = _cut(f"{more:,} more below", size)
    return _fitted(top, body, bottom, size)


def first_shown(ids: Sequence[str], selected: str | None, room: int) -> int:
    """Return the first row of the page that holds the selected one."""
    at = ids.index(selected) if selected in ids else 0
    return 0 if at < room else min(at - room + 1, max(len(ids) - room, 0))


def _fitted(
    top: Sequence[str], body: Sequence[str], bottom: Sequence[str], size: Size
) -> list[str]:
    if size.rows is None:
        return [*top, *body]
    most = max(size.rows - len(bottom), 0)
    found = [*top, *body][:most]
    found += [""] * (most - len(found))
    return [*found, *bottom][: size.rows]


def _footer(found: dict[str, Any], size: Size, selected: str | None) -> list[str]:
    """Return the selected run's id and question, how to answer it, and the keys."""
    if size.rows is None or size.columns is None:
        return []
    keys = KEYS if size.columns > len(KEYS) else SHORT_KEYS
    time = clock(found["at"]).split()[-1]
    last = f"{keys}   {time}" if size.columns > len(keys) + 3 + len(time) else keys
    row = next((row for row in found["rows"] if row["id"] == selected), None)
    about: list[str] = []
    if row is not None:
        about.append(_cut(_about(row), size))
        for ask in row["asks"][:1]:
            how = how_to_answer(row["id"], ask, alone=len(row["asks"]) == 1)
            about.append(_cut(how, size))
    return ["", *about, paint(tinted(cut(last, size.columns), "quiet"))]


def _about(row: dict[str, Any]) -> str:
    """Return the whole id of the selected run, and its question or current activity."""
    for ask in row["asks"]:
        value = "" if ask["value"] in (None, []) else f" {brief(ask['value'], 200)}"
        return clean(f"{row['id']} asks: {ask['question']}{value}", 500)
    return clean(f"{row['id']}  {row['doing']}", 500)


def _cut(text: str, size: Size) -> str:
    return text if size.columns is None else cut(text, size.columns)


def folded(text: Sequence[str], size: Size) -> list[str]:
    """Continue lines that are too wide on the next line, without their colours."""
    most = size.columns
    if most is None:
        return list(text)
    found: list[str] = []
    for line in text:
        plain = _COLOURS.sub("", line)
        if width(plain) <= most:
            found.append(line)
            continue
        while plain:
            part = cut(plain, most, sign="")
            part = part or plain[0]
            found.append(part)
            plain = plain[len(part) :]
    return found


def last_page(text: Sequence[str], size: Size) -> int:
    """Return the first line of the last page."""
    return 0 if size.rows is None else max(len(text) - max(size.rows - 2, 1), 0)


def page(text: Sequence[str], size: Size, at: int) -> list[str]:
    """Return the page of a text that begins at line `at`, with the keys below it."""
    if size.rows is None or size.columns is None:
        return list(text)
    most = max(size.rows - 2, 1)
    found = list(text[at : at + most])
    found += [""] * (most - len(found))
    keys = PAGE_KEYS if size.columns > len(PAGE_KEYS) else SHORT_PAGE_KEYS
    left = len(text) - at - most
    more = f"   {left:,} more lines" if left > 0 else ""
    return [*found, "", paint(tinted(cut(keys + more, size.columns), "quiet"))][: size.rows]

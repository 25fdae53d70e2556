"""Tracebacks as andon stores and prints them: files, lines, functions and source lines.

They never hold the values of variables, which contain text of prompts. Frames of andon itself are
left out. Everything has a limit, because an error can hold any number of frames, causes and parts.
"""

import linecache
import os
from collections.abc import Iterator
from itertools import groupby
from traceback import walk_tb
from types import TracebackType

from andon import errors
from andon.errors import StepFailed
from andon.runtime.attempt.error_text import Described, words_of

# The first frames show how the code was called, the last ones where it failed.
FIRST_FRAMES, LAST_FRAMES = 10, 20
# Limits on errors in a chain of causes, parts of a group, and groups inside groups.
MOST_CAUSES, MOST_PARTS, DEEPEST = 8, 8, 4
LINE_CHARACTERS, MESSAGE_CHARACTERS = 300, 1000
# Keeps a journal entry with a traceback inline; `andon ps` reads a hundred of them.
LIMIT_BYTES = 8000

CAUSED = "The above exception was the direct cause of the following exception:"
DURING = "During handling of the above exception, another exception occurred:"

_OWN = os.path.dirname(errors.__file__) + os.sep
_LIBRARY = os.path.dirname(os.__file__) + os.sep
# Modules through which andon calls a function; their frames are left out after one of andon's.
_BETWEEN = tuple(
    _LIBRARY + name
    for name in (f"asyncio{os.sep}", f"concurrent{os.sep}", "threading.py", "contextlib.py")
)


def trace(error: BaseException, *, brief: bool = False) -> str:
    """The traceback of an error and its causes.

    `brief`: leave out the causes of a failed step, which has already shown them.
    """
    text = "\n".join(_lines(error, brief=brief, depth=0))
    return _cut(text.encode("utf-8", "backslashreplace"))


def _lines(error: BaseException, *, brief: bool, depth: int) -> Iterator[str]:
    causes, word = _chain(error, brief=brief)
    for number, one in enumerate(causes):
        if number:
            yield from ("", word[number - 1], "")
        yield from _one(one, brief=brief, depth=depth)


def _chain(error: BaseException, *, brief: bool) -> tuple[list[BaseException], list[str]]:
    """The error and its causes, the first cause first, and the sentences between them."""
    found, between, seen = [error], list[str](), {id(error)}
    while len(found) < MOST_CAUSES:
        last = found[-1]
        if brief and isinstance(last, StepFailed):
            break
        cause, word = last.__cause__, CAUSED
        if cause is None and not last.__suppress_context__:
            cause, word = last.__context__, DURING
        if cause is None or id(cause) in seen:
            break
        seen.add(id(cause))
        found.append(cause)
        between.append(word)
    return found[::-1], between[::-1]


def _one(error: BaseException, *, brief: bool, depth: int) -> Iterator[str]:
    if isinstance(error, Described):  # only the other process has its frames
        yield error.error.get("traceback") or _title(error)
        return
    if isinstance(error, StepFailed) and error.traceback and error.__cause__ is None:
        # The failure comes from the journal, which kept the traceback of the original error.
        yield from (error.traceback, "", CAUSED, "")
    frames = list(_folded(_frames(error.__traceback__)))
    if frames:
        yield "Traceback (most recent call last):"
    left_out = len(frames) - FIRST_FRAMES - LAST_FRAMES
    if left_out > 0:
        word = f"  ... {left_out:,} more frames ..."
        frames = [*frames[:FIRST_FRAMES], word, *frames[-LAST_FRAMES:]]
    yield from frames
    yield _title(error)
    if isinstance(error, BaseExceptionGroup):
        yield from _parts(error, brief=brief, depth=depth)


def _parts(group: "BaseExceptionGroup[BaseException]", *, brief: bool, depth: int) -> Iterator[str]:
    whole = len(group.exceptions)
    shown = group.exceptions[: MOST_PARTS if depth < DEEPEST else 0]
    for number, part in enumerate(shown, 1):
        yield f"  -- {number} of {whole} --"
        for text in _lines(part, brief=brief, depth=depth + 1):
            yield from (f"  {line}" for line in text.split("\n"))
    if len(shown) < whole:
        yield f"  ... {whole - len(shown):,} more errors ..."


def _frames(traceback: TracebackType | None) -> Iterator[str]:
    ours = False  # whether the previous frame was left out
    for frame, number in walk_tb(traceback):
        file = frame.f_code.co_filename
        ours = file.startswith(_OWN) or (ours and file.startswith(_BETWEEN))
        if ours:
            continue
        where = f'  File "{file}", line {number}, in {frame.f_code.co_qualname}'
        try:
            source = linecache.getline(file, number or 0, frame.f_globals).strip()
        except Exception:  # noqa: BLE001 (a loader of the user may raise anything)
            source = ""
        yield _short(where) + (f"\n    {_short(source)}" if source else "")


def _folded(frames: Iterator[str]) -> Iterator[str]:
    """Show the frame of a function that calls itself once, with the number of repetitions."""
    for frame, same in groupby(frames):
        yield frame
        again = sum(1 for _ in same) - 1
        if again:
            yield f"  ... the same frame {again:,} more times ..."


def _short(line: str) -> str:
    return line if len(line) <= LINE_CHARACTERS else line[:LINE_CHARACTERS] + " ..."


def _title(error: BaseException) -> str:
    kind = type(error)
    plain = kind.__module__ in ("builtins", "__main__") or isinstance(error, StepFailed)
    name = kind.__qualname__ if plain else f"{kind.__module__}.{kind.__qualname__}"
    message = words_of(error)
    if len(message) > MESSAGE_CHARACTERS:
        message = message[:MESSAGE_CHARACTERS] + " ..."
    return f"{name}: {message}" if message else name


def _cut(raw: bytes) -> str:
    """The whole text, or its beginning and end in whole lines if it exceeds LIMIT_BYTES."""
    if len(raw) <= LIMIT_BYTES:
        return raw.decode()
    lines = raw.split(b"\n")
    first, last, room = 0, len(lines), LIMIT_BYTES - 100
    head = room // 3
    while len(lines[first]) < head:
        head -= len(lines[first]) + 1
        first += 1
    tail = room - room // 3
    while last > first and len(lines[last - 1]) < tail:
        tail -= len(lines[last - 1]) + 1
        last -= 1
    gone = b"  ... %d more lines ..." % (last - first)
    return b"\n".join([*lines[:first], gone, *lines[last:]]).decode()

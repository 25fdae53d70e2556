"""Recorder inside a worker of a crash test: it records every call and kills on order.

It writes a line before each call and one after. It kills its own process with SIGKILL, so that the
kill comes at exactly the ordered instruction.
"""

import functools
import inspect
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import msgspec

from andon import points
from andon.core.journal import EntryKind
from andon.core.values import value
from andon.errors import DidNotHappen, NotStorable
from andon.runtime.effects.declaration import Happened, Unknown
from andon.runtime.operations.operation import is_async
from andon.testing.crash.kills import INSIDE, NAMED, WATCHED, Kill
from andon.testing.crash.lines import Line, Notebook, read
from andon.testing.moments import OWN

SHOWN_CHARACTERS = 200


class Witness:
    """Watches this process for the rest of its life."""

    def __init__(self, path: str, kill: Kill | None) -> None:
        self.book, self.kill = Notebook(path), kill
        self._passed = _counted(path)
        self._lock = threading.Lock()  # plain functions are called in threads

    def begin(self) -> None:
        points.watch, points.wrap = self.passed, self.wrapped

    def passed(self, point: str, about: Any) -> None:
        name = str(getattr(about, "name", ""))
        if point.startswith(OWN):
            point, name = NAMED, point.removeprefix(OWN)
        if point not in WATCHED:
            return
        nth = self.count(point, name)
        line = Line(what="passed", point=point, name=name, nth=nth)
        line.key, line.digest = _key_of(about), str(getattr(about, "digest", ""))
        line.place = _place_of(about)
        self.book.write(line)
        if self.kill == Kill(point, name, nth):
            self.die()

    def die(self) -> None:
        self.book.write(Line(what="killed"))
        os.kill(os.getpid(), signal.SIGKILL)

    def count(self, point: str, name: str) -> int:
        with self._lock:
            self._passed[point, name] += 1
            return self._passed[point, name]

    def wrapped(self, operation: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, with each call recorded."""
        call = _Call(self, _line(operation, function))

        if is_async(function):

            @functools.wraps(function)
            async def seen_async(*args: Any, **kwargs: Any) -> Any:
                call.begin(args)
                return await call.awaited(function(*args, **kwargs))

            return seen_async

        @functools.wraps(function)
        def seen(*args: Any, **kwargs: Any) -> Any:
            call.begin(args)
            result = call.called(functools.partial(function, *args, **kwargs))
            return call.awaited(result) if inspect.isawaitable(result) else result

        return seen


class _Call:
    """One call of one function."""

    def __init__(self, witness: Witness, line: Line) -> None:
        self._witness, self._line = witness, line
        self._awaits = 0
        self._begun_at = 0.0
        self._timer: threading.Timer | None = None

    def begin(self, args: tuple[Any, ...]) -> None:
        line = self._line
        line.value = _abridged(args)
        line.nth = self._witness.count(line.role, line.name)
        line.call = f"{os.getpid()}.{line.role}.{line.name}.{line.nth}"
        self._begun_at = time.monotonic()
        self._witness.book.write(line)
        kill = self._witness.kill
        if kill is not None and kill.after and self._is_about(kill):
            self._timer = threading.Timer(kill.after, self._witness.die)
            self._timer.daemon = True
            self._timer.start()

    def _is_about(self, kill: Kill) -> bool:
        line = self._line
        named = (kill.point, kill.name, kill.nth) == (INSIDE, line.name, line.nth)
        return named and line.role == "effect"

    def called(self, function: Callable[[], Any]) -> Any:
        try:
            result = function()
        except BaseException as error:
            self._raised(error)
            raise
        if not inspect.isawaitable(result):
            self._ended(result)
        return result

    async def awaited(self, awaitable: Any) -> Any:
        try:
            result = await _Stepped(awaitable, self._at_await)
        except BaseException as error:
            self._raised(error)
            raise
        self._ended(result)
        return result

    def _at_await(self) -> None:
        self._awaits += 1
        kill = self._witness.kill
        if kill is not None and kill.moment == self._awaits and self._is_about(kill):
            self._witness.die()

    def _over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()  # it was faster than in the plain run

    def _ended(self, result: Any) -> None:
        self._over()
        shown = _verdict(result) if self._line.role == "probe" else _abridged(result)
        took = time.monotonic() - self._begun_at
        line = msgspec.structs.replace(self._line, what="ended", value=shown)
        line.awaits, line.seconds = self._awaits, took
        self._witness.book.write(line)

    def _raised(self, error: BaseException) -> None:
        self._over()
        line = msgspec.structs.replace(self._line, what="raised", error=type(error).__name__)
        line.certain = isinstance(error, DidNotHappen)
        self._witness.book.write(line)


class _Stepped:
    """An awaitable that calls `tell` each time it suspends."""

    def __init__(self, awaitable: Any, tell: Callable[[], None]) -> None:
        self._awaitable, self._tell = awaitable, tell

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._awaitable.__await__()
        go_on: Callable[[], Any] = functools.partial(next, inner)
        while True:
            try:
                waits_for = go_on()
            except StopIteration as end:
                return end.value
            self._tell()
            try:
                given = yield waits_for
                go_on = functools.partial(_send, inner, given)
            except BaseException as error:  # noqa: BLE001 (any error goes to the function)
                go_on = functools.partial(inner.throw, error)


def _send(inner: Any, given: Any) -> Any:
    return next(inner) if given is None else inner.send(given)


def _counted(path: str) -> Counter[tuple[str, str]]:
    """Count the points and calls since the last kill, from processes before this one."""
    found: Counter[tuple[str, str]] = Counter()
    for line in read(Path(path)):
        if line.what == "killed":
            found.clear()
        elif line.what in ("passed", "begun"):
            found[line.point or line.role, line.name] += 1
    return found


def _line(operation: Any, function: Callable[..., Any]) -> Line:
    line = Line(what="begun", role=str(operation.kind), name=operation.name)
    line.key, line.digest = _key_of(operation), operation.digest
    line.place = _place_of(operation)
    if operation.kind == EntryKind.EFFECT:
        own, declared = operation.effect
        roles = {id(own): "effect", id(declared.undo): "undo", id(declared.probe): "probe"}
        line.role, line.kind = roles[id(function)], str(declared.kind)
        line.keyed = _takes_key(own)
        line.key = operation.key or f"{operation.attempt.run.id}/{operation.place}"
    return line


def _key_of(about: Any) -> str:
    return getattr(about, "key", None) or str(getattr(about, "place", ""))


def _place_of(about: Any) -> str:
    if getattr(about, "place", None) is None or about.key is not None:
        return ""
    return f"{about.attempt.run.id}/{about.place}"


@functools.lru_cache(maxsize=4096)
def _takes_key(function: Callable[..., Any]) -> bool:
    try:
        return "key" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _abridged(result: Any) -> str:
    try:
        text = value.encode(result, "the result").decode()
    except NotStorable:
        text = repr(result)
    if len(text) <= SHOWN_CHARACTERS:
        return text
    return f"{text[:SHOWN_CHARACTERS]}… {value.content_name(text.encode())[:12]}"


def _verdict(result: Any) -> str:
    match result:
        case Happened():
            return "happened"
        case DidNotHappen():
            return "did_not_happen"
        case Unknown():
            return "unknown"
        case _:
            return f"{_abridged(result)}, which is no verdict and counts as unknown"

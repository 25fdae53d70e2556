"""Takes over a terminal: its whole screen and its keys, and restores it afterwards.

The old state returns on every exit that a process can notice: an error, Ctrl-C, SIGTERM, SIGHUP,
and Ctrl-Z, after which the terminal is taken over again.
"""

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from andon.cli.top.frame import Size

# Switch to the alternate screen and hide the cursor; and the reverse.
_TAKE, _RETURN = "\x1b[?1049h\x1b[?25l\x1b[2J", "\x1b[?25h\x1b[?1049l"
# The rest of a key's code arrives within this time, or the key was Esc alone.
ESCAPE_SECONDS = 0.05
ESCAPE, ENTER, UP, DOWN, LEFT, RIGHT = "escape", "enter", "up", "down", "left", "right"
PAGE_UP, PAGE_DOWN, HOME, END = "page up", "page down", "home", "end"
_CODES = {
    b"A": UP,
    b"B": DOWN,
    b"C": RIGHT,
    b"D": LEFT,
    b"H": HOME,
    b"F": END,
    b"1~": HOME,
    b"4~": END,
    b"5~": PAGE_UP,
    b"6~": PAGE_DOWN,
}
_PLAIN = {"\r": ENTER, "\n": ENTER}
_FINAL = range(0x40, 0x7F)  # the bytes that end a code after Esc [


class Keys:
    """Decodes keys from bytes, however the bytes were split on their way."""

    def __init__(self) -> None:
        self._left = b""

    @property
    def waits(self) -> bool:
        """Whether more bytes may belong to the last key."""
        return bool(self._left)

    def read(self, given: bytes, *, whole: bool = False) -> list[str]:
        """Return the keys in these bytes; with `whole` nothing more comes, so Esc is Esc."""
        self._left += given
        found: list[str] = []
        while self._left:
            one, size = self._next()
            if not size and not whole:
                break
            found += [one] if one else []
            self._left = self._left[max(size, 1) :]
        return found

    def _next(self) -> tuple[str, int]:
        """Return the first key and how many bytes it took; 0 bytes if it is not complete."""
        text = self._left
        if text[:1] != b"\x1b":
            character = chr(text[0]) if text[0] < 0x80 else ""
            return _PLAIN.get(character, character), 1
        if len(text) == 1 or text[1:2] not in (b"[", b"O"):
            return ESCAPE, 0 if len(text) == 1 else 1
        for at in range(2, len(text)):
            if text[at] in _FINAL:
                return _CODES.get(text[2 : at + 1], ""), at + 1
        return ESCAPE, 0


def interactive() -> bool:
    """Whether a person with a screen and a keyboard is there."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def size() -> Size:
    """Return the screen's size, ignoring COLUMNS and LINES: they do not follow a resize."""
    try:
        found = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        found = shutil.get_terminal_size()
    return Size(columns=found.columns or 80, rows=found.lines or 24)


class Terminal:
    """The screen and the keys, while they are taken over."""

    def __init__(self) -> None:
        self._input, self._output = sys.stdin.fileno(), sys.stdout.fileno()
        self._old: list[Any] = []
        self._keys = Keys()
        self._shown: tuple[str, ...] | None = None
        self._woken, self._waker = os.pipe()
        for end in (self._woken, self._waker):
            os.set_blocking(end, False)

    def wake(self) -> None:
        """End a wait, from another thread or after a signal."""
        with contextlib.suppress(OSError):
            os.write(self._waker, b"!")

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines unless they are shown already."""
        if self._shown == (found := tuple(lines)):
            return
        self._shown = found
        text = "\x1b[H" + "\r\n".join(line + "\x1b[K" for line in lines) + "\x1b[J"
        self._write(text)

    def wait(self, seconds: float) -> list[str] | None:
        """Return the keys pressed within that time; None if the terminal is gone."""
        if self._keys.waits:
            seconds = ESCAPE_SECONDS
        ready, _, _ = select.select([self._input, self._woken], [], [], seconds)
        if self._woken in ready:
            with contextlib.suppress(OSError):
                os.read(self._woken, 4096)
        if self._input not in ready:
            return self._keys.read(b"", whole=self._keys.waits and not ready)
        try:
            given = os.read(self._input, 1024)
        except OSError:  # the terminal is gone
            return None
        return self._keys.read(given) if given else None

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def take(self) -> None:
        self._old = termios.tcgetattr(self._input)
        self._shown = None
        tty.setcbreak(self._input)
        self._write(_TAKE)

    def give_back(self) -> None:
        old, self._old = self._old, []
        if old:
            with contextlib.suppress(OSError, termios.error):  # the terminal is gone
                termios.tcsetattr(self._input, termios.TCSADRAIN, old)
                self._write(_RETURN)

    def suspend(self) -> None:
        """Ctrl-Z: give the terminal back, stop, and take it again after `fg`."""
        self.give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.take()
        self.wake()

    def close(self) -> None:
        os.close(self._woken)
        os.close(self._waker)


@contextlib.contextmanager
def taken() -> Iterator[Terminal]:
    """Take over the terminal of this process while the block runs, and restore it afterwards."""
    terminal = Terminal()
    with _signals(terminal):
        try:
            terminal.take()
            yield terminal
        finally:
            terminal.give_back()
    terminal.close()


@contextlib.contextmanager
def _signals(terminal: Terminal) -> Iterator[None]:
    """Handle resizes and Ctrl-Z; let SIGTERM and SIGHUP leave through the normal cleanup."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    mine: dict[signal.Signals, Callable[[int, FrameType | None], None]] = {
        signal.SIGWINCH: lambda *_: terminal.wake(),
        signal.SIGTSTP: lambda *_: terminal.suspend(),
        signal.SIGTERM: leave,
        signal.SIGHUP: leave,
    }
    before = {number: signal.signal(number, action) for number, action in mine.items()}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)

"""A command that keeps running on a real terminal: its keys, its size, its last frame."""

import contextlib
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from fcntl import ioctl

from tests.cli.terminal import LIMIT_SECONDS, Terminal

PICTURE = re.compile(r"\x1b\[H((?:(?!\x1b\[H).)*?)\x1b\[J", re.DOTALL)
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Screen:
    """The output of a command, and the state of the terminal that it draws on."""

    def __init__(self, process: "subprocess.Popen[bytes]", main: int, other: int) -> None:
        self.process, self._main, self._other = process, main, other
        self.raw = ""

    def _read(self, seconds: float) -> None:
        if select.select([self._main], [], [], seconds)[0]:
            with contextlib.suppress(OSError):
                self.raw += os.read(self._main, 65536).decode("utf-8", "replace")

    @property
    def lines(self) -> list[str]:
        """The last complete frame, without its colours."""
        found = PICTURE.findall(self.raw)
        return CODES.sub("", found[-1]).replace("\r", "").split("\n") if found else []

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def shows(self, *words: str, without: str | None = None) -> str:
        """Waits for a frame with all those words."""
        end = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < end:
            text = self.text
            if all(one in text for one in words) and (without is None or without not in text):
                return text
            self._read(0.2)
        raise AssertionError(
            f"in vain: {words} without {without} in\n{self.text}\n{self.raw[-999:]!r}"
        )

    def draws(self, words: str) -> None:
        """Waits for those words anywhere in the output."""
        end = time.monotonic() + LIMIT_SECONDS
        while words not in self.raw and time.monotonic() < end:
            self._read(0.2)
        assert words in self.raw, self.raw[-2000:]

    def press(self, keys: str) -> None:
        os.write(self._main, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        ioctl(self._other, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def attributes(self) -> list[object]:
        return list(termios.tcgetattr(self._other))

    def ends(self) -> int:
        end = time.monotonic() + LIMIT_SECONDS
        while self.process.poll() is None and time.monotonic() < end:
            self._read(0.05)
        self._read(0.1)
        code = self.process.poll()
        assert code is not None, "it goes on"
        return code


@contextlib.contextmanager
def screen(
    andon: Terminal, *arguments: str, columns: int = 80, rows: int = 24, **environment: str
) -> Iterator[Screen]:
    """The command on a terminal of its own."""
    main, other = pty.openpty()
    ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    without = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
    settings = {k: v for k, v in andon.environment.items() if k not in without}
    with subprocess.Popen(
        andon._command(*arguments),
        cwd=andon.folder,
        env=settings | {"TERM": "xterm-256color"} | environment,
        stdin=other,
        stdout=other,
        stderr=other,
        start_new_session=True,
        preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 (one thread)
    ) as process:
        found = Screen(process, main, other)
        try:
            yield found
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(LIMIT_SECONDS)
            os.close(main)
            os.close(other)

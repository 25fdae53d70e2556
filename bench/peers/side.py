"""A driver in a system's own environment, seen from the script that measures: JSON lines."""

import json
import os
import queue
import signal
import subprocess
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from bench.peers.driver import die_with_parent

ANSWER_SECONDS = 90
CLOSE_SECONDS = 10


class Cannot(Exception):
    """This system cannot be measured here; the message says why."""


class Side:
    """The driver of one system in its own environment, and all processes it has started."""

    def __init__(self, command: list[str | Path], folder: Path, environ: dict[str, str]) -> None:
        self._log = folder / "driver.log"
        self._mark = f"BENCH_SIDE={uuid.uuid4()}"
        name, _, value = self._mark.partition("=")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
                env={**os.environ, **environ, name: value},
                text=True,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509
            )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self) -> Self:
        try:
            self.versions = self.answer()["ready"]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, subprocess.TimeoutExpired):
            self._process.stdin.close()
            self._process.wait(CLOSE_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._end_what_is_left()

    def _end_what_is_left(self) -> None:
        """A process that left the driver's process group still carries the driver's mark."""
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if self._mark.encode() in path.read_bytes().split(b"\0"):
                    os.kill(int(path.parent.name), signal.SIGKILL)

    def _listen(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(line)
        self._lines.put("")

    def ask(self, **request: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise Cannot(f"its driver ended: {self._last_words()}") from None

    def answer(self, within: float = ANSWER_SECONDS) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=within)
        except queue.Empty:
            raise Cannot(f"no answer in {within:.0f} s: {self._last_words()}") from None
        if not line:
            raise Cannot(f"its driver ended: {self._last_words()}")
        said: dict[str, Any] = json.loads(line)
        if "cannot" in said:
            raise Cannot(said["cannot"])
        return said

    def _last_words(self) -> str:
        return self._log.read_text("utf-8", "replace").strip()[-800:]

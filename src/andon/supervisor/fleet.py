"""Every other host: the order goes to the store, from a process that may hang or die for itself.

That process is `python -m andon.control.halting`: it may import what the store needs. It is known
here by its name only, and what it answers is a line of JSON for each thing it knows.
"""

import contextlib
import json
import os
import signal
import sys
import threading
from typing import Any

MODULE = "andon.control.halting"
STORE_SECONDS = 5.0


class Fleet:
    """The order on its way to the store."""

    def __init__(self, words: dict[str, Any], store: str, wait: float) -> None:
        self.done = False
        self.pid = 0
        self._silence = f"no answer within {wait:g} s"
        self._known: dict[str, Any] = {"state": "unknown", "why": self._silence}
        self._heard = b""
        self._pipe = -1
        self._asking: float | None = None  # since when the store itself is waited for
        try:
            self._start(words | {"wait": wait, "within": STORE_SECONDS}, store)
        except OSError as error:
            self._known["why"], self.done = f"{sys.executable} cannot be started: {error}", True

    def _start(self, words: dict[str, Any], store: str) -> None:
        source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        path = os.environ.get("PYTHONPATH")
        env = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{path}" if path else source}
        env.pop("ANDON_FAULTS", None)
        if store:
            env["ANDON_STORE"] = (
                store  # not as an argument: it has a password, and `ps` shows those
            )
        # -P: the files of this folder are an agent's, and must not be taken for Python's own.
        arguments = [sys.executable, "-P", "-m", MODULE, json.dumps(words)]
        self._pipe, out = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self.pid = os.posix_spawn(
                sys.executable,
                arguments,
                env,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, out, 1),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
                setpgroup=0,  # Ctrl-C is for who waits
                setsigmask=[],
                setsigdef=[signal.SIGINT, signal.SIGHUP, signal.SIGPIPE],
            )
        finally:
            os.close(out)

    def fds(self) -> list[int]:
        return [self._pipe] if self._pipe >= 0 else []

    def look(self, now: float) -> None:
        if self.done:
            return
        self._listen()
        if self._asking is None and "url" in self._known:
            self._asking = now  # a busy host may take long to start a process
        late = self._asking is not None and now - self._asking > STORE_SECONDS
        if late and not self.done and not self.answered:
            self.done = True
            if self._known["why"] == self._silence:
                self._known["why"] = f"nothing was heard for {STORE_SECONDS:g} s"

    @property
    def answered(self) -> bool:
        return bool(self._known["state"] != "unknown")

    def _listen(self) -> None:
        try:
            while part := os.read(self._pipe, 65_536):
                self._heard += part
            self.done = True
        except BlockingIOError:
            pass
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):
                said = json.loads(line)
                if isinstance(said, dict):
                    self._known |= said
        if self._known.get("over"):
            self.done = True
        if self.done and not self.answered and self._known["why"] == self._silence:
            self._known["why"] = "the process that was to tell it died"

    def report(self) -> dict[str, Any]:
        hidden = {"over", "why"} if self.answered else {"over"}
        return {name: value for name, value in self._known.items() if name not in hidden}

    def close(self) -> None:
        """One that has not answered yet goes on trying, for its few seconds, without us."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if self.pid:
            threading.Thread(target=_reap, args=(self.pid,), daemon=True).start()


def _reap(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.waitpid(pid, 0)

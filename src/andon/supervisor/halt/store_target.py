"""Sends a halt to every other host, through the store.

A supervisor of this host has its store open, so it passes the order on and reports the result. If
no supervisor does so in time, `python -m andon.control.halt.store_order` writes the order. It is a
separate process, which may hang or die without harm and imports what the store needs. This module
knows it by name only, and reads a line of JSON for each result.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from andon.host import home as homes
from andon.supervisor.halt.host_targets import Owner

MODULE = "andon.control.halt.store_order"
STORE_SECONDS = 5.0
# A supervisor that has ended everything writes to its store within milliseconds.
TOLD_SECONDS = 0.5


class Fleet:
    """The order on its way to the store; `owners` are supervisors that have it open."""

    def __init__(
        self,
        words: dict[str, Any],
        store: str,
        wait: float,
        owners: Sequence[Owner],
        spare: set[int],
    ) -> None:
        self.done = False
        self._words, self._store, self._wait = words, store, wait
        self._owners, self._spare = owners, spare
        self._began = time.monotonic()
        self._pid = 0
        self._silence = f"no answer within {wait:g} s"
        self._known: dict[str, Any] = {"state": "unknown", "why": self._silence}
        self._heard = b""
        self._pipe = -1
        self._asking: float | None = None  # when the wait for the store itself began
        self._take_turns(self._began)

    def _take_turns(self, now: float) -> None:
        """Rely on a supervisor while one may still report; after that start our own process."""
        if any(self._told_by(owner) for owner in self._owners) or self._pid:
            return
        late = now - self._began > TOLD_SECONDS
        if not late and any(owner.listens for owner in self._owners):
            return
        words = self._words | {"wait": self._wait, "within": STORE_SECONDS, "began": self._began}
        try:
            self._start(words, self._store)
        except OSError as error:
            self._known["why"], self.done = f"{sys.executable} cannot be started: {error}", True

    def _told_by(self, owner: Owner) -> bool:
        """Whether the supervisor has reported the state of this very pull in its store."""
        found = owner.fleet
        if not _is_whole(found) or found["pull"] != self._words["order"]:
            return False
        if not owner.listens and not found["over"]:
            return False
        others = [one for one in self._words["stores"] if one != owner.entry.store]
        told = {name: value for name, value in found.items() if name != "pull"}
        by = f"supervisor {owner.entry.id}"
        self._known = {"url": owner.entry.store, "others": others, "by": by, **told}
        self.done = bool(found["over"])
        return True

    def _start(self, words: dict[str, Any], store: str) -> None:
        source = homes.SOURCE
        path = os.environ.get("PYTHONPATH")
        env = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{path}" if path else source}
        env.pop("ANDON_FAULTS", None)
        if store:
            # Not as an argument: `ps` would show its password.
            env["ANDON_STORE"] = store
        # -P: this folder belongs to an agent, so its files must not shadow Python's modules.
        arguments = [sys.executable, "-P", "-m", MODULE, json.dumps(words)]
        self._pipe, out = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._pid = os.posix_spawn(
                sys.executable,
                arguments,
                env,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, out, 1),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
                setpgroup=0,  # Ctrl-C must reach only the command that waits
                setsigmask=[],
                setsigdef=[signal.SIGINT, signal.SIGHUP, signal.SIGPIPE],
            )
        finally:
            os.close(out)
        self._spare.add(self._pid)

    def fds(self) -> list[int]:
        return [self._pipe] if self._pipe >= 0 and not self.done else []

    def look(self, now: float) -> None:
        if self.done:
            return
        self._take_turns(now)
        if self._pid:
            self._listen()
            self._look_at_the_time(now)

    def _look_at_the_time(self, now: float) -> None:
        if self._asking is None and "url" in self._known:
            self._asking = now  # from its first line: a busy host may be slow to start a process
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
        """Stop listening. A process that has not answered keeps trying for its few seconds."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if self._pid:
            threading.Thread(target=_reap, args=(self._pid,), daemon=True).start()


def _is_whole(found: dict[str, Any]) -> bool:
    """Whether a report has every field; one of another release may not, and is ignored."""
    kinds = {"state": str, "pull": str, "over": bool, "targets": int, "verified": int}
    kinds |= {"kinds": dict, "unproved": list}
    return all(isinstance(found.get(name), kind) for name, kind in kinds.items())


def _reap(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.waitpid(pid, 0)

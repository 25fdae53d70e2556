"""Sends a halt to every other host, through the store.

A supervisor of this host has its store open, so it passes the order on and reports the result. If
no supervisor does so in time, a process of its own, `STORE_ORDER`, writes the order.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any

from andon.host import home as homes
from andon.host.json_lines import LineReader
from andon.supervisor.halt.host_targets import SupervisorTarget

# The program that writes the order, and prints a line of JSON for each result. Started by its name
# and never imported: it needs the settings and a database driver, which take longer than a halt may
# and are not the standard library, and a store that hangs must hang another process.
STORE_ORDER = "andon.control.halt.store_order"
DEFAULT_STORE = "sqlite:///.andon/andon.db"
STORE_SECONDS = 5.0
# A supervisor that has ended everything writes to its store within milliseconds.
SUPERVISOR_SECONDS = 0.5


class StoreTarget:
    """The order on its way to the store; `supervisors` are those that have it open."""

    def __init__(
        self,
        words: dict[str, Any],
        store: str,
        wait: float,
        supervisors: Sequence[SupervisorTarget],
        spare: set[int],
    ) -> None:
        self.done = False
        self._words, self._store, self._wait = words, store, wait
        self._supervisors, self._spare = supervisors, spare
        self._began = time.monotonic()
        self._pid = 0
        self._silence = f"no answer within {wait:g} s"
        self._known: dict[str, Any] = {"state": "unknown", "why": self._silence}
        self._reader = LineReader()
        self._pipe = -1
        self._asking: float | None = None  # when the wait for the store itself began
        self._choose_writer(self._began)

    def _choose_writer(self, now: float) -> None:
        """Rely on a supervisor while one may still report; after that start our own process."""
        if any(self._take_report(one) for one in self._supervisors) or self._pid:
            return
        late = now - self._began > SUPERVISOR_SECONDS
        if not late and any(one.listens for one in self._supervisors):
            return
        words = self._words | {"wait": self._wait, "within": STORE_SECONDS, "began": self._began}
        try:
            self._start(words, self._store)
        except OSError as error:
            self._known["why"], self.done = f"{sys.executable} cannot be started: {error}", True

    def _take_report(self, supervisor: SupervisorTarget) -> bool:
        """Take over what a supervisor reports of this very pull in its store; whether it does."""
        found = supervisor.store
        if not _is_whole(found) or found["pull"] != self._words["order"]:
            return False
        if not supervisor.listens and not found["over"]:
            return False
        url = supervisor.entry.store
        others = [one for one in self._words["stores"] if one != url]
        state = {name: value for name, value in found.items() if name != "pull"}
        self._known = {"url": url, "others": others, "by": f"supervisor {supervisor.entry.id}"}
        self._known |= state
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
        arguments = [sys.executable, "-P", "-m", STORE_ORDER, json.dumps(words)]
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
        self._choose_writer(now)
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
                self._known["why"] = f"no answer for {STORE_SECONDS:g} s"

    @property
    def answered(self) -> bool:
        return bool(self._known["state"] != "unknown")

    def _listen(self) -> None:
        try:
            while part := os.read(self._pipe, 65_536):
                for message in self._reader.messages(part):
                    self._known |= message
            self.done = True
        except BlockingIOError:
            pass
        if self._known.get("over"):
            self.done = True
        if self.done and not self.answered and self._known["why"] == self._silence:
            self._known["why"] = "the process that was to write the order died"

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


def find_store(given: str, here: Collection[str]) -> str:
    """Return the store from `given`, the environment, the file or this host; "" if unsure.

    `here` are the stores in use on this host. It gives the same answer as `andon.settings` and
    `andon.store.absolute`, which take longer to load than a halt may, or none; a test compares
    them. No answer is always safe: `STORE_ORDER` then loads the settings.
    """
    found = given or os.environ.get("ANDON_STORE", "")
    if not found:
        found, certain = _in_file()
        if not certain:
            return ""
    url = _absolute(found or DEFAULT_STORE)
    path = url.removeprefix("sqlite:///")
    if path == url or os.path.exists(path):
        return url
    # The store does not exist, or none was named: take the one in use on this host.
    return next(iter(here)) if len(here) == 1 else ""


def _in_file() -> tuple[str, bool]:
    """Return the store in andon.toml, and whether the file could be read with certainty."""
    if not os.path.exists("andon.toml"):
        return "", True
    import tomllib

    try:
        with open("andon.toml", "rb") as file:
            found = tomllib.load(file).get("store", "")
    except (OSError, ValueError):
        return "", False
    return (found, True) if isinstance(found, str) else ("", False)


def _absolute(url: str) -> str:
    if url.startswith("sqlite:////"):
        return url if os.path.isdir(os.path.dirname(url[10:])) else ""
    if url.startswith("sqlite:///"):
        path = url.removeprefix("sqlite:///")
        inside = os.path.isdir(os.path.dirname(path) or ".") and ".." not in path.split("/")
        return f"sqlite:///{os.path.abspath(path)}" if path and inside else ""
    if url.startswith(("postgresql://", "postgres://")):
        return homes.without_password(url)
    return ""

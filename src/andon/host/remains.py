"""Ends a set of processes: signals them, looks again, and repeats until none is left.

Processes are found by their marks, as descendants of known ones, and by pid and start time once
they have been seen.
"""

from __future__ import annotations

import os
import signal
import time

from andon.host import mark, proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

# Pause between two rounds: killed processes need the processor to die.
LOOK_SECONDS = 0.002
# Any more are counted, not named.
MOST_NAMED = 20
MOST_LETTERS = 80


class Remains:
    """A set of processes: by pid and start time, by their marks, and all their descendants."""

    def __init__(
        self,
        roots: Mapping[int, int] | None = None,
        matches: Callable[[int], bool] | None = None,
        spare: Iterable[int] = (),
        put_on: int | None = None,
    ) -> None:
        self.known = dict(roots or {})  # pid → start time
        self.commands: dict[int, str] = {}
        self.survivors: list[int] = sorted(self.known)
        self._matches = matches
        self._spare = {os.getpid(), *spare}
        self._put_on = put_on  # put on descendants that have no matching mark

    def look(self, above: int = 0) -> list[int]:
        """Return the members alive now, with the descendants of `above`, and remember them all."""
        self._find(above, lambda pid: None)
        return self._alive()

    def none(self) -> bool:
        """Whether no process is left, by a search that has seen all of them."""
        return self._find(0, lambda pid: None) and not self.known

    def strike(self, number: signal.Signals = signal.SIGKILL, above: int = 0) -> bool:
        """Signal every member once, each as soon as it is found. Returns True if none was left."""

        def hit(pid: int) -> None:
            proc.send(pid, self.known[pid], number)

        before = len(self.known)
        all_seen = self._find(above, hit)
        return not self._alive() and all_seen and len(self.known) == before

    def _find(self, above: int, do: Callable[[int], None]) -> bool:
        """Call `do` for each member and return whether all were seen.

        Descendants come first: once a process has ended, nobody can tell what was below it.
        """
        alive = self._alive()
        self._add_below([*alive, *([above] if above else [])])
        for pid in self._alive():
            do(pid)

        def found(pid: int) -> None:
            if pid not in self._spare and self.add(pid):
                self._add_below([pid])
                do(pid)

        return self._matches is None or mark.carriers(self._matches, found)

    def _alive(self) -> list[int]:
        self.survivors = sorted(pid for pid, ticks in self.known.items() if proc.alive(pid, ticks))
        return self.survivors

    def _add_below(self, pids: Iterable[int]) -> None:
        marked = True
        while marked:  # a process may have started others before it was marked
            marked = False
            for pid in proc.descendants(pids):
                if pid not in self._spare and self.add(pid):
                    marked = self._mark(pid) or marked

    def _mark(self, pid: int) -> bool:
        """Mark a process that has removed its mark, so that its later children are found."""
        if self._matches is None or self._put_on is None or self._matches(mark.of(pid)):
            return False
        return mark.put_on(pid, self._put_on)

    def add(self, pid: int) -> bool:
        """Remember a process if it is alive (a zombie is not). Returns whether it is new."""
        ticks = proc.start_ticks(pid)
        if not ticks or self.known.get(pid) == ticks or not proc.alive(pid, ticks):
            return False
        self.known[pid] = ticks
        if len(self.commands) <= MOST_NAMED:
            self.commands[pid] = proc.command(pid)
        return True

    def end(self, seconds: float) -> bool:
        """Strike until none is left or the time is up. Returns whether none is left."""
        until = time.monotonic() + seconds
        while not self.strike():
            if time.monotonic() > until:
                return False
            time.sleep(LOOK_SECONDS)
        return True

    def named(self, pids: Iterable[int]) -> str:
        """Return pids and commands for people."""
        pids = list(pids)
        words = [
            f"{pid} {(self.commands.get(pid) or '?')[:MOST_LETTERS]}" for pid in pids[:MOST_NAMED]
        ]
        more = len(pids) - MOST_NAMED
        return ", ".join(words) + (f" and {more} more" if more > 0 else "")

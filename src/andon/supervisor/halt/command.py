"""`andon halt`: stop everything, now. It needs no parameters, no confirmation and no installation.

    latch (file and STOP) → sockets and signals → store, in a process of its own → wait for proof

It imports only the standard library, and little of that before the first order is sent. A broken
part (the store, the home, a supervisor, the terminal) disables only itself: the rest goes on, and
the receipt says what is not known.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from andon.core.duration import seconds
from andon.core.latch import Pulled
from andon.host import home as homes
from andon.host import proc
from andon.host.descriptors import open_standard
from andon.host.ids import new_order
from andon.host.latch import Latch
from andon.host.user import named
from andon.points import point
from andon.supervisor.halt.priority import raise_priority

WAIT_SECONDS = 10.0
# A hanging disk must not delay the signals.
LATCH_SECONDS = 0.5
LOOK_MS = 10
PROVED, NOT_PROVED, INTERRUPTED = 0, 3, 130


class HaltOptions(NamedTuple):
    """The parsed command line."""

    by: str = ""
    why: str = ""
    wait: float = WAIT_SECONDS
    store: str = ""
    json: bool = False
    help: bool = False
    complaints: tuple[str, ...] = ()


def parsed(arguments: list[str]) -> HaltOptions:
    """Parse by hand: nothing that a user types in a hurry may prevent the halt."""
    found: dict[str, str] = {}
    complaints = []
    rest = list(arguments)
    while rest:
        name, given, value = rest.pop(0).partition("=")
        if name in ("--json", "-h", "--help") and not given:
            found[name] = "yes"
        elif name in ("--why", "--by", "--timeout", "--wait", "--store"):
            name = "--timeout" if name == "--wait" else name  # the old name
            if not given and not rest:
                complaints.append(f"{name}: expected a value, found nothing")
            found[name] = value if given else rest.pop(0) if rest else ""
        else:
            complaints.append(f"unknown option {name!r}")
    wait = seconds(found.get("--timeout", ""))
    if wait is None and "--timeout" in found:
        complaints.append(f"--timeout: expected 10s, 5m or 2h, found {found['--timeout']!r}")
    return HaltOptions(
        by=found.get("--by", ""),
        why=found.get("--why", ""),
        wait=WAIT_SECONDS if wait is None else wait,
        store=found.get("--store", ""),
        json="--json" in found,
        help=bool(found.keys() & {"-h", "--help"}),
        complaints=tuple(complaints),
    )


class HaltCommand:
    """One run of the command, from the first order to the receipt."""

    def __init__(
        self,
        by: str = "",
        why: str = "",
        via: str = "",
        wait: float = WAIT_SECONDS,
        store: str = "",
    ) -> None:
        self.began, self.began_at = time.monotonic(), time.time()
        self.by, self.why, self.via, self.wait_seconds = by, why, via, wait
        self.store = store
        self.home = homes.find()
        self.order = new_order()
        self.again = False
        self.pulled = Pulled(pulled=True, order=self.order, unwritten="it takes too long")
        self.first_order_ms: float | None = None
        self.supervisors: list[Any] = []
        self.workers: list[Any] = []
        self.other_hosts: Any = None
        self.verified_at: float | None = None
        self.defects: list[str] = []
        self._entries: dict[str, homes.HostEntry] = {}
        self._alive: set[str] = set()
        self._spare = {os.getpid()}
        self._writing: threading.Thread | None = None

    def send(self) -> None:
        """Send every order that can be sent without waiting for an answer."""
        # Before the pull: a supervisor that sees the latch may exit within moments.
        self._part(self._look_around)
        try:
            self._writing = threading.Thread(target=self._pull, daemon=True)
            self._writing.start()
            self._writing.join(LATCH_SECONDS)
        except RuntimeError:  # no more threads
            self._pull()
        point("halt:pulled")
        self._part(self._order_host)
        # Last, because the store takes longest; a separate process may hang or die harmlessly.
        self._part(self._order_other_hosts)
        point("halt:sent")

    def _part(self, do: Callable[[], None]) -> None:
        """Run one part; a defect in it must not stop the others, but leaves the halt unproved."""
        try:
            do()
        except Exception as error:  # noqa: BLE001
            self.defects.append(f"{type(error).__name__}: {error}")

    def _look_around(self) -> None:
        self._entries = {entry.id: entry for entry in _listed(self.home)}
        self._alive = {name for name, entry in self._entries.items() if not homes.is_gone(entry)}

    def _order_host(self) -> None:
        from andon.host.json_lines import encoded
        from andon.supervisor.halt.host_targets import SupervisorTarget, WorkerTarget

        self._entries |= {entry.id: entry for entry in _listed(self.home)}
        for name, entry in self._entries.items():
            if entry.kind != "worker":
                alive = name in self._alive
                self.supervisors.append(
                    SupervisorTarget(self.home, entry, self._spare, self.order, alive=alive)
                )
        request = encoded({"do": "halt", **self._words()})
        for one in self.supervisors:  # ask before the signal: its answer is then to this request
            if one.ask(request) | one.order():
                self._note_first_order()
        for entry in self._entries.values():
            if entry.kind == "worker":
                self.workers.append(WorkerTarget(self.home, entry, self._spare))

    def _order_other_hosts(self) -> None:
        from andon.supervisor.halt.store_target import StoreTarget, find_store

        here = sorted({store for name in self._alive if (store := self._entries[name].store)})
        store = find_store(self.store, here)
        open_in = [one for one in self.supervisors if store and one.entry.store == store]
        words = self._words() | {"stores": here}
        self.other_hosts = StoreTarget(words, self.store, self.wait_seconds, open_in, self._spare)

    def _pull(self) -> None:
        try:
            found = Latch(self.home).pull(self.by, self.why, self.via, self.order)
        except Exception as error:  # noqa: BLE001 (a defect here must not stop the rest)
            self.pulled = self.pulled._replace(unwritten=f"{type(error).__name__}: {error}")
            return
        self.again = found.order != self.order
        self.pulled, self.order = found, found.order
        if not found.unwritten:
            self._note_first_order()

    def _note_first_order(self) -> None:
        if self.first_order_ms is None:
            self.first_order_ms = _since_exec_ms()

    def _words(self) -> dict[str, Any]:
        by, why = self.pulled.by or self.by, self.pulled.why or self.why
        return {"order": self.order, "by": by, "why": why, "via": self.via}

    def wait(self) -> None:
        """Wait until everything is proved or the time is over."""
        import select

        end = self.began + self.wait_seconds
        targets = [*self.supervisors, *self.workers]
        targets += [self.other_hosts] if self.other_hosts else []
        while True:
            now = time.monotonic()
            for target in targets:
                with contextlib.suppress(Exception):  # it stays unproved
                    target.look(now)
            written = self._writing is None or not self._writing.is_alive()
            if (written and all(target.done for target in targets)) or now >= end:
                break
            poll = select.poll()
            for target in targets:
                for descriptor in target.fds():
                    poll.register(descriptor, select.POLLIN)
            poll.poll(LOOK_MS)
        self.verified_at = time.monotonic()
        for target in targets:
            target.close()
        homes.sweep(self.home)

    def receipt(self) -> dict[str, Any]:
        """Return what was done and what is known, as plain values."""
        from andon.supervisor.halt.page import unknown

        took = (self.verified_at or time.monotonic()) - self.began
        receipt: dict[str, Any] = {
            "receipt": self.order,
            "again": self.again,
            "at": self.began_at,
            "by": self.pulled.by or self.by,
            "why": self.pulled.why or self.why,
            "latch": {
                "home": self.home,
                "epoch": self.pulled.epoch,
                "written": not self.pulled.unwritten,
                "error": self.pulled.unwritten,
            },
            "first_order_ms": self.first_order_ms,
            "took_ms": round(took * 1000, 1),
            "supervisors": [one.report() for one in self.supervisors if one.counts()],
            "workers": [worker.report() for worker in self.workers],
            "store": {"state": "unknown", "why": "not asked"},
            "defects": self.defects,
        }
        if self.other_hosts:
            receipt["store"] = self.other_hosts.report()
        owners = [*receipt["supervisors"], *receipt["workers"]]
        receipt["processes"] = sum(one["processes"] for one in owners)
        receipt["unknown"] = unknown(receipt)
        receipt["proved"] = not receipt["unknown"]
        return receipt


def _listed(home: str) -> list[homes.HostEntry]:
    """Living workers, and all supervisors: what a dead supervisor left may still be alive."""
    found = homes.entries(home)
    alone = [entry for entry in found if entry.kind == "worker" and not homes.is_gone(entry)]
    return [entry for entry in found if entry.kind != "worker"] + homes.left(home) + alone


def _since_exec_ms() -> float | None:
    """Time since this process started, interpreter included, in the kernel's 10 ms steps."""
    ticks = proc.start_ticks(os.getpid())
    if not ticks:
        return None
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return round((now - ticks / os.sysconf("SC_CLK_TCK")) * 1000, 1)


_orders_sent = threading.Event()
_orders_sent.set()


def orders_are_out(seconds: float) -> bool:
    """Wait until no halt of this process has orders left to send, before the process exits."""
    return _orders_sent.wait(seconds)


def halt(why: str = "", by: str = "", *, wait: float = WAIT_SECONDS) -> dict[str, Any]:
    """Stop everything on every host that can be reached, and return the receipt.

    Any program, thread or agent may call it. It does not raise because something is down: the
    receipt's `unknown` lists whatever could not be reached or proved.
    """
    command = HaltCommand(by or os.environ.get("ANDON_BY", ""), why, "andon.halt()", wait)
    _orders_sent.clear()
    try:
        command.send()
    finally:
        _orders_sent.set()
    command.wait()
    return command.receipt()


def main(arguments: list[str]) -> int:
    """Run `andon halt` and return its exit code: 0 proved, 3 not proved in time."""
    asked = parsed(arguments)
    if asked.help and not asked.complaints:
        from andon.supervisor.halt.page import HELP

        return _say(HELP)
    open_standard()
    _hold_signals()
    raise_priority()
    by = asked.by or os.environ.get("ANDON_BY") or named(None) or f"uid {os.getuid()}"
    command = HaltCommand(by, asked.why, "andon halt", asked.wait, asked.store)
    command.send()
    from andon.core.text import clean
    from andon.supervisor.halt import page

    for complaint in asked.complaints:
        _say(f"andon halt: {clean(complaint)}. Everything was halted anyway.\n", to=2)
    if not asked.json:
        _say(page.pulled(command))
    interrupted = _wait(command)
    receipt = command.receipt()
    _say(page.as_json(receipt) if asked.json else page.ending(receipt, still=interrupted))
    if interrupted:
        return INTERRUPTED
    return PROVED if receipt["proved"] else NOT_PROVED


def _wait(command: HaltCommand) -> bool:
    """Wait for the proof; whether the user interrupted that."""
    import signal

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        command.wait()
    except KeyboardInterrupt:
        return True
    return False


def _hold_signals() -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The process that started this one may be among those that are killed.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def _say(text: str, to: int = 1) -> int:
    """Write to a terminal, ignoring errors: a closed one must not stop the halt."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    left = text.encode(encoding, "backslashreplace")
    with contextlib.suppress(OSError):
        while left:
            left = left[os.write(to, left) :]
    return PROVED

"""The checks of `andon doctor`.

Checks change nothing: every trial write is rolled back or deleted.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from andon.control import workers as fleet
from andon.control.doctor import coverage, grace, installation
from andon.control.doctor.check import FAIL, OK, WARN, Check, advised
from andon.control.runs.activity import doing
from andon.control.runs.runs import PAGE, every_run
from andon.control.runs.shown_state import Surroundings
from andon.core.fleet.rollout import steps_have
from andon.core.run import State
from andon.core.text import age, command
from andon.errors import AndonError
from andon.settings import Settings
from andon.store.messages.rows import Filter, RunRow
from andon.store.store import Store

# Leases are seconds long: clocks that differ by this much distort them.
CLOCK_SECONDS = 1.0
# Each commit waits for the disk at least once.
SLOW_DISK_SECONDS = 0.1
FREE_BYTES = 500_000_000
# Connections of a worker to the server, idle and while it reads (docs/guides/postgresql.md).
IDLE_CONNECTIONS, BUSY_CONNECTIONS = 2, 3
# More than this many of a kind are counted, not named.
NAMED = 3


def examine(
    open_store: Callable[[], Store], path: Path | None, settings: Settings
) -> Iterator[Check]:
    """Run every check in order; `path` is the file of an SQLite store."""
    yield from installation.lines()
    yield _pidfd()
    yield from _stop_file(settings)
    yield Check("grace", *grace.judge_orchestrator(settings))
    yield from coverage.here(settings)
    if path is not None:
        yield from _folder(path)
        if not path.exists():
            advice = "the first worker creates it: andon work FILE"
            yield Check("database", WARN, f"{path} does not exist yet", advice)
            return
    try:
        store = open_store()
    except AndonError as error:
        yield Check("database", FAIL, str(error))
        return
    with contextlib.closing(store):
        steps = partial(_steps, settings)
        for name, check in (
            ("database", _database),
            ("write", _write),
            ("clock", _clock),
            ("locks", _locks),
            ("workers", _workers),
            (coverage.BEYOND, coverage.elsewhere),
            ("signals", _signals),
            ("drain", _drains),
            ("steps", steps),
            ("runs", _stuck),
        ):
            try:
                yield from check(store)
            except AndonError as error:
                yield Check(name, FAIL, str(error))


def _pidfd() -> Check:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as error:
        advice = "dead workers are noticed by their locks instead, within 0.1 s"
        return Check("pidfd", WARN, f"not available: {error}", advice)
    return Check("pidfd", OK, "the death of a worker on this machine is noticed at once")


def _folder(path: Path) -> Iterator[Check]:
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    try:
        took = _time_to_disk(folder)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        # Only a trial write is reliable: permission bits ignore read-only disks and root's rights.
        found = f"{folder} cannot be written to: {error.strerror}"
        yield Check("folder", FAIL, found, "change its owner or mode, or use another with --store")
        return
    text = f"{folder} can be written to, {free / 1e9:.1f} GB are free"
    yield advised("folder", text, "free space" if free < FREE_BYTES else "")
    slow = "every step waits for it: use a faster disk" if took > SLOW_DISK_SECONDS else ""
    yield advised("disk", f"a write reaches it in {took * 1000:.1f} ms", slow)


def _time_to_disk(folder: Path) -> float:
    """Seconds that a commit waits for the disk, measured with a temporary file."""
    with tempfile.TemporaryFile(dir=folder) as file:
        began = time.perf_counter()
        file.write(b"andon doctor")
        file.flush()
        os.fsync(file.fileno())
        return time.perf_counter() - began


def _database(store: Store) -> Iterator[Check]:
    facts = store.facts()
    if facts["store"] == "sqlite":
        # Opening the store has already refused versions and file systems that lose data.
        yield Check("sqlite", OK, f"version {facts['sqlite']}")
        system = facts["file_system"]
        advice = "" if system else "make sure that it is a local disk"
        yield advised("file system", system or "unknown", advice)
        where = facts["path"]
    else:
        yield from _server(store, facts)
        where = facts["at"]
    yield Check("database", OK, f"{where}, schema {facts['schema']}, epoch {facts['epoch']}")


def _connections(store: Store, room: dict[str, Any]) -> Check:
    """Whether the server has connections for every worker at its busiest, and for orders."""
    workers, hosts = len(store.workers()), len(store.supervisors())
    needed = workers * BUSY_CONNECTIONS + hosts * IDLE_CONNECTIONS + room["kept"]
    found = (
        f"{room['used']} of the {room['most']} that {room['of']} are in use; {workers} workers "
        f"and {hosts} supervisors need up to {needed}, {room['kept']} of them for orders"
    )
    advice = ""
    if room["most"] - room["used"] < room["kept"] + IDLE_CONNECTIONS:
        advice = "another worker would have to wait: raise max_connections, or end what is idle"
    elif needed > room["most"]:
        advice = "raise max_connections before all workers are busy"
    return advised("connections", found, advice)


def _server(store: Store, facts: dict[str, Any]) -> Iterator[Check]:
    yield Check("postgresql", OK, f"version {facts['server_version']}")
    if facts["pooler"]:
        advice = "wake-ups and locks need a direct connection; without one andon polls"
        yield Check("pooler", WARN, "connected through a transaction pooler", advice)
    else:
        yield Check("pooler", OK, "connected directly")
        yield _connections(store, facts["connections"])
    for name in ("fsync", "full_page_writes"):
        good = facts[name] == "on"
        advice = "" if good else f"a power cut loses finished steps: ALTER SYSTEM SET {name} = on"
        yield Check(name, OK if good else FAIL, facts[name], advice)
    # `local` waits for this server's own disk; only `off` does not wait at all.
    good = facts["synchronous_commit"] != "off"
    advice = (
        "" if good else "a crash loses finished steps: ALTER SYSTEM SET synchronous_commit = on"
    )
    yield Check("synchronous_commit", OK if good else FAIL, facts["synchronous_commit"], advice)


class _Enough(Exception):
    """Raised to roll the trial transaction back."""


def _write(store: Store) -> Iterator[Check]:
    """Write in a transaction that is rolled back."""
    server = store.facts()["store"] != "sqlite"
    temporary = "TEMP " if server else ""

    def attempt(db: Any) -> Any:
        if server:  # a read-only role may create temporary tables: test an UPDATE as well
            db.execute("UPDATE andon.meta SET epoch = epoch WHERE false")
        db.execute(f"CREATE {temporary}TABLE doctor_trial (one integer)")
        db.execute("INSERT INTO doctor_trial VALUES (1)")
        raise _Enough

    began = time.perf_counter()
    try:
        store.transact(attempt)
    except _Enough:
        took = (time.perf_counter() - began) * 1000
        yield Check("write", OK, f"possible (tried and rolled back in {took:.0f} ms)")
    except AndonError as error:
        yield Check("write", FAIL, str(error))
    except Exception as error:  # noqa: BLE001 (errors of the driver are results too)
        yield Check(
            "write", FAIL, f"{type(error).__name__}: {error}", "check that this user may write"
        )


def _clock(store: Store) -> Iterator[Check]:
    before = time.time()
    theirs = store.now()
    after = time.time()
    off = max(theirs - after, before - theirs, 0.0)
    advice = "let a time service set both clocks; andon itself uses the store's"
    found = f"this machine and the store differ by {off:.3f} s"
    yield advised("clock", found, advice if off > CLOCK_SECONDS else "")
    for newest in store.runs(Filter(limit=1)):
        ahead = newest.created_at - theirs
        if ahead > CLOCK_SECONDS:
            found = f"the newest run was created {age(ahead)} in the future"
            yield Check("clock", WARN, found, "the store's clock was set back; timers fire late")


def _locks(store: Store) -> Iterator[Check]:
    folder: str | None = getattr(store, "folder", None)
    if folder is None:
        return
    locks = [path for path in Path(folder).glob("*.lock") if path.name != "open.lock"]
    free = sum(map(_is_free, locks))
    text = f"{len(locks) - free} held by live workers, {free} left by dead ones"
    yield advised("lock files", text, "the next worker removes them" if free else "")


def _is_free(path: Path) -> bool:
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _workers(store: Store) -> Iterator[Check]:
    around = Surroundings(store)
    live = around.live
    lost = [worker for worker in around.workers if worker.id not in live]
    yield advised("workers", f"{len(live)} live", "" if live else "start one: andon work FILE")
    if lost:
        are = "1 is" if len(lost) == 1 else f"{len(lost)} are"
        found = f"{are} dead or silent: {_named([worker.id for worker in lost])}"
        yield Check("workers", WARN, found, "the next worker takes over their runs")


def _drains(store: Store) -> Iterator[Check]:
    now = store.now()
    late = [worker for worker in store.fleet(inf) if fleet.overrun(worker, now)]
    for worker in late[:NAMED]:
        held = [one.run_id for one in store.held_by(worker.id, inf)]
        found = f"{worker.id} has overrun its grace period, {len(held)} in hand"
        for busy in fleet.blocked_by(store, held, now)[:1]:
            found += f": run {busy['run']} {busy['doing']}"
        yield Check("drain", WARN, found, f"kill -9 {worker.pid} on {worker.host} loses nothing")


def _steps(settings: Settings, store: Store) -> Iterator[Check]:
    longer_than = steps_have(settings.grace_seconds)
    times = store.slowest_steps(store.now() - grace.STEPS_SECONDS, longer_than)
    yield Check("steps", *grace.judge_steps(settings, times))


def _signals(store: Store) -> Iterator[Check]:
    pids = [worker.pid for worker in fleet.here(store)] or [os.getpid()]
    for pid in pids[:NAMED]:
        yield Check("signals", *grace.judge_signals(pid, grace.lines_above(pid)))


def _stop_file(settings: Settings) -> Iterator[Check]:
    path = Path(str(getattr(settings, "stop_file", "") or ".stop"))
    if path.exists():
        advice = f"a worker that is started here stops at once; to allow it: rm {path}"
        yield Check("stop file", WARN, f"{path.absolute()} exists", advice)


def _stuck(store: Store) -> Iterator[Check]:
    around = Surroundings(store)
    unfinished = (State.QUEUED, State.RUNNING, State.SUSPENDED, State.PAUSED)
    counts = Counter[str]()
    waiting: list[RunRow] = []
    for row in every_run(store, Filter(states=unfinished, limit=PAGE)):
        counts[around.state_of(row)] += 1
        if around.is_stranded(row):
            waiting.append(row)
        if counts.total() >= 20 * PAGE:
            break
    yield Check(
        "runs", OK, ", ".join(f"{n} {word}" for word, n in counts.items()) or "none unfinished"
    )
    for rows, name, advice in (
        (waiting, "stranded runs", "start a worker that takes them: andon work FILE"),
        (_page(store, State.STRANDED), "stranded runs", "andon show says where code differs"),
        (_page(store, State.DEAD), "dead runs", "andon dead list says why"),
    ):
        if rows:
            more = " or more" if len(rows) == PAGE else ""
            example = f"{rows[0].id}: {doing(rows[0], (), around)}"
            yield Check(name, WARN, f"{len(rows)}{more}, e.g. {example}", advice)
    asks = store.asks()
    if asks:
        wait = "1 waits" if len(asks) == 1 else f"{len(asks)} wait"
        found = f"{wait} for a person, in {_named([ask.run_id for ask in asks])}"
        yield Check("asks", WARN, found, command("show", asks[0].run_id))


def _page(store: Store, state: State) -> list[RunRow]:
    return store.runs(Filter(states=(state,), limit=PAGE))


def _named(ids: list[str]) -> str:
    return ", ".join(ids[:NAMED]) + (" ..." if len(ids) > NAMED else "")

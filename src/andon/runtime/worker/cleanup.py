"""Cleanup functions of runs and of the worker, and the scratch folders of runs.

Each function is called once, the last registered first, within a limit; an error does not stop the
others. Plain functions run in threads, so one that hangs delays neither the others nor the exit.
"""

import asyncio
import contextlib
import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from andon.host import proc
from andon.runtime.attempt.exit import log

# Limit of one cleanup: it removes things nearby, so seconds are enough.
CLEANUP_SECONDS = 5.0

_of_worker: list[Callable[[], Any]] = []


def cleanup(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """Call `function` when this worker ends, after it returned its runs; the last one first."""
    _of_worker.append(lambda: function(*args, **kwargs))
    return function


async def of_worker(left: Callable[[], float]) -> None:
    await carry_out(_of_worker, "the worker", left)


async def carry_out(
    cleanups: list[Callable[[], Any]], whose: str, left: Callable[[], float]
) -> None:
    """Call and forget each function, the last first; `left` returns the seconds left in total."""
    while cleanups:
        one = cleanups.pop()
        limit = min(CLEANUP_SECONDS, left() / 2)  # half: one that hangs leaves time for the others
        doing = asyncio.ensure_future(call(one))
        await asyncio.wait({doing}, timeout=limit)
        # Do not wait after cancelling either: the function may ignore the cancellation.
        if not doing.done():
            doing.cancel()
            log.error("%s: a cleanup did not end within %.1f s; going on without it", whose, limit)
        elif doing.cancelled() or doing.exception() is not None:
            failed = None if doing.cancelled() else doing.exception()
            log.error("%s: a cleanup failed", whose, exc_info=failed)


class _Failed:
    def __init__(self, error: BaseException) -> None:
        self.error = error


async def call(one: Callable[[], Any]) -> None:
    """Await a coroutine here; call a plain function in a thread, which dies with the process."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Any] = loop.create_future()

    def work() -> None:
        outcome: Any = None
        try:
            outcome = one()
        except BaseException as error:  # noqa: BLE001 (it is raised below)
            outcome = _Failed(error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits any more
            loop.call_soon_threadsafe(_resolve, ended, outcome)

    threading.Thread(target=work, name="andon-cleanup", daemon=True).start()
    outcome = await ended
    if isinstance(outcome, _Failed):
        what = f"it raised {type(outcome.error).__name__}"
        raise RuntimeError(what) from outcome.error  # noqa: TRY004
    if asyncio.iscoroutine(outcome) or isinstance(outcome, asyncio.Future):
        await outcome


def _resolve(ended: "asyncio.Future[Any]", outcome: Any) -> None:
    if not ended.done():
        ended.set_result(outcome)


# ── the files of a run ────────────────────────────────────────────────────────────────────────


def scratch(run_id: str) -> Path:
    """Create a folder for one attempt of a run; its name says which run and process own it."""
    pid = os.getpid()
    whose = f"{_prefix(run_id)}{pid}-{proc.start_ticks(pid)}-"
    return Path(tempfile.mkdtemp(prefix=whose))


def _prefix(run_id: str) -> str:
    return f"andon-{hashlib.sha256(run_id.encode()).hexdigest()[:16]}-"


def sweep(run_id: str) -> None:
    """Remove folders that earlier attempts of a run left here, if their processes are gone."""
    for path in Path(tempfile.gettempdir()).glob(f"{_prefix(run_id)}*"):
        parts = path.name.split("-")
        if len(parts) > 3 and parts[2].isdigit() and parts[3].isdigit():
            alive = proc.alive(int(parts[2]), int(parts[3]))
            with contextlib.suppress(OSError):  # swept by another process, or replaced by a link
                if not alive and path.lstat().st_uid == os.getuid():
                    shutil.rmtree(path, ignore_errors=True)

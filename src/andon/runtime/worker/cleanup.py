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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from andon.host import proc
from andon.runtime.attempt.exit import log
from andon.runtime.futures import in_new_thread

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
    cleanups: list[Callable[[], Any]], owner: str, left: Callable[[], float]
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
            log.error("%s: a cleanup did not end within %.1f s; going on without it", owner, limit)
        elif doing.cancelled() or doing.exception() is not None:
            failed = None if doing.cancelled() else doing.exception()
            log.error("%s: a cleanup failed", owner, exc_info=failed)


async def call(one: Callable[[], Any]) -> None:
    """Await a coroutine here; call a plain function in a thread, which dies with the process."""
    done = in_new_thread(one, "andon-cleanup")
    await asyncio.wait({done})
    error = done.exception()
    if error is not None:  # not as it is: SystemExit would end the event loop
        raise RuntimeError(f"it raised {type(error).__name__}") from error
    outcome = done.result()
    if asyncio.iscoroutine(outcome) or isinstance(outcome, asyncio.Future):
        await outcome


def scratch(run_id: str) -> Path:
    """Create a folder for one attempt of a run; its name says which run and process own it."""
    pid = os.getpid()
    prefix = f"{_prefix(run_id)}{pid}-{proc.start_ticks(pid)}-"
    return Path(tempfile.mkdtemp(prefix=prefix))


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

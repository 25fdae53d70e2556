"""Cleaning up: once, the last registered first, each with a limit; an error stops nothing.

Plain functions are called in a thread: one that hangs holds up neither the others nor the exit.
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

# Each of them: what has to be tidied up is near.
CLEANUP_SECONDS = 5.0

_of_worker: list[Callable[[], Any]] = []


def cleanup(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """Call `function` when this worker ends, after its runs were given back; the last one first."""
    _of_worker.append(lambda: function(*args, **kwargs))
    return function


async def of_worker(left: Callable[[], float]) -> None:
    await carry_out(_of_worker, "the worker", left)


async def carry_out(
    cleanups: list[Callable[[], Any]], whose: str, left: Callable[[], float]
) -> None:
    """Call and forget them, the last one first. `left`: how many seconds there are at all."""
    while cleanups:
        one = cleanups.pop()
        limit = min(CLEANUP_SECONDS, left() / 2)  # one that hangs leaves time for the others
        doing = asyncio.ensure_future(call(one))
        await asyncio.wait({doing}, timeout=limit)
        if not doing.done():  # nor may it be waited for after its cancellation
            doing.cancel()
            log.error("%s: a cleanup did not end within %.1f s; going on without it", whose, limit)
        elif doing.cancelled() or doing.exception() is not None:
            failed = None if doing.cancelled() else doing.exception()
            log.error("%s: a cleanup failed", whose, exc_info=failed)


class _Failed:
    def __init__(self, error: BaseException) -> None:
        self.error = error


async def call(one: Callable[[], Any]) -> None:
    """Coroutines here; what is plain in a thread of its own, which dies with the process."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Any] = loop.create_future()

    def work() -> None:
        outcome: Any = None
        try:
            outcome = one()
        except BaseException as error:  # noqa: BLE001 (it is raised below)
            outcome = _Failed(error)
        with contextlib.suppress(RuntimeError):  # nobody waits any more
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
    """A new folder for one attempt of a run; whose it is can be read from its name."""
    pid = os.getpid()
    whose = f"{_prefix(run_id)}{pid}-{proc.start_ticks(pid)}-"
    return Path(tempfile.mkdtemp(prefix=whose))


def _prefix(run_id: str) -> str:
    return f"andon-{hashlib.sha256(run_id.encode()).hexdigest()[:16]}-"


def sweep(run_id: str) -> None:
    """Remove what earlier attempts of a run left here, whose processes are gone."""
    for path in Path(tempfile.gettempdir()).glob(f"{_prefix(run_id)}*"):
        parts = path.name.split("-")
        if len(parts) > 3 and parts[2].isdigit() and parts[3].isdigit():
            alive = proc.alive(int(parts[2]), int(parts[3]))
            with contextlib.suppress(OSError):  # somebody else has swept, or put a link there
                if not alive and path.lstat().st_uid == os.getuid():
                    shutil.rmtree(path, ignore_errors=True)

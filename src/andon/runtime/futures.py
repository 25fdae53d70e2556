"""Futures: work that cannot be cancelled, and functions in threads of their own."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any


def retrieve(future: "asyncio.Future[Any]") -> None:
    """Mark a future's error as seen: the next awaited write meets the same one."""
    if not future.cancelled():
        future.exception()


async def to_the_end(future: "asyncio.Future[Any]") -> Any:
    """Await work that cannot be cancelled; raise a cancellation only after it has ended."""
    cancelled = None
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as error:
            cancelled = error
        except BaseException:  # noqa: BLE001 (`future.result()` raises it below)
            break
    if cancelled is not None and future.exception() is None:
        raise cancelled
    return future.result()


async def close(store: Any) -> None:
    """Close a store in a thread; a cancellation must not prevent the close from starting."""
    await to_the_end(asyncio.ensure_future(asyncio.to_thread(store.close)))


def in_new_thread(function: Callable[[], Any], name: str) -> "asyncio.Future[Any]":
    """Call a function in a daemon thread of its own, which dies with the process."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    threading.Thread(target=_work, args=(function, loop, done), name=name, daemon=True).start()
    return done


def _work(
    function: Callable[[], Any], loop: asyncio.AbstractEventLoop, done: "asyncio.Future[Any]"
) -> None:
    result: Any = None
    error: BaseException | None = None
    try:
        result = function()
    except BaseException as raised:  # noqa: BLE001 (the caller gets it, whatever it is)
        error = raised
    if isinstance(error, StopIteration):  # no future can hold it
        error = RuntimeError("it raised StopIteration").with_traceback(error.__traceback__)
    with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
        loop.call_soon_threadsafe(_resolve, done, result, error)
    del error, done  # the error holds this frame and the future the error: a cycle


def _resolve(done: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)

"""Steps in processes of their own, which can be ended where cancellation does not reach.

A process is spawned, never forked; it has a session of its own, so that everything it starts ends
with it. A call is over only when its process is gone or has answered. A process that has answered
is kept warm for the next step, unless its function left a thread, which would go on without its
run.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from andon.core.values import value
from andon.errors import BadInput, NotStorable
from andon.host import proc
from andon.runtime.attempt import branch
from andon.runtime.attempt.error_text import Described
from andon.runtime.futures import to_the_end
from andon.runtime.operations.calls import NAMELESS, reference_of
from andon.runtime.operations.operation import is_async
from andon.runtime.processes import attribution
from andon.runtime.processes.step_child import LENGTH, StepResponse

if TYPE_CHECKING:
    from andon.runtime.attempt.branch import Tasks

# A spawn costs some 60 ms, and an idle process some 20 MB.
MOST_IDLE = 2
# Between two checks of a group that was killed.
LOOK_SECONDS = 0.002
# Killed processes are gone long before.
CLOSE_SECONDS = 0.5
# An answer sent before the process ended has arrived by then.
LAST_WORDS_SECONDS = 0.2


def refuse_unreachable(step: str, function: Callable[..., Any]) -> None:
    """Refuse a function that another process cannot call, before anything executes."""
    if is_async(function):
        raise BadInput(
            f"step {step!r}: process=True expects a plain function, found an async one. Leave "
            "process=True out: an async step can be cancelled in its worker."
        )
    if reference_of(function) == NAMELESS:
        raise BadInput(
            f"step {step!r}: process=True expects a function that can be found by its name, "
            f"found {function!r}. Define it at the top level of a module, and pass it as it is."
        )
    module = sys.modules[function.__module__]
    if function.__module__ == "__main__" and getattr(module, "__file__", None) is None:
        raise BadInput(
            f"step {step!r}: process=True expects a function out of a file, found one that was "
            "defined interactively. Put it into a module."
        )


class Processes:
    """The idle processes of one worker, kept for its next steps."""

    def __init__(self) -> None:
        self._idle: list[_Process] = []
        self._closed = False

    def caller(self, tasks: "Tasks", step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a plain function as a coroutine that executes it in another process."""

        async def call(*args: Any, **kwargs: Any) -> Any:
            request = _request(step, function, args, kwargs, attribution.mark_here())
            inside = branch.inside.set(None)  # processes started here are andon's
            try:
                return await self._call(tasks, request)
            finally:
                branch.inside.reset(inside)

        return call

    async def _call(self, tasks: "Tasks", request: bytes) -> Any:
        process = self._take()
        tasks.executing.add(process)
        try:
            answer = msgspec.json.decode(await process.ask(request), type=StepResponse)
            if not answer.at_rest:
                await process.end()
        except BaseException:
            # Cancelled, timed out or dead: the call is over only once the process is gone.
            await to_the_end(asyncio.ensure_future(process.end()))
            raise
        finally:
            tasks.ended_elsewhere(process)
        self._keep(process)
        return _outcome(answer)

    def _take(self) -> "_Process":
        while self._idle:
            process = self._idle.pop()
            if not process.gone.done():
                return process
        return _Process()

    def _keep(self, process: "_Process") -> None:
        if process.gone.done():
            return
        if len(self._idle) < MOST_IDLE and not self._closed:
            self._idle.append(process)
        else:
            process.kill()

    async def close(self) -> None:
        self._closed = True
        idle, self._idle = self._idle, []
        for process in idle:
            process.kill()
        if idle:
            await asyncio.wait({process.gone for process in idle}, timeout=CLOSE_SECONDS)


class _Process:
    """One process, which executes one call at a time."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._socket, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            # -P: files in the current folder must not shadow the standard library.
            command = [
                "-P",
                "-m",
                "andon.runtime.processes.step_child",
                str(number),
                str(os.getpid()),
            ]
            # Spawned on the loop's thread: the process dies with the thread that started it.
            self._process = subprocess.Popen(  # noqa: S603 (our own module)
                [sys.executable, *command],
                pass_fds=(number,),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.gone: asyncio.Future[None] = loop.create_future()
        self._pidfd = os.pidfd_open(self._process.pid)
        attribution.own.add(self._process.pid)
        loop.add_reader(self._pidfd, self._ended)

    def _ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._process.wait()
        attribution.own.discard(self._process.pid)
        self.gone.set_result(None)
        if self._streams is None:
            self._socket.close()
        else:
            self._streams[1].close()

    async def ask(self, request: bytes) -> bytes:
        asking = asyncio.ensure_future(self._ask(request))
        try:
            ends: set[asyncio.Future[Any]] = {asking, self.gone}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                await asyncio.wait({asking}, timeout=LAST_WORDS_SECONDS)
            if asking.done() and asking.exception() is None:
                return asking.result()
        finally:
            asking.cancel()
        await asyncio.wait({self.gone})
        raise ChildProcessError(_obituary(self._process.returncode))

    async def _ask(self, request: bytes) -> bytes:
        if self._streams is None:
            self._streams = await asyncio.open_connection(sock=self._socket)
        reader, writer = self._streams
        writer.write(LENGTH.pack(len(request)) + request)
        await writer.drain()
        [length] = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        return await reader.readexactly(length)

    def kill(self) -> None:
        """Kill the session's group, only while its number certainly belongs to the process."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def end(self) -> None:
        """Kill the process, and return when it and all in its group are gone."""
        self.kill()
        await asyncio.wait({self.gone})
        while proc.in_group(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await asyncio.sleep(LOOK_SECONDS)


def _request(
    step: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    mark: int | None,
) -> bytes:
    module, _, name = reference_of(function).partition(":")
    file = getattr(sys.modules[module], "__file__", None)
    what = f"the arguments of step {step!r}"
    request = {
        "paths": [path for path in sys.path if isinstance(path, str)],
        "module": module,
        "file": None if file is None else str(Path(file).resolve()),
        "name": name,
        "step": step,
        "mark": mark,
        "args": msgspec.Raw(value.encode(args, what)),
        "kwargs": msgspec.Raw(value.encode(kwargs, what)),
    }
    return msgspec.json.encode(request)


def _outcome(answer: StepResponse) -> Any:
    if answer.error is None:
        return msgspec.json.decode(answer.result)
    if answer.error["type"] == "NotStorable":
        raise NotStorable(answer.error["message"])
    raise Described(answer.error)


def _obituary(code: int) -> str:
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name} before it had an answer"
    return f"its process ended by itself (exit {code}) before it had an answer"

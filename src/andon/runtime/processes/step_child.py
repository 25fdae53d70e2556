"""The process of a step: `python -m andon.runtime.processes.step_child SOCKET PARENT`.

The parent sends one call after another: a function's module and name with JSON arguments. The
process answers each with a JSON result. It ends when the parent closes the socket or dies, or when
it is killed.
"""

import contextlib
import ctypes
import importlib
import importlib.util
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from andon.core.values import value
from andon.errors import NotFound
from andon.host import mark
from andon.runtime.attempt.error_text import describe
from andon.runtime.attempt.tracebacks import trace
from andon.runtime.operations import calls

LENGTH = struct.Struct("!Q")  # precedes each message
PR_SET_PDEATHSIG = 1
MAIN = "andon_main"  # name of the parent's main module here: it must not run again

_LIBRARY = os.path.dirname(os.__file__)
_STANDARD = [
    path
    for path in sys.path
    if path.startswith(_LIBRARY) and "-packages" not in path.removeprefix(_LIBRARY)
]


class StepRequest(msgspec.Struct, kw_only=True):
    """A call from the parent."""

    paths: list[str]
    module: str
    file: str | None
    name: str
    step: str
    mark: int | None = None  # for processes that the function starts
    args: list[Any]
    kwargs: dict[str, Any]


class StepResponse(msgspec.Struct, kw_only=True):
    """The outcome of a call."""

    result: msgspec.Raw = msgspec.Raw(b"null")
    error: dict[str, Any] | None = None
    at_rest: bool = True  # no thread that the function started still executes


def main(descriptor: int, parent: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before prctl
        return
    os.set_inheritable(descriptor, False)
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rwb") as stream:
        while (raw := _read(stream)) is not None:
            outcome = _carry_out(raw)
            outcome.at_rest = len(sys._current_frames()) == 1  # noqa: SLF001 (counts threads of `_thread` too)
            answer = msgspec.json.encode(outcome)
            stream.write(LENGTH.pack(len(answer)) + answer)
            stream.flush()


def _read(stream: Any) -> bytes | None:
    head = stream.read(LENGTH.size)
    return stream.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else None


def _carry_out(raw: bytes) -> StepResponse:
    try:
        request = msgspec.json.decode(raw, type=StepRequest)
        # Standard library first: the parent's folder may hold a queue.py.
        sys.path[:] = [*_STANDARD, *(path for path in request.paths if path not in _STANDARD)]
        function = find(request)
        args, kwargs = calls.typed(function, request.args, request.kwargs)
        with _marked(request.mark):
            result = function(*args, **kwargs)
        what = f"the result of step {request.step!r}"
        result_raw, _ = value.encode_result(result, what, value.result_decoder(function))
        return StepResponse(result=msgspec.Raw(result_raw))
    except BaseException as error:  # noqa: BLE001 (also sys.exit: the parent must get an answer)
        return StepResponse(error={**describe(error), "traceback": trace(error)})


@contextlib.contextmanager
def _marked(number: int | None) -> Iterator[None]:
    """Mark this process for the duration of a call; processes started in it keep the mark."""
    before = None if number is None else mark.begin(number)
    try:
        yield
    finally:
        if before is not None:
            mark.finish(before)


def find(request: StepRequest) -> Callable[..., Any]:
    """Return the named function, loaded from the same file as in the parent."""
    name = MAIN if request.module == "__main__" else request.module
    known = sys.modules.get(name)
    if known is not None and not _is_from(getattr(known, "__file__", None), request.file):
        name = f"andon_{name}"  # here that name is another module
        known = sys.modules.get(name)
    if known is None:
        _load(name, request.file)
    found = calls.named(name, request.name)
    if not callable(found):
        raise NotFound(f"step {request.step!r}: {request.file or name} has no {request.name!r}")
    return found  # type: ignore[no-any-return]


def _is_from(one: str | None, other: str | None) -> bool:
    if one is None or other is None:
        return one is other
    return os.path.realpath(one) == os.path.realpath(other)


def _load(name: str, file: str | None) -> None:
    calls.reading = True
    try:
        if _is_from(_origin(name), file):
            importlib.import_module(name)
        elif file is None:
            raise NotFound(f"there is no module {name!r} here")
        else:
            _load_file(name, file)
    finally:
        calls.reading = False


def _origin(name: str) -> str | None:
    """Return the file that an import of this name would read."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    return spec.origin if spec is not None and spec.has_location else None


def _load_file(name: str, file: str) -> None:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

"""A child of the supervisor: its spec, its state, and how it is spawned.

The supervisor forks and execs from its only thread. The new process has a session of its own, is in
its tree before it executes anything, dies with the supervisor, and inherits no descriptor, signal
setting, user or variable that was not meant for it.
"""

import os
import resource
import signal
from dataclasses import dataclass, field
from typing import Any

from andon.core.fleet.watchdog import Watched
from andon.host import descriptors
from andon.supervisor.children.logs import Pipe
from andon.supervisor.spec import LIVE, ChildSpec
from andon.supervisor.trees.tree import Tree

NOT_EXECUTABLE, NOT_FOUND = 126, 127


@dataclass(slots=True)
class Child:
    """One child: its spec and its current state."""

    spec: ChildSpec
    state: str = "new"
    run: str | None = None
    env: dict[str, str] = field(default_factory=dict)  # added by the permission to start
    pid: int = 0
    ticks: int = 0
    pidfd: int = -1
    adopted: bool = False  # started by a supervisor that is dead: its exit code is lost
    tree: Tree | None = None
    started_at: float = 0.0
    began: float = 0.0
    ends: list[float] = field(default_factory=list)
    due: float | None = None
    deadline: float | None = None  # end of its grace, or of its wait for permission
    grace: float = 0.0
    asked: str = ""  # why it was asked to end: kill, term, halt, drain, stall, lost contact
    order: str = ""
    code: int | None = None
    signal: int | None = None
    starts: int = 0
    ping_fd: int = -1
    ping_rest: bytes = b""
    ping: dict[str, Any] = field(default_factory=dict)
    watched: Watched | None = None
    stalled: bool = False  # and already recorded
    pipes: list[Pipe] = field(default_factory=list)
    log: str = ""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def kind(self) -> str:
        return self.spec.kind

    @property
    def alive(self) -> bool:
        return self.state in LIVE

    def pids(self) -> list[int]:
        """List its living processes."""
        return self.tree.pids() if self.tree is not None else []

    def exit_code(self) -> int:
        """Return the exit code as a shell would report it."""
        if self.signal:
            return 128 + self.signal
        return 1 if self.code is None else self.code

    def identity(self) -> dict[str, Any]:
        return {
            "child": self.name,
            "kind": self.kind,
            "run": self.run,
            "pid": self.pid or None,
            "start_ticks": self.ticks or None,
        }

    def describe(self) -> dict[str, Any]:
        return {
            **self.identity(),
            "state": self.state,
            "started_at": self.started_at or None,
            "starts": self.starts,
            "code": self.code,
            "signal": self.signal,
            "adopted": self.adopted,
            "asked": self.asked,
            "log": self.log or None,
            "ping": self.ping or None,
        }


@dataclass(slots=True)
class ChildEnds:
    """The child's ends of its pipes and sockets."""

    out: int
    err: int
    named: dict[str, int] = field(default_factory=dict)  # variable → descriptor

    def close(self) -> None:
        for fd in {self.out, self.err, *self.named.values()}:
            descriptors.close(fd)


def spawn(child: Child, ends: ChildEnds, limits: tuple[int, int]) -> int:
    """Fork and exec, and return the pid; OSError if no process can be made."""
    env = {**child.spec.env, **child.env}
    env |= {name: str(fd) for name, fd in ends.named.items()}
    pid = os.fork()
    if pid:
        return pid
    code = NOT_EXECUTABLE
    try:
        _prepare(child, ends, limits)
        os.execvpe(child.spec.argv[0], child.spec.argv, env)  # noqa: S606
    except FileNotFoundError as error:
        code = NOT_FOUND
        _complain(child, error)
    except BaseException as error:  # noqa: BLE001 (a copy of the supervisor must never run on)
        _complain(child, error)
    finally:
        os._exit(code)


def _complain(child: Child, error: BaseException) -> None:
    name = child.spec.argv[0]
    text = f"andon: cannot execute {name!r}: {_why(name, error)}\n"
    os.write(2, text.encode("utf-8", "replace"))


def _why(name: str, error: BaseException) -> str:
    match error:
        case FileNotFoundError() if "/" not in name:
            return "there is no such program in PATH"
        case FileNotFoundError() if os.path.exists(name):
            return "the interpreter that its first line names is not there"
        case FileNotFoundError():
            return "there is no such file"
        case PermissionError() if os.path.isdir(name):
            return "it is a folder"
        case PermissionError():
            return "permission denied; make it executable: chmod +x"
        case _:
            return str(error)


def _prepare(child: Child, ends: ChildEnds, limits: tuple[int, int]) -> None:
    """Set the process up between fork and exec; the order matters."""
    if not child.spec.stdin:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(ends.out, 1)
    os.dup2(ends.err, 2)
    _reset_signals()
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    # The watchdog asks a stalled worker for its stack by SIGABRT, which must not dump its memory.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    assert child.tree is not None
    child.tree.enter()  # session, mechanism, user, parent-death signal: in this order
    _keep_only(ends.named.values())  # after `enter`, which may need descriptors of the tree
    if child.spec.cwd:
        os.chdir(child.spec.cwd)


def _keep_only(fds: Any) -> None:
    low = 3
    for fd in sorted(fds):
        os.closerange(low, fd)
        os.set_inheritable(fd, True)
        low = fd + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))


def _reset_signals() -> None:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            continue
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])

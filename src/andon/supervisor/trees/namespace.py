"""Kill by pid namespace: when its init dies, the kernel kills everything in it.

    supervisor → relay (this host's pids) → init (PID 1 inside, reaps) → the command

The relay forwards signals and ends as the command ended. No process can leave a pid namespace, so
the death of the supervisor ends all of it: the relay gets a parent-death signal, then init gets
one, and the kernel kills the rest. Without root this takes a user namespace, in which sudo does not
work. A process inside does not know its pid outside, so this is for commands and not for workers.
Grade B.
"""

import contextlib
import os
import resource
import signal
from typing import NoReturn

from andon.host import proc, syscalls
from andon.supervisor.trees.tree import Tree, TreeSpec, become, send
from andon.supervisor.trees.walk import Walk, WalkTree

GRADES = {"kill": "B", "pause": "C", "parent_death": "A", "by": "pidns"}


class NamespaceTree(WalkTree):
    """A relay, an init, and every process inside the namespace."""

    grades = GRADES

    def _join(self) -> None:
        """Enter a new namespace; returns only in the process that will become the command."""
        _new_namespace()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        syscalls.die_with_parent()
        status_out, status_in = os.pipe()
        init = os.fork()
        if init:
            _relay(init, status_out)
        syscalls.die_with_parent()
        with contextlib.suppress(OSError):
            syscalls.mount_proc()
        command = os.fork()
        if command:
            _reap(command, status_in)
        # Leave the session of relay and init: a command that signals its own group would
        # otherwise get the signal three times.
        with contextlib.suppress(PermissionError):
            os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if self.uid is not None:
            become(self.uid)

    def _die_with_parent(self) -> None:
        """Do nothing: inside, init is the parent, and its death already ends every process."""

    def kill(self) -> None:
        """Kill init first: once it is dead nothing inside can fork."""
        if proc.start_ticks(self.pid) == self.ticks:
            send(proc.children(self.pid), signal.SIGKILL)
        super().kill()


def _new_namespace() -> None:
    try:
        syscalls.unshare(syscalls.NEWPID | syscalls.NEWNS)
    except PermissionError:
        uid, gid = os.geteuid(), os.getegid()
        syscalls.unshare(syscalls.NEWUSER | syscalls.NEWPID | syscalls.NEWNS)
        for file, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{file}", "w") as out:
                out.write(text)


def _let_go(kept: int) -> None:
    """Close the supervisor's descriptors: one left open here would hide the end of a stream."""
    os.closerange(3, kept)
    os.closerange(max(kept + 1, 3), min(os.sysconf("SC_OPEN_MAX"), 1 << 20))


def _relay(init: int, status_out: int) -> NoReturn:
    _let_go(status_out)
    while True:
        number = signal.sigwait(signal.valid_signals())
        if number != signal.SIGCHLD:
            with contextlib.suppress(OSError):
                os.kill(init, number)
            continue
        done, status = os.waitpid(init, os.WNOHANG)
        if done:
            _end_as(int(os.read(status_out, 16) or status))


def _end_as(status: int) -> NoReturn:
    """End by the command's signal: a command may also exit with 128 + n by itself."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump of the relay has no use
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 255)


def _reap(command: int, status_in: int) -> NoReturn:
    """Run as PID 1 inside, and write the command's wait status to `status_in` when it ends.

    PID 1 cannot die of a signal that it sends itself, so it cannot pass the status on by dying.
    """
    _let_go(status_in)
    while True:
        number = signal.sigwait(signal.valid_signals())
        if number != signal.SIGCHLD:
            with contextlib.suppress(OSError):
                os.kill(command, number)
            continue
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == command:
                    os.write(status_in, b"%d" % found[1])
                    os._exit(0)


class Namespace(Walk):
    """A walk that gives each command its own pid namespace."""

    grades = GRADES

    def _tree(self, spec: TreeSpec) -> Tree:
        return NamespaceTree(self, spec) if spec.kind == "command" else WalkTree(self, spec)

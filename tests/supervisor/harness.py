"""A real supervisor with real children, which are found again by a mark in their environment."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from andon.supervisor.trees.cgroup import own_folder
from andon.supervisor.trees.tree import Unfit

HERE = Path(__file__).parent
SOURCES = str(HERE.parent.parent / "src")
PATIENCE = 30.0
T = TypeVar("T")


def until(look: Callable[[], T | None], what: str = "") -> T:
    """Polls until it is true."""
    end = time.monotonic() + PATIENCE
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < end, f"never: {what or look}"
        time.sleep(0.005)


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(self._path)


class Supervised:
    """One supervisor: the orders it gets, and everything that can be observed of it."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home, self.folder = home, folder
        self.mark = f"mark-{folder.name}-{os.urandom(4).hex()}"
        self.process: subprocess.Popen[bytes] | None = None
        self.control = False
        self._serial = 0

    # ── starting ──────────────────────────────────────────────────────────────────────────────

    def child(self, name: str, shape: str = "", **more: Any) -> dict[str, Any]:
        """A child of that shape, or of an argv; found by its mark."""
        script = [sys.executable, "-S", "-E", str(HERE / "shapes.py"), shape]
        env = {"PATH": os.environ["PATH"], "MARK": self.mark, "READY": str(self.ready(name))}
        env |= more.pop("env", {})
        usual = {"name": name, "kind": "worker", "argv": script, "env": env, "restart": "always"}
        return {**usual, **more}

    def ready(self, name: str) -> Path:
        return self.folder / f"ready-{name}"

    def with_control(self) -> dict[str, Any]:
        self.control = True
        if not (self.folder / "orders").exists():
            os.mkfifo(self.folder / "orders")
        argv = [sys.executable, "-S", "-E", str(HERE / "fake_control_process.py"), str(self.folder)]
        return {"name": "control", "kind": "control", "argv": argv, "env": {"CONTROL": self.mark}}

    def start(
        self,
        *children: dict[str, Any],
        settings: dict[str, Any] | None = None,
        faults: str = "",
        files: int = 0,
        path: list[str] | None = None,
        before: list[str] | None = None,
        **more: Any,
    ) -> "Supervised":
        spec = {"home": str(self.home), "children": children, "settings": settings or {}, **more}
        read, write = os.pipe()
        os.write(write, json.dumps(spec).encode())
        os.close(write)
        self._serial += 1
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([*(path or []), SOURCES])}
        env.pop("ANDON_FAULTS", None)
        if faults:
            env["ANDON_FAULTS"] = faults
        argv = [sys.executable, "-m", "andon.supervisor", "--spec-fd", str(read)]
        if files:
            argv = ["/bin/sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *argv]
        argv = [*(before or []), *argv]
        with open(self.folder / "stdout", "ab") as out, open(self.folder / "stderr", "ab") as err:
            self.process = subprocess.Popen(
                argv,
                pass_fds=[read, err.fileno()],
                env=env,
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
            )
        os.close(read)
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        """Ends every process that a test left."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        end = time.monotonic() + PATIENCE
        while (left := self.marked() + self.marked("CONTROL")) and time.monotonic() < end:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    continue
        assert "mistake" not in self.said()
        _remove_cgroups(self.pid if self.process is not None else 0)

    # ── observation ───────────────────────────────────────────────────────────────────────────

    def marked(self, variable: str = "MARK") -> list[int]:
        """Every live process of ours, whatever became of its parents; from the kernel."""
        found, wanted = [], f"{variable}={self.mark}".encode()
        for name in os.listdir("/proc"):
            if name.isdigit() and state_of(int(name)) not in ("", "Z", "X"):
                try:
                    environ = Path(f"/proc/{name}/environ").read_bytes()
                except OSError:
                    continue
                if wanted in environ.split(b"\0"):
                    found.append(int(name))
        return found

    def is_ready(self, *names: str, count: int = 1) -> None:
        for name in names:
            until(
                lambda name=name: len(list(self.folder.glob(f"ready-{name}.*"))) >= count,  # type: ignore[misc]
                f"{name} ready: {self.said()}",
            )

    def said(self) -> str:
        path = self.folder / "stderr"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def says(self, text: str, count: int = 1) -> None:
        until(lambda: self.said().count(text) >= count, f"{text!r} in {self.said()}")

    def events(self, kind: str = "") -> list[dict[str, Any]]:
        try:
            lines = (self.folder / "events").read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        return [each for each in found if not kind or each.get("event") == kind]

    def event(self, kind: str, **wanted: Any) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            for each in self.events(kind):
                if wanted.items() <= each.items():
                    return each
            return None

        return until(look, f"{kind} {wanted} in {self.events()}")

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ask({"do": "status"})["status"]
        return found

    def state(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = next(c for c in self.status()["children"] if c["child"] == name)
        return found

    def is_in(self, name: str, state: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            found = self.state(name)
            return found if found["state"] == state else None

        return until(look, f"{name} {state}")

    # ── orders ────────────────────────────────────────────────────────────────────────────────

    @property
    def address(self) -> str:
        def look() -> str:
            for path in (self.home / "run").glob("*.json"):
                entry = json.loads(path.read_text() or "{}")
                if entry.get("pid") == self.pid:
                    return str(entry["socket"])
            return ""

        return until(look, f"a socket: {self.said()}")

    def connect(self) -> socket.socket:
        own = socket.socket(socket.AF_UNIX)
        own.connect(self.address)  # waits while the queue is full
        own.settimeout(PATIENCE)
        return own

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """The last answer to a JSON line."""
        with self.connect() as own:
            own.sendall(json.dumps(message).encode() + b"\n")
            for answer in _lines(own):
                if "progress" not in answer:
                    return answer
        raise AssertionError("no answer")

    def halt(self) -> dict[str, Any]:
        receipt: dict[str, Any] = self.ask({"do": "halt"})["receipt"]
        return receipt

    def http(self, method: str, path: str, body: str | None = None) -> tuple[int, dict[str, Any]]:
        connection = UnixConnection(self.address)
        connection.request(method, path, body)
        response = connection.getresponse()
        found = json.loads(response.read())
        connection.close()
        return response.status, found

    def order(self, **message: Any) -> None:
        """Through the control process, which must run: a pipe without a reader keeps nothing."""
        self.event("hello")
        fd = os.open(self.folder / "orders", os.O_RDWR)
        os.write(fd, json.dumps(message).encode() + b"\n")
        os.close(fd)

    def logs(self, name: str) -> bytes:
        return b"".join(path.read_bytes() for path in (self.home / "logs").glob(f"{name}*.log"))


def _lines(own: socket.socket) -> Iterator[dict[str, Any]]:
    with own.makefile("rb") as file:
        for line in file:
            yield json.loads(line)


def _remove_cgroups(pid: int) -> None:
    """Those of a supervisor that was killed; nothing else would remove them."""
    try:
        above = own_folder()
    except Unfit:
        return
    for path in above.glob(f"andon-{pid}-*"):
        for folder, _, _ in os.walk(path, topdown=False):
            try:
                os.rmdir(folder)
            except OSError:
                continue

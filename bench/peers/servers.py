"""The servers that come with no Python package, each started in a folder on free ports."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from driver import free_port, spawn, until


def ask(method: str, url: str, body: Any = None) -> tuple[int, Any]:
    content = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json", "accept": "application/json"}
    request = urllib.request.Request(url, content, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            text, status = answer.read(), answer.status
    except urllib.error.HTTPError as error:
        text, status = error.read(), error.code
    return status, json.loads(text) if text else None


def restate(folder: Path) -> tuple[str, str]:
    """Restate's server; returns the addresses of its admin API and of its ingress."""
    admin, ingress, fabric = (free_port() for _ in range(3))
    address = f"http://127.0.0.1:{admin}"
    server = spawn(
        [os.environ["STOPS_RESTATE_SERVER"], "--no-logo", "--node-name", "bench"],
        folder,
        RESTATE_BASE_DIR=str(folder / "restate"),
        RESTATE_ADMIN__BIND_ADDRESS=f"127.0.0.1:{admin}",
        RESTATE_INGRESS__BIND_ADDRESS=f"127.0.0.1:{ingress}",
        RESTATE_BIND_ADDRESS=f"127.0.0.1:{fabric}",
        RESTATE_LISTEN_MODE="tcp",
        RESTATE_DISABLE_TELEMETRY="true",
        RESTATE_LOG_FILTER="warn",
    )
    until(lambda: ask("GET", f"{address}/health")[0] == 200, "Restate's server", server)
    return address, f"http://127.0.0.1:{ingress}"


def redis(folder: Path, *options: str) -> tuple[str, str]:
    """Redis from Debian; returns its URL and its version."""
    server = Path(os.environ["STOPS_REDIS_SERVER"])
    environ = {"LD_LIBRARY_PATH": os.environ["STOPS_REDIS_LIBRARIES"]}
    port = free_port()
    spawn([server, "--port", str(port), "--bind", "127.0.0.1", *options], folder, **environ)
    said = subprocess.run(
        [server, "--version"],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return f"redis://127.0.0.1:{port}/0", said.stdout.split("v=")[1].split()[0]


def temporal(folder: Path) -> tuple[str, "subprocess.Popen[bytes]"]:
    """Temporal's development server on a file; returns its address, before it listens."""
    program = Path(sys.executable).with_name("temporal")
    port = str(free_port())
    options = ["--headless", "--log-level", "error", "--db-filename", folder / "temporal.db"]
    server = spawn([program, "server", "start-dev", "--port", port, *options], folder)
    return f"127.0.0.1:{port}", server

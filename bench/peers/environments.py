"""Each system's own environment, made on first use from registries only: PyPI, npm and Debian."""

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
HOME = HERE.parent.parent / ".venv-peers"

RESTATE_SERVER = "1.7.12"
# redis-server is a link into redis-tools; the two libraries are what a bare Debian lacks.
DEBIAN_REDIS = ("redis-server", "redis-tools", "liblzf1", "libjemalloc2")


class Missing(Exception):
    """A requirement of this system is not available here; the message says which."""


def python(name: str) -> Path:
    """The interpreter of a peer's virtual environment, made when its requirements have changed."""
    place, wanted = HOME / name, (HERE / f"requirements-{name}.txt").read_text("utf-8")
    made = place / "made-from.txt"
    if not made.exists() or made.read_text("utf-8") != wanted:
        print(f"installing {' '.join(wanted.split())} into .venv-peers/{name}", file=sys.stderr)
        shutil.rmtree(place, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(place)])
        requirements = str(HERE / f"requirements-{name}.txt")
        pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        _run([*pip, "--disable-pip-version-check", "-r", requirements])
        made.write_text(wanted, "utf-8")
    return place / "bin" / "python"


def servers(name: str) -> dict[str, str]:
    """The folder of the servers that do not come with the Python packages."""
    return {"restate": _restate, "celery": _redis}.get(name, dict)()


def _restate() -> dict[str, str]:
    place = HOME / "restate" / "npm"
    modules = place / "node_modules" / "@restatedev"
    if not modules.exists():
        if not shutil.which("npm"):
            raise Missing("Restate's server comes from npm, and npm is not installed")
        wanted = f"@restatedev/restate-server@{RESTATE_SERVER}"
        print(f"installing {wanted}", file=sys.stderr)
        quietly = ("--silent", "--no-audit", "--no-fund")
        _run(["npm", "install", *quietly, "--prefix", str(place), wanted])
    found = sorted(modules.glob("restate-server-*/bin/restate-server"))
    if not found:
        raise Missing("npm has no Restate server for this platform")
    return {"STOPS_RESTATE_SERVER": str(found[0]), "STOPS_RESTATE_VERSION": RESTATE_SERVER}


def _redis() -> dict[str, str]:
    if installed := shutil.which("redis-server"):
        return {"STOPS_REDIS_SERVER": installed, "STOPS_REDIS_LIBRARIES": ""}
    place = HOME / "celery" / "redis"
    server = place / "usr" / "bin" / "redis-server"
    if not server.exists():
        if not shutil.which("apt-get"):
            raise Missing("no redis-server is installed, and there is no apt-get to fetch one with")
        print("fetching Debian's redis-server", file=sys.stderr)
        place.mkdir(parents=True, exist_ok=True)
        _run(["apt-get", "download", "--quiet", *DEBIAN_REDIS], place)
        for package in place.glob("*.deb"):
            _run(["dpkg-deb", "--extract", str(package), str(place)])
    libraries = ":".join(str(found) for found in (place / "usr" / "lib").glob("*-linux-gnu*"))
    return {"STOPS_REDIS_SERVER": str(server), "STOPS_REDIS_LIBRARIES": libraries}


def _run(command: list[str], folder: Path | None = None) -> None:
    done = subprocess.run(
        ["nice", *command],  # there may be others on this machine
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
    )
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-500:]
        raise Missing(f"`{' '.join([Path(command[0]).name, *command[1:4]])} …` failed: {said}")

"""The conditions of a measurement: the machine, its load, and the commit."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parent.parent


def facts() -> dict[str, str]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cores": str(os.cpu_count()),
        "memory": f"{memory:.0f} GB",
        "kernel": f"{platform.system()} {platform.release().partition('-')[0]}",
        "machine": platform.machine(),
        "Python": platform.python_version(),
    }


def load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def today() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d}"


def commit() -> str:
    """The commit that is measured; `+` if files differ from it."""
    try:
        name = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", "src", "bench")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name + ("+" if changed else "")


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()

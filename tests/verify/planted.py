"""A copy of the project with a bug in it: a layer that does not turn red for it proves nothing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def found(folder: Path, code: str, file: str, right: str, wrong: str) -> str:
    """The output of a piece of a layer about a product in which `right` is `wrong`."""
    for name in ("src", "tests", "verify"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "src" / "andon" / file
    text = path.read_text()
    assert right in text, f"{file} has no {right!r} any more: plant another bug"
    path.write_text(text.replace(right, wrong))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "src"), str(folder)])},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout

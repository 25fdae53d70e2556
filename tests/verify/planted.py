"""A copy of the project with a bug in it: a layer that does not turn red for it proves nothing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def red(folder: Path, layer: str, file: str, right: str, wrong: str, scale: str = "0.05") -> str:
    """What a layer says about a product in which `right` is `wrong`; it must be red."""
    for name in ("src/andon", "tests/chaos", "verify"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "src" / "andon" / file
    text = path.read_text()
    assert right in text, f"{file} has no {right!r} any more: plant another bug"
    path.write_text(text.replace(right, wrong))
    done = subprocess.run(
        [sys.executable, "-m", f"verify.{layer}", "--scale", scale],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "src"), str(folder)])},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("violations ")]
    assert found, done.stdout + done.stderr
    return "\n".join(found)

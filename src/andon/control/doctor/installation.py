"""Checks that the command `andon` and `import andon` mean this program.

The package andon-ai on PyPI also installs a command `andon`, and Python may import a file or folder
of that name instead.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import andon
from andon.control.doctor.check import OK, WARN, Check

_ENTRY = "andon.__main__"  # our command imports it, whichever installer wrote the script
_INSTEAD = f"use it as: {sys.executable} -m andon"


def lines() -> Iterator[Check]:
    """The findings about the command and the import."""
    yield _command()
    yield from _shadows()
    yield from _others()


def _command() -> Check:
    found = shutil.which("andon")
    if found is None:
        return Check("command", OK, f"andon is not on PATH; {_INSTEAD}")
    script = _text(found)
    if _ENTRY not in script:
        what = f"{found} is on PATH and is another program's (the package andon-ai has one)"
        return Check("command", WARN, what, f"uninstall that, or {_INSTEAD}")
    interpreter = script.partition("\n")[0].removeprefix("#!").strip()
    if interpreter.startswith("/") and not _is_ours(interpreter):
        what = f"{found} is on PATH and belongs to another Python: {interpreter}"
        return Check("command", WARN, what, "activate the environment that you mean")
    return Check("command", OK, found)


def _is_ours(interpreter: str) -> bool:
    """Whether an interpreter is in this environment.

    Links are not resolved: environments can link to one Python.
    """
    return os.path.dirname(os.path.abspath(interpreter)) == os.path.dirname(
        os.path.abspath(sys.executable)
    )


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(10_000)
    except OSError:
        return ""


def _shadows() -> Iterator[Check]:
    """Files that a program started in this folder would import instead of andon."""
    ours = Path(andon.__file__ or "").resolve().parent
    folders = ["", *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    for folder in dict.fromkeys(Path(one).absolute() for one in folders):
        for path in (folder / "andon.py", folder / "andon" / "__init__.py"):
            if path.exists() and path.resolve().parent != ours:
                where = path if path.name == "andon.py" else path.parent
                what = f"{where} is imported by programs that are started here, instead of andon"
                yield Check("import", WARN, what, "rename it")


def _others() -> Iterator[Check]:
    """Other packages of this environment that install into the package `andon`."""
    names = {name.lower() for name in metadata.packages_distributions().get("andon", ())}
    for name in sorted(names - {"andon"}):
        advice = f"pip uninstall {name} andon, then install andon again"
        what = f"the package {name} is installed too, and its module is called andon as well"
        yield Check("import", WARN, what, advice)

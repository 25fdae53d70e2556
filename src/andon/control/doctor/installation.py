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
from andon.control.doctor.grace import OK, WARN

Line = tuple[str, str, str, str]

_ENTRY = "andon.__main__"  # our command imports it, whichever installer wrote the script
_INSTEAD = f"use it as: {sys.executable} -m andon"


def lines() -> Iterator[Line]:
    """The findings about the command and the import."""
    yield _command()
    yield from _shadows()
    yield from _others()


def _command() -> Line:
    found = shutil.which("andon")
    if found is None:
        return "command", OK, f"andon is not on PATH; {_INSTEAD}", ""
    script = _text(found)
    if _ENTRY not in script:
        what = f"{found} is on PATH and is another program's (the package andon-ai has one)"
        return "command", WARN, what, f"uninstall that, or {_INSTEAD}"
    interpreter = script.partition("\n")[0].removeprefix("#!").strip()
    if interpreter.startswith("/") and not _is_ours(interpreter):
        what = f"{found} is on PATH and belongs to another Python: {interpreter}"
        return "command", WARN, what, "activate the environment that you mean"
    return "command", OK, found, ""


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


def _shadows() -> Iterator[Line]:
    """Files that a program started in this folder would import instead of andon."""
    ours = Path(andon.__file__ or "").resolve().parent
    folders = ["", *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    for folder in dict.fromkeys(Path(one).absolute() for one in folders):
        for path in (folder / "andon.py", folder / "andon" / "__init__.py"):
            if path.exists() and path.resolve().parent != ours:
                where = path if path.name == "andon.py" else path.parent
                what = f"{where} is imported by programs that are started here, instead of andon"
                yield "import", WARN, what, "rename it"


def _others() -> Iterator[Line]:
    """Other packages of this environment that install into the package `andon`."""
    names = {name.lower() for name in metadata.packages_distributions().get("andon", ())}
    for name in sorted(names - {"andon"}):
        advice = f"pip uninstall {name} andon, then install andon again"
        what = f"the package {name} is installed too, and its module is called andon as well"
        yield "import", WARN, what, advice

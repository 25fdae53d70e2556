"""`andon doctor` notices that another program or module named `andon` comes first."""

import os
import sys
import venv
from pathlib import Path

import pytest
from tests.cli.terminal import Terminal

FOREIGN = """#!{python}
import sys
from andon.cli import main
sys.exit(main())
"""


@pytest.fixture
def alone(local: Terminal) -> Terminal:
    """A terminal without `andon` on its PATH."""
    local.environment["PATH"] = "/usr/bin:/bin"
    return local


def found(terminal: Terminal, name: str) -> list[tuple[str, str]]:
    checks = terminal.json("doctor")["checks"]
    return [(one["status"], one["found"]) for one in checks if one["name"] == name]


def script(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "andon"
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_foreign_command_on_path_is_noticed(alone: Terminal, tmp_path: Path) -> None:
    path = script(tmp_path / "bin", FOREIGN.format(python=sys.executable))
    alone.environment["PATH"] = f"{path.parent}:/usr/bin:/bin"
    [(status, text)] = found(alone, "command")
    assert status == "warn"
    assert text.startswith(f"{path} is on PATH and is another program's")
    assert f"{sys.executable} -m andon" in alone("doctor").replace("\n", " ")


def test_the_command_of_another_environment_is_noticed(alone: Terminal, tmp_path: Path) -> None:
    other = tmp_path / "other"
    venv.create(other, symlinks=True)
    text = f"#!{other}/bin/python\nimport sys\nfrom andon.__main__ import main\nsys.exit(main())\n"
    path = script(other / "bin", text)
    alone.environment["PATH"] = f"{path.parent}:/usr/bin:/bin"
    [(status, text)] = found(alone, "command")
    assert (status, text.split(": ")[-1]) == ("warn", f"{other}/bin/python")


def test_the_command_of_this_environment_is_accepted(alone: Terminal, tmp_path: Path) -> None:
    text = f"#!{sys.executable}\nimport sys\nfrom andon.__main__ import main\nsys.exit(main())\n"
    path = script(tmp_path / "bin", text)
    alone.environment["PATH"] = f"{path.parent}:/usr/bin:/bin"
    assert found(alone, "command") == [("ok", str(path))]
    assert found(alone, "import") == []


@pytest.mark.parametrize("name", ["andon.py", "andon/__init__.py"])
def test_a_file_that_shadows_the_import_is_noticed(
    alone: Terminal, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "mine"
    path = folder / name
    path.parent.mkdir(parents=True)
    path.touch()
    alone.environment["PYTHONPATH"] += os.pathsep + str(folder)
    [(status, text)] = found(alone, "import")
    assert status == "warn"
    assert text.startswith(str(folder / "andon"))


def test_a_folder_that_python_would_not_import_is_no_shadow(
    alone: Terminal, tmp_path: Path
) -> None:
    (tmp_path / "mine" / "andon").mkdir(parents=True)
    alone.environment["PYTHONPATH"] += os.pathsep + str(tmp_path / "mine")
    assert found(alone, "import") == []


def test_a_package_whose_module_has_the_same_name_is_noticed(
    alone: Terminal, tmp_path: Path
) -> None:
    other = tmp_path / "site" / "andon_ai-0.3.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: andon-ai\nVersion: 0.3\n")
    (other / "top_level.txt").write_text("andon\n")
    alone.environment["PYTHONPATH"] += os.pathsep + str(other.parent)
    [(status, text)] = found(alone, "import")
    assert (status, text.split(" is ")[0]) == ("warn", "the package andon-ai")

"""The modules that importing andon loads."""

import subprocess
import sys
from types import ModuleType

import pytest
from tests.store.parts import begin

import andon
import andon.testing
from andon.store import open_store

# Each would add 2 to 20 ms between Enter and the order.
SLOW = {"asyncio", "dataclasses", "hashlib", "inspect", "logging", "pathlib", "random", "shutil"}
SLOW |= {"socket", "subprocess", "tempfile", "typing", "urllib", "uuid"}
UNTIL_THE_ORDER = """
import sys
from andon.__main__ import main
from andon.store.sqlite.store import SqliteStore

def write(store, batch, real=SqliteStore.write):
    found = real(store, batch)
    print(*{name.partition(".")[0] for name in sys.modules}, flush=True)
    return found

SqliteStore.write = write
main()
"""


def loaded_by(statement: str) -> set[str]:
    """Name the top-level modules a statement loads into a fresh interpreter."""
    code = f"""
import sys
before = set(sys.modules)
{statement}
print(*{{name.partition(".")[0] for name in set(sys.modules) - before}})
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_importing_andon_loads_only_python_itself() -> None:
    assert loaded_by("import andon") - sys.stdlib_module_names == {"andon"}


@pytest.mark.parametrize("package", [andon, andon.testing], ids=lambda one: one.__name__)
def test_every_public_name_can_be_imported(package: ModuleType) -> None:
    missing = [name for name in package.__all__ if getattr(package, name, None) is None]
    assert not missing


@pytest.mark.parametrize("package", [andon, andon.testing], ids=lambda one: one.__name__)
def test_public_names_are_listed_once_and_in_order(package: ModuleType) -> None:
    assert list(package.__all__) == sorted(set(package.__all__))


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(andon, "no_such_name")


@pytest.mark.parametrize("verb", ["kill", "pause", "cancel"])
def test_a_stop_loads_only_python_and_the_driver_before_its_order(
    verb: str, sqlite_url: str
) -> None:
    with_a_run = open_store(sqlite_url)
    begin(with_a_run)
    with_a_run.close()
    line = [sys.executable, "-c", UNTIL_THE_ORDER, verb, "r", "--no-wait", "--store", sqlite_url]
    done = subprocess.run(line, check=False, capture_output=True, text=True)
    loaded = set(done.stdout.split("\n")[0].split()) - _preloaded()
    assert loaded - sys.stdlib_module_names == {"andon", "apsw"}, done.stderr
    assert loaded & SLOW == set()


def _preloaded() -> set[str]:
    """The modules that this environment loads into every interpreter."""
    code = "import sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.split())

"""What importing andon drags in."""

import subprocess
import sys
from types import ModuleType

import pytest

import andon
import andon.testing


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


def test_importing_andon_loads_nothing_but_python() -> None:
    assert loaded_by("import andon") - sys.stdlib_module_names == {"andon"}


@pytest.mark.parametrize("package", [andon, andon.testing], ids=lambda one: one.__name__)
def test_every_public_name_loads(package: ModuleType) -> None:
    missing = [name for name in package.__all__ if getattr(package, name, None) is None]
    assert not missing


@pytest.mark.parametrize("package", [andon, andon.testing], ids=lambda one: one.__name__)
def test_public_names_are_listed_once_and_in_order(package: ModuleType) -> None:
    assert list(package.__all__) == sorted(set(package.__all__))


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(andon, "no_such_name")

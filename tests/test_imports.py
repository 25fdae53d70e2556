"""What importing andon drags in."""

import subprocess
import sys

import andon


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


def test_every_public_name_loads() -> None:
    missing = [name for name in andon.__all__ if getattr(andon, name, None) is None]
    assert not missing


def test_public_names_are_listed_once_and_in_order() -> None:
    assert list(andon.__all__) == sorted(set(andon.__all__))


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(andon, "no_such_name")

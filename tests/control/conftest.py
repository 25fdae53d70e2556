"""The terminals of tests/cli."""

from tests.cli.conftest import andon, local

__all__ = ["andon", "local"]

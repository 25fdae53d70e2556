"""Tools for testing agents and andon itself.

Names are loaded on first use: pytest imports this package at every start. The product imports it
only in `andon crashtest`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from andon.testing.clock import Clock
    from andon.testing.crash import crashtest
    from andon.testing.crash.report import Report
    from andon.testing.model import FakeModel, call
    from andon.testing.moments import at, freeze, kill, point

_NAMES = {
    "andon.testing.clock": ("Clock",),
    "andon.testing.crash": ("crashtest",),
    "andon.testing.crash.report": ("Report",),
    "andon.testing.model": ("FakeModel", "call"),
    "andon.testing.moments": ("at", "freeze", "kill", "point"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = ["Clock", "FakeModel", "Report", "at", "call", "crashtest", "freeze", "kill", "point"]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'andon.testing' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)

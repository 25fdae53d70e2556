"""andon: stop any AI agent, at any moment, and lose nothing.

Names are loaded on first use: commands that stop things import this package too, and must not
need (or wait for) anything that agents depend on.
"""

from importlib import import_module

TYPE_CHECKING = False  # typing's own costs an import of typing
if TYPE_CHECKING:
    from andon.core.queue import Retry
    from andon.errors import AndonError, Fenced, Refused, StepFailed, Stopped, Unresolved
    from andon.runtime.agent import agent
    from andon.runtime.client import Client
    from andon.runtime.context import Context
    from andon.runtime.effects.declaration import did_not_happen, effect_of, happened, unknown
    from andon.runtime.operations.asks import Answer
    from andon.runtime.service import serving
    from andon.runtime.sync import current
    from andon.runtime.worker.cleanup import cleanup
    from andon.supervisor.halt.command import halt

_NAMES = {
    "andon.core.queue": ("Retry",),
    "andon.errors": ("AndonError", "Fenced", "Refused", "StepFailed", "Stopped", "Unresolved"),
    "andon.runtime.agent": ("agent",),
    "andon.runtime.client": ("Client",),
    "andon.runtime.context": ("Context",),
    "andon.runtime.effects.declaration": ("did_not_happen", "effect_of", "happened", "unknown"),
    "andon.runtime.operations.asks": ("Answer",),
    "andon.runtime.service": ("serving",),
    "andon.runtime.sync": ("current",),
    "andon.runtime.worker.cleanup": ("cleanup",),
    "andon.supervisor.halt.command": ("halt",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "AndonError",
    "Answer",
    "Client",
    "Context",
    "Fenced",
    "Refused",
    "Retry",
    "StepFailed",
    "Stopped",
    "Unresolved",
    "agent",
    "cleanup",
    "current",
    "did_not_happen",
    "effect_of",
    "halt",
    "happened",
    "serving",
    "unknown",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'andon' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)

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

_HOME = {
    "AndonError": "andon.errors",
    "Answer": "andon.runtime.operations.asks",
    "Client": "andon.runtime.client",
    "Context": "andon.runtime.context",
    "Fenced": "andon.errors",
    "Refused": "andon.errors",
    "Retry": "andon.core.queue",
    "StepFailed": "andon.errors",
    "Stopped": "andon.errors",
    "Unresolved": "andon.errors",
    "agent": "andon.runtime.agent",
    "cleanup": "andon.runtime.worker.cleanup",
    "current": "andon.runtime.sync",
    "did_not_happen": "andon.runtime.effects.declaration",
    "effect_of": "andon.runtime.effects.declaration",
    "halt": "andon.supervisor.halt.command",
    "happened": "andon.runtime.effects.declaration",
    "serving": "andon.runtime.service",
    "unknown": "andon.runtime.effects.declaration",
}

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

"""Pydantic AI on andon: model requests and tool calls of an agent go through andon's journal.

An agent with `AndonDurability` refuses to run outside of a run, where nothing would be journaled.
"""

from andon.errors import AndonError

try:
    from andon.adapters.pydantic_ai.conversation import repair
    from andon.adapters.pydantic_ai.durability import AndonDurability, run, run_sync
except ImportError as missing:
    raise AndonError(
        f"andon.adapters.pydantic_ai needs Pydantic AI ({missing}). "
        "Run: pip install 'andon[pydantic-ai]'"
    ) from None

__all__ = ["AndonDurability", "repair", "run", "run_sync"]

"""Pydantic AI on andon: an agent whose model requests and tool calls are in andon's journal."""

from andon.errors import AndonError

try:
    from andon.adapters.pydantic_ai.durability import AndonDurability, repair, run, run_sync
except ImportError as missing:
    raise AndonError(
        f"andon.adapters.pydantic_ai needs Pydantic AI ({missing}). "
        "Run: pip install 'andon[pydantic-ai]'"
    ) from None

__all__ = ["AndonDurability", "repair", "run", "run_sync"]

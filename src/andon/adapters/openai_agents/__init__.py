"""The OpenAI Agents SDK on andon: the SDK's own loop, with model and tool calls in a journal.

`Runner` takes the arguments of the SDK's Runner and the id of a run. The loop, the agents and the
tools are the user's own objects, unchanged. While such a run executes, and only there, three
functions of the SDK are redirected through andon: model calls (`ctx.model`), function tool calls
(`ctx.tool`, under the provider's id of the call), and runs of an agent inside an agent. Handoffs,
agents as tools and tools of MCP servers therefore go through andon too; a tool that cannot is
refused before the model sees it.
"""

from importlib import metadata

from andon.errors import AndonError

TESTED = "0.24."  # the redirected functions are private: only tested versions are safe

try:
    if not metadata.version("openai-agents").startswith(TESTED):
        raise ImportError(f"found {metadata.version('openai-agents')}")  # noqa: TRY301
    from andon.adapters.openai_agents.conversation import AndonSession
    from andon.adapters.openai_agents.runner import Runner
except ImportError as missing:
    raise AndonError(
        f"andon.adapters.openai_agents needs the OpenAI Agents SDK 0.24 ({missing}). "
        "Run: pip install 'andon[openai-agents]'"
    ) from None

__all__ = ["AndonSession", "Runner"]

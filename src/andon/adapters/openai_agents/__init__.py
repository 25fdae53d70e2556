"""The OpenAI Agents SDK on andon: the SDK's own loop, with what it asks and does in a journal.

`Runner` takes what the SDK's takes, and the id of a run. The loop, the agents and the tools are the
user's own objects, unchanged. While such a run executes, and only there, three functions of the SDK
lead through andon: which model is asked (`ctx.model`), how a function tool is called (`ctx.tool`,
under the provider's id of the call), and who runs an agent inside of an agent. So whatever the loop
meets on its way, handoffs, agents as tools, tools of MCP servers, goes through andon, and what
cannot is refused before the model hears of it.
"""

from importlib import metadata

from andon.errors import AndonError

TESTED = "0.24."  # the functions that lead through andon are not public, and must be those

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

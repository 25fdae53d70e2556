"""LangGraph and LangChain inside a run of andon.

`graph.invoke(given, **ctx.langgraph())` is one *invocation*. The run's code numbers its
invocations, and each continues from its own checkpoints when the code executes again.
`AndonMiddleware` makes an agent's model calls steps and its tool calls effects of the run. Every
operation has a key: the provider's id of a call, or LangGraph's id of a task, which is the same for
the same checkpoint.

Outside of a run, or without `AndonSaver`, nothing is executed.
"""

from andon.errors import AndonError

try:
    from andon.adapters.langgraph.execution import run, run_sync
    from andon.adapters.langgraph.invocation import begin, task_key
    from andon.adapters.langgraph.middleware import AndonMiddleware
    from andon.adapters.langgraph.saver import AndonSaver
except ImportError as missing:
    raise AndonError(
        f"andon.adapters.langgraph needs LangGraph and LangChain ({missing}). "
        "Run: pip install 'andon[langgraph]'"
    ) from None
from andon.runtime.agent import agent

__all__ = ["AndonMiddleware", "AndonSaver", "agent", "begin", "run", "run_sync", "task_key"]

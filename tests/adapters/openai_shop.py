"""A user's program on the OpenAI Agents SDK: a process of its own, which tests kill.

It reads one line of JSON from its input for each process that it is to become: `argv` (the id of
the run, the message) and `environ`: MODEL (the address of the model), FORM (responses or chat),
WORLD (the file in which its tools act), and optionally STREAM, SESSION (an AndonSession) or SQLITE
(a session of the SDK's own), AGENT (which one), APPROVE (yes or no) and STATE (a file). The SDK
takes seconds to import, so each process is a fork of one that has imported it.
"""

import asyncio
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import agents
from agents import (
    Agent,
    GuardrailFunctionOutput,
    Model,
    ModelProvider,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    RunState,
    SQLiteSession,
    function_tool,
    input_guardrail,
    set_tracing_disabled,
)
from agents.mcp import MCPServer
from agents.tool_context import ToolContext
from mcp import types
from openai import AsyncOpenAI

import andon
from andon import points
from andon.adapters.openai_agents import AndonSession, Runner

set_tracing_disabled(True)


def act(key: str, what: str) -> str:
    """Append to the world, durably."""
    with Path(os.environ["WORLD"]).open("a") as world:
        print(key, what, file=world, flush=True)
    return f"{what}: done"


def found(key: str, **_: Any) -> Any:
    """The probe: the world's record of a call."""
    world = Path(os.environ["WORLD"])
    lines = world.read_text().splitlines() if world.exists() else []
    happened = [line.partition(" ")[2] for line in lines if line.startswith(f"{key} ")]
    return andon.happened(f"{happened[0]}: done") if happened else andon.did_not_happen()


async def needs_approval(*_: Any) -> bool:
    return "APPROVE" in os.environ


@function_tool(needs_approval=needs_approval)
@andon.effect_of(probe=found)
def charge(ctx: ToolContext[Any], eur: int) -> str:
    """Charge the customer."""
    return act(ctx.tool_call_id, f"charged {eur}")


@function_tool
@andon.effect_of(probe=found)
async def mail(ctx: ToolContext[Any], to: str) -> str:
    """Mail somebody."""
    return act(ctx.tool_call_id, f"mailed {to}")


@function_tool
def book(ctx: ToolContext[Any], what: str) -> str:
    """Book something; no probe can find out whether it happened."""
    return act(ctx.tool_call_id, f"booked {what}")


def session() -> Any:
    if "SESSION" in os.environ:
        return AndonSession(os.environ["SESSION"])
    return SQLiteSession("s", os.environ["SQLITE"]) if "SQLITE" in os.environ else None


class ToolServer(MCPServer):
    """A server of tools, in this process."""

    @property
    def name(self) -> str:
        return "till"

    async def connect(self) -> None: ...
    async def cleanup(self) -> None: ...

    async def list_tools(self, *_: Any) -> Any:
        shape = {"type": "object", "properties": {"eur": {"type": "integer"}}}
        hints = types.ToolAnnotations(idempotent_hint=True)
        return [types.Tool(name="charge", input_schema=shape, annotations=hints)]

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> Any:
        said = act("till", f"charged {arguments['eur']}")
        return types.CallToolResult(content=[types.TextContent(type="text", text=said)])

    async def list_prompts(self) -> Any: ...
    async def get_prompt(self, name: str, arguments: Any = None) -> Any: ...


class NamedModels(ModelProvider):
    """Models by name, as most programs have them."""

    def get_model(self, model_name: str | None) -> Model:
        kinds = {"responses": OpenAIResponsesModel, "chat": OpenAIChatCompletionsModel}
        address = f"{os.environ['MODEL']}/v1"
        client = AsyncOpenAI(base_url=address, api_key="fake", max_retries=0)
        found: Model = kinds[os.environ["FORM"]](model_name or "m", client)
        return found


@input_guardrail
async def harmless(_: Any, __: Any, given: Any) -> GuardrailFunctionOutput:
    """Asks a model of its own, with the SDK's own Runner."""
    guard = Agent(name="Guard", instructions="Guard.", model=NamedModels().get_model("m"))
    found = await agents.Runner.run(guard, given)
    return GuardrailFunctionOutput(found.final_output, tripwire_triggered=False)


def agent() -> Any:
    """The agent that AGENT names."""
    shop = Agent(name="Shop", instructions="Sell.", tools=[charge, mail, book], model="m")
    match os.environ.get("AGENT"):
        case "handoff":
            return Agent(name="Desk", instructions="Desk.", handoffs=[shop])
        case "tool":
            within = shop.as_tool("shop", "Sells.")
            return Agent(name="Boss", instructions="Boss.", tools=[within, mail])
        case "guard":
            return shop.clone(input_guardrails=[harmless])
        case "mcp":
            return shop.clone(tools=[mail], mcp_servers=[ToolServer()])
        case _:
            return shop


async def main(run_id: str, message: str) -> None:
    root = agent()
    state = Path(os.environ["STATE"]) if "STATE" in os.environ else None
    given: Any = message
    if state is not None and state.exists():
        given = await RunState.from_string(root, state.read_text())
        for item in given.get_interruptions():
            given.approve(item) if os.environ["APPROVE"] == "yes" else given.reject(item)
    config = RunConfig(model_provider=NamedModels())
    options: Any = {"session": session(), "run_config": config, "run_id": run_id}
    result: Any
    if "STREAM" in os.environ:
        result = Runner.run_streamed(root, given, **options)
        async for _ in result.stream_events():
            pass
    else:
        result = await Runner.run(root, given, **options)
    if result.interruptions and state is not None:
        state.write_text(result.to_state().to_string())
    waiting = [item.name for item in result.interruptions]
    print(json.dumps({"output": result.final_output, "waiting": waiting}), flush=True)  # noqa: T201


def become(argv: list[str], environ: dict[str, str]) -> int:
    """Run the program in a process of its own; returns how that ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        os.environ.update(environ)
        points.watch = points.fault(os.environ.get("ANDON_FAULTS", ""))
        asyncio.run(main(*argv))
        code = 0
    except BaseException:  # noqa: BLE001 (whatever it is, the test has to see it)
        traceback.print_exc(file=sys.stdout)
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    for line in sys.stdin:
        told = json.loads(line)
        print(f"ended {become(told['argv'], told['environ'])}", flush=True)  # noqa: T201

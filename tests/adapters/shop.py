"""A program on the OpenAI Agents SDK, as a user has it: a process of its own, which tests kill.

It is told on its input what to do, a line of JSON for each process that it is to become: `argv`
(the id of the run, the message) and `environ`: MODEL (the address of the model), FORM (responses or
chat), WORLD (the file in which its tools act), and if wanted STREAM, SESSION (an AndonSession) or
SQLITE (a session of the SDK's own), APPROVE (yes or no) and STATE (a file). The SDK takes seconds
to be imported, so each is a fork of a process that has done it.
"""

import asyncio
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunState,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from agents.tool_context import ToolContext
from openai import AsyncOpenAI

import andon
from andon import points
from andon.adapters.openai_agents import AndonSession, Runner

set_tracing_disabled(True)


def act(key: str, what: str) -> str:
    """Change the world, once and for all."""
    with Path(os.environ["WORLD"]).open("a") as world:
        print(key, what, file=world, flush=True)
    return f"{what}: done"


def found(key: str, **_: Any) -> Any:
    """What the world knows of a call."""
    world = Path(os.environ["WORLD"])
    lines = world.read_text().splitlines() if world.exists() else []
    happened = [line.partition(" ")[2] for line in lines if line.startswith(f"{key} ")]
    return andon.happened(f"{happened[0]}: done") if happened else andon.did_not_happen()


async def asked(*_: Any) -> bool:
    return "APPROVE" in os.environ


@function_tool(needs_approval=asked)
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
    """Book something; nobody can find out whether it was."""
    return act(ctx.tool_call_id, f"booked {what}")


def session() -> Any:
    if "SESSION" in os.environ:
        return AndonSession(os.environ["SESSION"])
    return SQLiteSession("s", os.environ["SQLITE"]) if "SQLITE" in os.environ else None


async def main(run_id: str, message: str) -> None:
    kinds = {"responses": OpenAIResponsesModel, "chat": OpenAIChatCompletionsModel}
    client = AsyncOpenAI(base_url=f"{os.environ['MODEL']}/v1", api_key="fake", max_retries=0)
    model = kinds[os.environ["FORM"]]("m", client)
    agent = Agent(name="Shop", instructions="Sell.", tools=[charge, mail, book], model=model)
    state = Path(os.environ["STATE"]) if "STATE" in os.environ else None
    given: Any = message
    if state is not None and state.exists():
        given = await RunState.from_string(agent, state.read_text())
        for item in given.get_interruptions():
            given.approve(item) if os.environ["APPROVE"] == "yes" else given.reject(item)
    result: Any
    if "STREAM" in os.environ:
        result = Runner.run_streamed(agent, given, session=session(), run_id=run_id)
        async for _ in result.stream_events():
            pass
    else:
        result = await Runner.run(agent, given, session=session(), run_id=run_id)
    if result.interruptions and state is not None:
        state.write_text(result.to_state().to_string())
    waiting = [item.name for item in result.interruptions]
    print(json.dumps({"output": result.final_output, "waiting": waiting}), flush=True)  # noqa: T201


def become(argv: list[str], environ: dict[str, str]) -> int:
    """Be the program in a process of its own; how that ended."""
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

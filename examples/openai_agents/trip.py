"""A travel desk on the OpenAI Agents SDK: a handoff, two tools at once, killed in the middle.

    python examples/openai_agents/trip.py

It runs offline against andon.testing.FakeModel, in a folder of its own. The desk is started, and
killed with SIGKILL after the hotel was booked; started again, it goes on. A file lists the real
bookings.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from agents import Agent, OpenAIResponsesModel, function_tool, set_tracing_disabled
from agents.tool_context import ToolContext
from openai import AsyncOpenAI

import andon
from andon.adapters.openai_agents import Runner
from andon.testing import FakeModel, call

SCRIPT = [
    call("transfer_to_booking"),
    [call("hotel", city="Oslo"), call("train", city="Oslo")],
    "A room and a train to Oslo.",
]
BOOKED = Path("booked.txt")
set_tracing_disabled(True)


def look_up(city: str, *, key: str):
    there = BOOKED.exists() and key in BOOKED.read_text()
    return andon.happened(f"booked in {city}") if there else andon.did_not_happen()


def book(ctx, what: str) -> str:
    with BOOKED.open("a") as file:
        print(ctx.tool_call_id, what, file=file, flush=True)
    return f"booked: {what}"


@function_tool
@andon.effect_of(probe=look_up)
def hotel(ctx: ToolContext, city: str) -> str:
    """Book a hotel."""
    return book(ctx, f"hotel in {city}")


@function_tool
@andon.effect_of(probe=look_up)
async def train(ctx: ToolContext, city: str) -> str:
    """Book a train."""
    return book(ctx, f"train to {city}")


async def desk() -> None:
    with FakeModel(SCRIPT) as fake:
        client = AsyncOpenAI(base_url=f"{fake.url}/v1", api_key="fake")
        model = OpenAIResponsesModel("m", client)
        booking = Agent(name="Booking", instructions="Book.", tools=[hotel, train], model=model)
        front = Agent(name="Front", instructions="Listen.", handoffs=[booking], model=model)
        result = await Runner.run(front, "To Oslo, please.", run_id="trip-1")
        print(f"{result.last_agent.name}: {result.final_output}")
        print(f"The model was asked {len(fake.requests)} of {len(SCRIPT)} times.")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "ANDON_STORE": f"sqlite:///{folder}/andon.db"}
        line = [sys.executable, str(Path(__file__).absolute()), "desk"]
        faults = {"ANDON_FAULTS": "effect:confirmed=kill"}
        code = subprocess.run(line, cwd=folder, env={**environ, **faults}, check=False).returncode
        print(f"The first process ended with {code}.", flush=True)
        subprocess.run(line, cwd=folder, env=environ, check=True)
        print(
            *sorted(
                one.partition(" ")[2] for one in (Path(folder) / BOOKED).read_text().splitlines()
            ),
            sep=", ",
        )


if __name__ == "__main__":
    asyncio.run(desk()) if "desk" in sys.argv else main()

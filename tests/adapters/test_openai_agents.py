"""The loop of the OpenAI Agents SDK inside runs: its inputs, its results, and its end."""

import asyncio
import inspect
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import agents
import pytest
from agents import (
    Agent,
    MaxTurnsExceeded,
    OpenAIResponsesModel,
    ShellTool,
    ToolOutputImage,
    ToolOutputText,
    function_tool,
    set_tracing_disabled,
)
from agents.testing import ScriptedModel, assistant_message
from openai import AsyncOpenAI, RateLimitError
from openai.types.responses import ResponseTextDeltaEvent
from pydantic import BaseModel

import andon
from andon.adapters.openai_agents import AndonSession, Runner
from andon.testing import FakeModel, call

set_tracing_disabled(True)


class Weather(BaseModel):
    city: str
    degrees: float


@pytest.fixture(autouse=True)
def store(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ANDON_STORE", sqlite_url)
    return sqlite_url


@pytest.fixture
def fake() -> Iterator[FakeModel]:
    with FakeModel([call("work"), "Done."]) as found:
        yield found


def agent(model: Any, *functions: Any, **options: Any) -> Any:
    tools = [one if hasattr(one, "name") else function_tool(one) for one in functions]
    return Agent(name="Worker", instructions="Work.", model=model, tools=tools, **options)


def with_model(fake: FakeModel, body: Any) -> Any:
    """Call the body with a model of the fake's, and wait for it."""

    async def main() -> Any:
        address = f"{fake.url}/v1"
        async with AsyncOpenAI(base_url=address, api_key="fake", max_retries=0) as client:
            return await body(OpenAIResponsesModel("m", client))

    return asyncio.run(main())


@pytest.mark.parametrize("name", ["run", "run_sync", "run_streamed"])
def test_run_takes_the_same_arguments_as_the_sdk(name: str) -> None:
    own = inspect.signature(getattr(Runner, name)).parameters
    theirs = inspect.signature(getattr(agents.Runner, name)).parameters
    assert {"run_id", "effects"} <= set(own)
    if name == "run_streamed":
        assert [one for one in own if one not in ("run_id", "effects")] == list(theirs)
    else:
        assert own["options"].kind is inspect.Parameter.VAR_KEYWORD


@pytest.mark.parametrize(
    "output",
    [
        "text",
        {"a": [1, None]},
        ToolOutputText(text="t"),
        [ToolOutputImage(image_url="data:x"), ToolOutputText(text="t")],
        Weather(city="Oslo", degrees=1.5),
    ],
    ids=str,
)
def test_the_result_of_a_tool_is_restored_unchanged(fake: FakeModel, output: Any) -> None:
    kind = type(output)

    def work():  # type: ignore[no-untyped-def]
        return output

    work.__annotations__["return"] = kind

    async def body(model: Any) -> None:
        first = Runner.run_streamed(agent(model, work), "go", run_id="r")
        async for event in first.stream_events():
            if event.type == "run_item_stream_event" and event.name == "tool_output":
                first.cancel("after_turn")
        again = await Runner.run(agent(model, work), "go", run_id="r")
        one, two = (
            next(item for item in result.new_items if item.type == "tool_call_output_item")
            for result in (first, again)
        )
        assert one.output == two.output == output
        assert one.raw_item == two.raw_item

    with_model(fake, body)
    assert len(fake.requests) == 2


def test_the_model_gets_exactly_the_requests_of_the_sdk_alone(fake: FakeModel) -> None:
    def work() -> str:
        return "ok"

    async def body(model: Any) -> None:
        await agents.Runner.run(agent(model, work), "go")
        await Runner.run(agent(model, work), "go", run_id="r")

    with_model(fake, body)
    asked = [request.body for request in fake.requests]
    assert asked[:2] == asked[2:]


def test_an_error_of_a_tool_is_reported_to_the_model(fake: FakeModel) -> None:
    def work() -> str:
        raise ValueError("no paper")

    async def body(model: Any) -> Any:
        return await Runner.run(agent(model, work), "go", run_id="r")

    assert with_model(fake, body).final_output == "Done."
    assert "An error occurred" in str(fake.requests[-1].body["input"])


def test_outside_of_a_run_a_call_without_an_id_is_refused(fake: FakeModel) -> None:
    async def body(model: Any) -> None:
        with pytest.raises(andon.errors.BadInput, match="expected run_id="):
            await Runner.run(agent(model), "go")

    with_model(fake, body)
    assert fake.requests == []


def test_a_tool_that_would_act_without_andon_is_refused(fake: FakeModel) -> None:
    async def body(model: Any) -> None:
        shell = ShellTool(executor=lambda _: "")
        with pytest.raises(andon.errors.BadInput, match="ShellTool acts without andon"):
            await Runner.run(agent(model, shell), "go", run_id="r")

    with_model(fake, body)
    assert fake.requests == []


def test_errors_are_the_sdks_own_at_first_and_recorded_ones_on_replay(fake: FakeModel) -> None:
    def work() -> str:
        return "ok"

    async def body(model: Any) -> None:
        fake.fail(429)
        with pytest.raises(RateLimitError):
            await Runner.run(agent(model, work), "go", run_id="limit")
        with pytest.raises(MaxTurnsExceeded):
            await Runner.run(agent(model, work), "go", run_id="turns", max_turns=1)
        with pytest.raises(andon.errors.StepFailed, match="MaxTurnsExceeded"):
            await Runner.run(agent(model, work), "go", run_id="turns", max_turns=1)
        streamed = Runner.run_streamed(agent(model, work), "go", run_id="more", max_turns=1)
        with pytest.raises(MaxTurnsExceeded):
            async for _ in streamed.stream_events():
                pass

    with_model(fake, body)


def test_a_model_request_that_the_sdk_retries_is_one_step(fake: FakeModel) -> None:
    async def body(model: Any) -> Any:
        fake.fail(500)
        policy = agents.ModelRetrySettings(
            max_retries=2,
            backoff={"initial_delay": 0.0},
            policy=agents.retry_policies.http_status([500]),
        )
        settings = agents.ModelSettings(retry=policy)
        ready = agent(model, lambda: "ok", model_settings=settings)
        return await Runner.run(ready, "go", run_id="r")

    fake.script = ["Done."]
    assert with_model(fake, body).final_output == "Done."
    assert [one.status for one in fake.requests] == [500, 200]


def test_inside_a_run_every_call_joins_it(fake: FakeModel) -> None:
    done: list[str] = []

    def work() -> str:
        done.append("worked")
        return "ok"

    async def body(model: Any) -> Any:
        @andon.agent
        async def both(ctx: andon.Context) -> list[str]:
            one, two = await asyncio.gather(
                *(Runner.run(agent(model, work), f"go {number}") for number in (1, 2))
            )
            three = await Runner.run(agent(model, work), "go 3")
            return [one.final_output, two.final_output, three.final_output]

        async with andon.Client() as client:
            found = await client.run(both, id="r")
            names = [entry.name for entry in await client.journal("r")]
        return found, names

    found, names = with_model(fake, body)
    assert found == ["Done."] * 3
    assert done == ["worked"] * 3
    assert names.count("model") == 6


def test_sync_agents_and_sync_programs_can_use_the_runner(fake: FakeModel) -> None:
    def work() -> str:
        return "ok"

    address, alone = f"{fake.url}/v1", {"Connection": "close"}  # the loop is not ours to close
    client = AsyncOpenAI(base_url=address, api_key="fake", max_retries=0, default_headers=alone)
    ready = agent(OpenAIResponsesModel("m", client), work)

    @andon.agent
    def plain(ctx: Any) -> str:
        return str(Runner.run_sync(ready, "go").final_output)

    with andon.Client.sync() as one:
        assert one.run(plain, id="r") == "Done."


def test_a_session_contains_the_items_that_were_added(store: str) -> None:
    async def body() -> None:
        one, two = AndonSession("s", store), AndonSession("s")
        said: Any = [{"role": "user", "content": str(number)} for number in range(3)]
        await one.add_items(said[:2])
        await two.add_items(said[2:])
        assert await one.get_items() == said
        assert await one.get_items(2) == said[1:]
        assert await two.pop_item() == said[2]
        assert await two.pop_item() == said[1]
        assert await one.get_items() == said[:1]
        await one.clear_session()
        assert await two.get_items() == []
        assert await two.pop_item() is None
        one.close()
        two.close()

    asyncio.run(body())


def is_stopping() -> bool:
    return bool(andon.current().stopping)


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_cancelled_run_calls_nothing_any_more(fake: FakeModel, kind: str) -> None:
    begun, ended = threading.Event(), []

    async def work() -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    def wait() -> str:
        begun.set()
        while not is_stopping():
            time.sleep(0.01)
        ended.append("ended")
        return "ok"

    tool = function_tool(work if kind == "async" else wait, name_override="work")

    async def body(model: Any) -> Any:
        running = asyncio.ensure_future(Runner.run(agent(model, tool), "go", run_id="r"))
        async with andon.Client() as client:
            await asyncio.to_thread(begun.wait)
            await client.cancel("r", within=0.2)
            with pytest.raises(andon.errors.StepFailed, match="cancelled"):
                await running
            entries = await client.journal("r")
        return [entry.state for entry in entries if entry.kind == "effect"]

    # A tool that a thread finished is confirmed; one that was cut off is not.
    known = {"async": ["planned", "started"], "sync": ["planned", "started", "confirmed"]}
    assert with_model(fake, body) == known[kind]
    assert ended == (["ended"] if kind == "sync" else [])
    assert len(fake.requests) == 1


class Slow(agents.Model):
    """A model that is cut off in the middle of its answer, the first time."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    async def get_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def stream_response(self, *_: Any, **__: Any) -> Any:
        self.heard.append(andon.current().partial)
        common: Any = {"content_index": 0, "item_id": "m", "output_index": 0, "logprobs": []}
        for number, word in enumerate(("Hel", "lo")):
            yield ResponseTextDeltaEvent(
                type="response.output_text.delta", delta=word, sequence_number=number, **common
            )
            if len(self.heard) == 1:
                await asyncio.Event().wait()
        async for event in ScriptedModel([[assistant_message("Hello")]]).stream_response(
            None, "", agents.ModelSettings(), [], None, [], agents.ModelTracing.DISABLED,
            previous_response_id=None, conversation_id=None, prompt=None,
        ):  # fmt: skip
            if event.type == "response.completed":
                yield event


def test_the_partial_answer_of_a_cut_off_model_is_available_to_the_next_attempt() -> None:
    async def body() -> None:
        model = Slow()
        first = Runner.run_streamed(agent(model), "go", run_id="r")
        async for event in first.stream_events():
            if event.type == "raw_response_event":
                first.cancel()
        second = Runner.run_streamed(agent(model), "go", run_id="r")
        heard = [
            event.data.delta
            async for event in second.stream_events()
            if event.type == "raw_response_event" and hasattr(event.data, "delta")
        ]
        assert heard == ["Hel", "lo"]
        assert second.final_output == "Hello"
        assert model.heard == [None, "Hel"]

    asyncio.run(body())


def test_a_run_that_is_cancelled_while_its_model_streams_makes_no_further_request() -> None:
    async def body() -> None:
        model = Slow()
        streamed = Runner.run_streamed(agent(model), "go", run_id="r")
        async with andon.Client() as client:
            with pytest.raises(andon.errors.StepFailed, match="cancelled"):  # noqa: PT012
                async for event in streamed.stream_events():
                    if event.type == "raw_response_event":
                        await client.cancel("r", within=0.2)
        assert model.heard == [None]

    asyncio.run(body())


def test_an_abandoned_stream_continues_when_it_is_called_again(fake: FakeModel) -> None:
    done: list[str] = []

    async def work() -> str:
        done.append("worked")
        return "ok"

    async def body(model: Any) -> Any:
        first = Runner.run_streamed(agent(model, work), "go", run_id="r")
        async for event in first.stream_events():
            if event.type == "run_item_stream_event" and event.name == "tool_output":
                first.cancel("after_turn")
        assert first.final_output is None
        second = Runner.run_streamed(agent(model, work), "go", run_id="r")
        async for event in second.stream_events():
            if event.type == "raw_response_event":
                second.cancel()
        return await Runner.run(agent(model, work), "go", run_id="r")

    assert with_model(fake, body).final_output == "Done."
    assert done == ["worked"]


def test_a_cancelled_consumer_of_a_stream_releases_the_run(fake: FakeModel) -> None:
    done: list[str] = []

    async def work() -> str:
        done.append("worked")
        return "ok"

    async def body(model: Any) -> Any:
        async def listen() -> None:
            streamed = Runner.run_streamed(agent(model, work), "go", run_id="r")
            async for event in streamed.stream_events():
                if event.type == "run_item_stream_event" and event.name == "tool_output":
                    heard.set()
                    await asyncio.Event().wait()

        heard = asyncio.Event()
        listening = asyncio.ensure_future(listen())
        await heard.wait()
        listening.cancel()
        await asyncio.wait({listening})
        return await Runner.run(agent(model, work), "go", run_id="r")

    assert with_model(fake, body).final_output == "Done."
    assert done == ["worked"]


def test_an_untested_version_of_the_sdk_is_refused() -> None:
    code = (
        "from importlib import metadata\n"
        "metadata.version = lambda _: '0.25.0'\n"
        "import andon.adapters.openai_agents"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "needs the OpenAI Agents SDK 0.24 (found 0.25.0)" in done.stderr

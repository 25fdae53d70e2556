"""A graph as a run of its own: one call instead of `invoke`."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from tests.adapters.scripted import Scripted, calls

import andon
from andon.adapters.langgraph import AndonMiddleware, AndonSaver, run, run_sync
from andon.errors import Conflict, StepFailed

HELLO: Any = {"messages": [("user", "hello")]}
ways = pytest.mark.parametrize("plain", [True, False], ids=["run_sync", "run"])


class Shop:
    """An agent with one tool that acts, and may fail once."""

    def __init__(self, url: str) -> None:
        self.url, self.charged, self.fails = url, 0, False
        self.saver = AndonSaver(url)
        self.model = Scripted(script=[calls(("charge", {"eur": 2})), "It is yours.", "Welcome."])

        def charge(eur: int) -> str:
            """Charge."""
            self.charged += 1
            return "charged"

        self.graph = create_agent(
            self.model, [charge], checkpointer=self.saver, middleware=[AndonMiddleware()]
        )

    def run(self, given: Any, *, plain: bool, **options: Any) -> Any:
        options = {"store": self.url, **options}
        if plain:
            return run_sync(self.graph, given, **options)
        return asyncio.run(run(self.graph, given, **options))


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    found = Shop(f"sqlite:///{tmp_path}/andon.db")
    with found.saver:
        yield found


@ways
def test_a_second_call_with_the_same_run_id_returns_the_same_answer(
    shop: Shop, plain: bool
) -> None:
    first = shop.run(HELLO, plain=plain, run_id="o-1")
    again = shop.run(HELLO, plain=plain, run_id="o-1")
    assert [one.text for one in first["messages"]] == ["hello", "", "charged", "It is yours."]
    assert again == first
    assert shop.charged == 1
    assert len(shop.model.asked) == 2


@ways
def test_the_next_run_continues_the_same_thread(shop: Shop, plain: bool) -> None:
    first = shop.run(HELLO, plain=plain, run_id="o-1", thread_id="ann")
    thanks = {"messages": [HumanMessage("thanks")]}
    second = shop.run(thanks, plain=plain, run_id="o-2", thread_id="ann")
    assert [one.text for one in second["messages"][4:]] == ["thanks", "Welcome."]
    assert shop.run(HELLO, plain=plain, run_id="o-1", thread_id="ann") == first
    assert shop.charged == 1


def test_the_same_run_id_with_another_input_is_refused(shop: Shop) -> None:
    shop.run(HELLO, plain=True, run_id="o-1")
    with pytest.raises(Conflict, match="o-1"):
        shop.run({"messages": [("user", "other")]}, plain=True, run_id="o-1")
    assert shop.charged == 1


def test_a_run_that_was_interrupted_is_continued(shop: Shop) -> None:
    """The run has begun and its process is gone, as after a kill."""

    async def cut_off() -> None:
        reached = asyncio.Event()
        loop = asyncio.get_running_loop()

        def hold(name: str, _: Any) -> None:
            if name == "effect:confirmed":
                loop.call_soon_threadsafe(reached.set)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(andon.points, "watch", hold)
            running = asyncio.ensure_future(run(shop.graph, HELLO, run_id="o-1", store=shop.url))
            await reached.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    asyncio.run(cut_off())
    found = shop.run(HELLO, plain=False, run_id="o-1")
    assert found["messages"][-1].text == "It is yours."
    assert shop.charged == 1


def test_an_error_of_the_graph_is_the_error_of_the_run(shop: Shop) -> None:
    shop.model.script[0] = calls(("nothing", {}))
    shop.model.script[1:] = []
    with pytest.raises(StepFailed, match="run o-1"):
        shop.run(HELLO, plain=True, run_id="o-1")

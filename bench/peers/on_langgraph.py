"""LangGraph, in process, with its SQLite checkpointer.

Without its hosted platform LangGraph has no verb for it: the asyncio task that awaits
`graph.ainvoke(…)` is cancelled, and running nodes with it (langchain-ai/langgraph pull request 369,
"when outer invoke/stream is cancelled currently running nodes should be cancelled"). Its own
`RunControl.request_drain()` ("Fault tolerance" in its docs) takes effect between steps only. It
says that the run is over when the awaiting task is done.
"""

import asyncio
from importlib.metadata import version
from typing import Any, TypedDict

from driver import Driver, Loop, main
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from stamps import async_step, blocked_step, stubborn_step, sync_step


class State(TypedDict):
    stamps: str


async def async_node(state: State) -> State:
    await async_step(state["stamps"])
    return state


async def stubborn_node(state: State) -> State:
    await stubborn_step(state["stamps"])
    return state


def sync_node(state: State) -> State:
    sync_step(state["stamps"])
    return state


def blocked_node(state: State) -> State:
    blocked_step(state["stamps"])
    return state


NODES = {"async": async_node, "stubborn": stubborn_node, "sync": sync_node, "blocked": blocked_node}


class LangGraph(Driver):
    ended = ("CancelledError raised",)

    def open(self) -> dict[str, str]:
        self.loop = Loop()
        # Held, because the connection is closed with it.
        self.opened = AsyncSqliteSaver.from_conn_string(str(self.folder / "checkpoints.db"))
        self.saver = self.loop.run(self.opened.__aenter__())
        return {"langgraph": version("langgraph")}

    def start(self, kind: str, stamps: str) -> Any:
        graph = StateGraph(State)
        graph.add_node("step", NODES[kind])
        graph.add_edge(START, "step")
        graph.add_edge("step", END)
        ready = graph.compile(checkpointer=self.saver)
        config: Any = {"configurable": {"thread_id": stamps}}

        async def begin() -> "asyncio.Task[Any]":
            return asyncio.create_task(ready.ainvoke({"stamps": stamps}, config))

        return self.loop.run(begin())

    def stop(self, run: Any) -> None:
        self.loop.loop.call_soon_threadsafe(run.cancel)

    def says(self, run: Any) -> str:
        if not run.done():
            return "running"
        return "CancelledError raised" if run.cancelled() else "done"


if __name__ == "__main__":
    main(LangGraph)

"""LangGraph with its own savers, a looping node of a StateGraph, `durability="sync"`.

docs.langchain.com, "Durable execution": "sync" persists "before the next step starts"; the other
modes do not promise that. A library without queue and worker: its worker here is the caller's
process, which gets runs through a pipe, and after a crash gets the unfinished ones again
(`ainvoke(None, …)` with the thread's id). PostgreSQL has a pool of 20 connections, as its docs
recommend for concurrency. On SIGTERM its `RunControl.request_drain()` ends it between two steps.
A conversation is a list in the state with a reducer, as its message state is.
"""

import asyncio
import contextlib
import json
import operator
import os
import signal
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Annotated, Any, TypedDict

import scenes
from langgraph.errors import GraphDrained
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import RunControl
from system import Absent, System, main


class State(TypedDict):
    scene: str
    given: list[Any]
    number: int
    last: Any
    messages: Annotated[list[Any], operator.add]


async def node(state: State) -> dict[str, Any]:
    name, given = scenes.plan(state["scene"], *state["given"])[state["number"]]
    result = await scenes.perform(name, given)
    kept = {"messages": [result]} if state["scene"] == "chat" else {"last": result}
    return {"number": state["number"] + 1, **kept}


def follow(state: State) -> str:
    return "step" if state["number"] < len(scenes.plan(state["scene"], *state["given"])) else END


@contextlib.asynccontextmanager
async def saver() -> AsyncIterator[Any]:
    if os.environ["BENCH_STORE"] == "sqlite":
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        async with AsyncSqliteSaver.from_conn_string(os.environ["BENCH_URL"]) as opened:
            await opened.setup()
            yield opened
    else:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
        from psycopg.rows import dict_row
        from psycopg_pool import AsyncConnectionPool

        kwargs = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        url = os.environ["BENCH_URL"]
        async with AsyncConnectionPool(url, min_size=1, max_size=20, kwargs=kwargs) as pool:
            opened = AsyncPostgresSaver(pool)
            await opened.setup()
            yield opened


class LangGraph(System):
    standby = False
    program = __file__

    def open(self) -> dict[str, str]:
        os.environ["BENCH_URL"] = str(self.sqlite) if self.store == "sqlite" else self.postgres
        self.handed: list[str] = []
        return {"langgraph": version("langgraph")}

    def worker(self, concurrency: int) -> Any:
        (self.folder / "handed").unlink(missing_ok=True)
        os.mkfifo(self.folder / "handed")
        # For reading too: so it opens at once, and a worker that ends does not close it.
        self.pipe = os.open(self.folder / "handed", os.O_RDWR)
        for line in self._unfinished():
            os.write(self.pipe, line.encode())
        return super().worker(concurrency)

    def _unfinished(self) -> list[str]:
        done = {one.word.removeprefix("done-") for one in self.log.read()}
        self.handed = [line for line in self.handed if json.loads(line)[1] not in done]
        return self.handed

    def submit(self, scene: str, runs: list[list[Any]]) -> None:
        for given in runs:
            self.handed.append(json.dumps([scene, *given]) + "\n")
            os.write(self.pipe, self.handed[-1].encode())

    def latency(self, count: int) -> dict[str, Any]:
        raise Absent("it has no queue: its caller is its worker")

    def suspended(self, count: int) -> dict[str, Any]:
        raise Absent("a run that waits (`interrupt`) has returned to its caller: nothing is held")


async def serve() -> None:
    control = RunControl()
    loop = asyncio.get_running_loop()
    told = asyncio.Event()

    def leave() -> None:
        control.request_drain("SIGTERM")
        told.set()

    loop.add_signal_handler(signal.SIGTERM, leave)
    async with saver() as opened:
        graph = StateGraph(State)
        graph.add_node("step", node)
        graph.add_edge(START, "step")
        graph.add_conditional_edges("step", follow)
        compiled = graph.compile(checkpointer=opened)

        async def run(scene: str, key: str, *numbers: int) -> None:
            config: Any = {"configurable": {"thread_id": key}, "recursion_limit": 100_000}
            known = (await compiled.aget_state(config)).values
            scenes.begun(key)
            first = {"scene": scene, "given": [key, *numbers], "number": 0, "messages": []}
            asked = None if known else first
            with contextlib.suppress(GraphDrained):
                await compiled.ainvoke(asked, config, durability="sync", control=control)
                scenes.done(key)

        running = set[asyncio.Task[None]]()
        handed = os.open("handed", os.O_RDONLY | os.O_NONBLOCK)

        def hear() -> None:
            for line in os.read(handed, 1 << 20).splitlines():
                running.add(asyncio.create_task(run(*json.loads(line))))

        loop.add_reader(handed, hear)
        scenes.note("ready")
        await told.wait()
        await asyncio.gather(*running)


def work() -> None:
    asyncio.run(serve())


if __name__ == "__main__":
    main(LangGraph, work)

"""One conversation, saved by one checkpointer: python checkpointer.py SAVER URL MESSAGES.

Runs in the environment that has the checkpointer; prints {"ms": …, "bytes": …} as one line of JSON.
"""

import json
import os
import sys
import time
from contextlib import AbstractContextManager
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages


class State(TypedDict):
    messages: Annotated[list, add_messages]
    said: int


def conversation(saver: Any, messages: int) -> Any:
    def say(state: State) -> dict[str, Any]:
        return {"messages": [("ai", os.urandom(512).hex())], "said": state["said"] + 1}

    graph = StateGraph(State)
    graph.add_node("say", say)
    graph.add_edge(START, "say")
    graph.add_conditional_edges("say", lambda s: END if s["said"] >= messages else "say")
    return graph.compile(checkpointer=saver)


def open_saver(name: str, url: str) -> AbstractContextManager[Any]:
    if name == "andon":
        from andon.adapters.langgraph import AndonSaver

        return AndonSaver(url)
    if url.startswith("sqlite:///"):
        from langgraph.checkpoint.sqlite import SqliteSaver

        return SqliteSaver.from_conn_string(url.removeprefix("sqlite:///"))
    from langgraph.checkpoint.postgres import PostgresSaver

    return PostgresSaver.from_conn_string(url)


def main() -> None:
    name, url, messages = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with open_saver(name, url) as saver:
        if name == "official":
            saver.setup()
        before = size(url)
        graph = conversation(saver, messages)
        config = {"configurable": {"thread_id": "1"}, "recursion_limit": 10 * messages}
        begun = time.perf_counter()
        graph.invoke({"messages": [("user", "hello")], "said": 0}, config, durability="sync")
        seconds = time.perf_counter() - begun
        assert len(graph.get_state(config).values["messages"]) == messages + 1
    print(json.dumps({"ms": seconds / messages * 1000, "bytes": size(url) - before}))


def size(url: str) -> int:
    if url.startswith("sqlite:///"):
        import sqlite3

        with sqlite3.connect(url.removeprefix("sqlite:///")) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return int(db.execute("SELECT sum(pgsize) FROM dbstat").fetchone()[0] or 0)
    import psycopg

    with psycopg.connect(url, autocommit=True) as db:
        row = db.execute("SELECT pg_database_size(current_database())").fetchone()
        assert row is not None
        return int(row[0])


if __name__ == "__main__":
    main()

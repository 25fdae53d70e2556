"""The saver keeps a graph's values unchanged, in space proportional to the conversation."""

import asyncio
import operator
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Annotated, Any, TypedDict

import apsw
import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME, SCHEDULED
from langgraph.graph import END, START, StateGraph
from tests.adapters.graphs import checkpoint, conversation, of, save

from andon.adapters.langgraph import AndonSaver
from andon.errors import BadInput, Corrupt, NotStorable
from andon.store import sqlite_path

FULL = 5_000_000


def loaded(saver: AndonSaver, config: Any) -> dict[str, Any]:
    found = saver.get_tuple(config)
    assert found is not None
    return found.checkpoint["channel_values"]


def size(url: str) -> int:
    """The size of the threads, including their indexes."""
    if (path := sqlite_path(url)) is not None:
        db = apsw.Connection(str(path))
        rows = db.execute("SELECT sum(pgsize) FROM dbstat WHERE name LIKE '%andon_graph_%'")
        return int(rows.get)
    with psycopg.connect(url, autocommit=True) as connection:
        tables = ("checkpoints", "channels", "writes", "pieces")
        sizes = [
            connection.execute(
                "SELECT pg_total_relation_size(%s::regclass)", [f"andon.graph_{table}"]
            ).fetchall()[0][0]
            for table in tables
        ]
        return int(sum(sizes))


def pieces(url: str) -> int:
    if (path := sqlite_path(url)) is not None:
        return int(
            apsw.Connection(str(path)).execute("SELECT count(*) FROM andon_graph_pieces").get
        )
    with psycopg.connect(url) as connection:
        return int(connection.execute("SELECT count(*) FROM andon.graph_pieces").fetchall()[0][0])


# ── values ────────────────────────────────────────────────────────────────────────────────────


def test_values_of_every_size_are_restored(saver: AndonSaver) -> None:
    values = {
        "none": None,
        "number": 7,
        "text": "ä" * 5000,
        "bytes": b"\0\1" * 5000,
        "empty": [],
        "small": [1, "two", None],
        "long": [{"n": n, "text": "x" * n} for n in range(1100)],
        "messages": [HumanMessage("hi", id="1"), AIMessage("y" * 3000, id="2")],
        "nested": {"list": [[1], [2, [3]]]},
        "odd": [None, b"x", bytearray(b"y"), {1, 2}, 1.5, True],
    }
    stored = save(saver, of("t"), values)
    assert loaded(saver, stored) == values
    [listed] = saver.list(of("t"))
    assert listed.checkpoint["channel_values"] == values


def test_the_sync_methods_save_and_restore_the_same_values(saver: AndonSaver) -> None:
    first = save(saver, of("t"), {"a": 1})
    second = save(saver, first, {"a": 2})
    saver.put_writes(second, [("a", 3)], "task")
    newest = saver.get_tuple(of("t"))
    assert newest is not None
    assert newest.config == second
    assert newest.parent_config == first
    assert newest.pending_writes == [("task", "a", 3)]
    assert [one.config for one in saver.list(of("t"))] == [second, first]
    assert [one.config for one in saver.list(of("t"), before=second)] == [first]
    assert [one.config for one in saver.list(None, limit=1, filter={"step": 1})] == [second]
    saver.copy_thread("t", "copy")
    saver.prune(["t"])
    assert [one.config for one in saver.list(of("t"))] == [second]
    assert len(list(saver.list(of("copy")))) == 2
    saver.prune(["copy"], strategy="delete")
    saver.delete_thread("t")
    assert list(saver.list(None)) == []
    with pytest.raises(BadInput, match="keep_latest"):
        saver.prune(["t"], strategy="some")


def test_deleting_a_langgraph_run_deletes_what_it_saved(saver: AndonSaver, store_url: str) -> None:
    for run in ("one", "two"):
        made = checkpoint({"list": [run * 300] * 9}, run)
        saver.put(of(run), made, {"run_id": run}, made["channel_versions"])
    saver.delete_for_runs(["one"])
    assert [one.metadata["run_id"] for one in saver.list(None)] == ["two"]
    assert pieces(store_url) == 1


def test_an_element_that_was_changed_in_place_is_saved_with_its_current_value(
    saver: AndonSaver,
) -> None:
    messages = [AIMessage(f"{n} " + "x" * 500, id=str(n)) for n in range(50)]
    first = save(saver, of("t"), {"messages": messages})
    messages[3].content = "another"
    second = save(saver, first, {"messages": messages})
    assert loaded(saver, second)["messages"][3].content == "another"
    assert loaded(saver, first)["messages"][3].content.startswith("3 x")


def test_forks_of_a_thread_keep_their_own_values(saver: AndonSaver) -> None:
    root = save(saver, of("t"), {"messages": ["root"]})
    forks = [save(saver, root, {"messages": ["root", name * 400]}) for name in ("a", "b")]
    for fork, name in zip(forks, ("a", "b"), strict=True):
        assert loaded(saver, fork)["messages"] == ["root", name * 400]


def test_a_repeated_write_counts_once_and_a_special_one_is_overwritten(saver: AndonSaver) -> None:
    stored = save(saver, of("t"), {"a": 1})
    special = (ERROR, SCHEDULED, INTERRUPT, RESUME)
    for word in ("first", "second"):
        saver.put_writes(stored, [("a", word), ("b", word * 200)], "task")
        for channel in special:
            saver.put_writes(stored, [(channel, word)], "task")
    found = saver.get_tuple(stored)
    assert found is not None
    assert found.pending_writes is not None
    written = {channel: value for _, channel, value in found.pending_writes}
    assert written == {"a": "first", "b": "first" * 200, **dict.fromkeys(special, "second")}
    assert len(found.pending_writes) == 6


def test_writes_are_in_the_order_in_which_langgraph_applies_them(saver: AndonSaver) -> None:
    stored = save(saver, of("t"), {"a": 1})
    for task, path in (("z", "~1"), ("a", "~2"), ("m", ""), ("b", "~1")):
        saver.put_writes(stored, [("a", task + "0"), ("a", task + "1")], task, path)
    found = saver.get_tuple(stored)
    assert found is not None
    assert found.pending_writes is not None
    assert [value for *_, value in found.pending_writes] == [
        *("m0", "m1", "b0", "b1", "z0", "z1", "a0", "a1")
    ]


class Deltas(TypedDict):
    items: Annotated[list[Any], DeltaChannel(lambda now, new: [*now, *chain(*new)])]
    count: Annotated[int, operator.add]


def deltas(saver: AndonSaver) -> Any:
    graph = StateGraph(Deltas)
    for name in ("left", "right"):
        graph.add_node(name, lambda state, name=name: {"items": [f"{name}{state['count']}"]})
    graph.add_node("join", lambda _: {"count": 1})
    graph.add_edge(START, "left")
    graph.add_edge(START, "right")
    graph.add_edge(["left", "right"], "join")
    graph.add_conditional_edges(
        "join", lambda state: END if state["count"] >= 5 else ["left", "right"]
    )
    return graph.compile(checkpointer=saver)


@pytest.mark.filterwarnings("ignore::langchain_core._api.beta_decorator.LangChainBetaWarning")
def test_delta_channels_are_rebuilt_in_order_and_outlive_a_prune(saver: AndonSaver) -> None:
    graph = deltas(saver)
    graph.invoke({"items": ["begin"], "count": 0}, of("t"), durability="sync")
    expected = ["begin", *(f"{side}{n}" for n in range(5) for side in ("left", "right"))]
    assert graph.get_state(of("t")).values["items"] == expected
    saver.prune(["t"])
    assert graph.get_state(of("t")).values["items"] == expected


# ── space ─────────────────────────────────────────────────────────────────────────────────────


def test_a_conversation_takes_space_in_proportion_to_its_length(
    saver: AndonSaver, store_url: str
) -> None:
    empty = size(store_url)
    sizes: list[int] = []
    for thread, length in (("a", 200), ("b", 400)):
        graph = conversation(saver, length)
        graph.invoke({"messages": [("user", "x")], "said": 0}, of(thread), durability="sync")
        assert len(graph.get_state(of(thread)).values["messages"]) == length + 1
        sizes.append(size(store_url) - empty - sum(sizes))
    assert sizes[1] < FULL
    assert sizes[1] < 2.3 * sizes[0]


def test_pieces_that_nothing_refers_to_are_deleted(saver: AndonSaver, store_url: str) -> None:
    config = of("t")
    for length in range(1, 101):
        config = save(saver, config, {"list": [f"{n} " + "x" * 300 for n in range(length)]})
        saver.put_writes(config, [("list", ["y" * 400 + str(length)])], "task")
    before = pieces(store_url)
    saver.prune(["t"])
    assert pieces(store_url) == 100 + 4 + 1 + 1 < before  # elements, blocks, the top, the write
    assert len(loaded(saver, of("t"))["list"]) == 100
    saver.delete_thread("t")
    assert pieces(store_url) == 0


def test_a_piece_that_was_tampered_with_is_refused_as_corrupt(
    saver: AndonSaver, store_url: str
) -> None:
    stored = save(saver, of("t"), {"text": "x" * 1000})
    if (path := sqlite_path(store_url)) is not None:
        apsw.Connection(str(path)).execute("UPDATE andon_graph_pieces SET body = x'7600'")
    else:
        with psycopg.connect(store_url) as connection:
            connection.execute("UPDATE andon.graph_pieces SET body = '\\x7600'")
    with pytest.raises(Corrupt, match="backup"):
        saver.get_tuple(stored)


# ── concurrency ───────────────────────────────────────────────────────────────────────────────


def test_many_threads_save_concurrently(saver: AndonSaver) -> None:
    together = threading.Barrier(8)

    def work(number: int) -> None:
        together.wait()
        config = of("shared" if number % 2 else f"own-{number}")
        for step in range(10):
            config = save(saver, config, {"list": [f"{n} " + "x" * 99 for n in range(step + 1)]})
            assert len(loaded(saver, config)["list"]) == step + 1

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert len(list(saver.list(None))) == 80


def test_a_concurrent_prune_deletes_no_piece_that_a_save_needs(
    opened: Callable[[], AndonSaver],
) -> None:
    saver, pruner = opened(), opened()
    elements = [f"{n} " + "x" * 99 for n in range(100)]
    done = threading.Event()

    def prune() -> None:
        while not done.is_set():
            pruner.prune(["t"])

    beside = threading.Thread(target=prune)
    beside.start()
    try:
        config = of("t")
        for length in (*range(1, 60), *range(60, 1, -1)):
            config = save(saver, config, {"list": elements[:length]})
            assert loaded(saver, config)["list"] == elements[:length]
    finally:
        done.set()
        beside.join()


def test_sync_and_async_methods_both_work_inside_an_event_loop(saver: AndonSaver) -> None:
    async def use() -> int:
        graph = conversation(saver, 3)
        given = {"messages": [("user", "x")], "said": 0}
        await asyncio.gather(*(graph.ainvoke(given, of(f"a{n}")) for n in range(20)))
        save(saver, of("b"), {"list": ["x"]})
        assert loaded(saver, of("b")) == {"list": ["x"]}
        return len([one async for one in saver.alist(of("a1"))])

    assert asyncio.run(use()) == 5


def test_tools_that_occupy_every_thread_of_the_loop_do_not_delay_a_save(saver: AndonSaver) -> None:
    async def use() -> None:
        let_go = threading.Event()
        waiting = [asyncio.create_task(asyncio.to_thread(let_go.wait)) for _ in range(64)]
        try:
            await asyncio.sleep(0)
            made = checkpoint({"a": 1})
            await saver.aput(of("t"), made, {}, made["channel_versions"])
        finally:
            let_go.set()
        await asyncio.gather(*waiting)

    asyncio.run(asyncio.wait_for(use(), 30))


# ── refusals ──────────────────────────────────────────────────────────────────────────────────


def test_a_value_that_cannot_be_saved_is_named_and_never_pickled(saver: AndonSaver) -> None:
    with pytest.raises(NotStorable, match="channel 'lock'"):
        save(saver, of("t"), {"lock": threading.Lock()})
    with pytest.raises(NotStorable, match="a write to 'lock'"):
        saver.put_writes(of("t", checkpoint_id="c"), [("lock", [threading.Lock()])], "task")
    with pytest.raises(NotStorable, match="metadata"):
        saver.put(of("t"), checkpoint({}), {"lock": threading.Lock()}, {})  # type: ignore[typeddict-unknown-key]
    assert saver.get_tuple(of("t")) is None


def test_without_langgraph_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['langgraph'] = None; import andon.adapters.langgraph"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'andon[langgraph]'" in done.stderr


def test_importing_andon_loads_nothing_of_the_framework() -> None:
    code = (
        "import sys, andon.adapters, andon.runtime.worker.worker, andon.cli.app;"
        " import andon.store.sqlite.store;"
        " print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not {"langgraph", "langchain", "langchain_core"} & set(done.stdout.split())

"""Only the owner of a run saves in its name; the check and the save are one commit."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import apsw
import psycopg
import pytest
from tests.adapters.graphs import checkpoint, conversation, of, save
from tests.store.parts import Held, begin, do, register, take

from andon.adapters.langgraph import AndonSaver
from andon.errors import BadInput, Fenced
from andon.store import sqlite_path
from andon.store.store import Depart, Store


def owned(held: Held) -> Any:
    return of("t", andon={"run_id": held.id, "fence": list(held.fence)})


def taken_over(store: Store) -> Held:
    do(store, Depart(worker_id="w"))
    register(store, "other")
    return take(store, worker_id="other")


def test_the_owner_saves_until_another_worker_owns_the_run(saver: AndonSaver, store: Store) -> None:
    first = begin(store)
    stored = save(saver, owned(first), {"list": ["x" * 300]})
    assert "andon" not in stored["configurable"]
    second = taken_over(store)
    named = {**stored["configurable"], **owned(first)["configurable"]}
    with pytest.raises(Fenced):
        save(saver, owned(first), {"list": ["y" * 300]})
    with pytest.raises(Fenced):
        saver.put_writes({"configurable": named}, [("list", ["z"])], "task")
    [only] = saver.list(of("t"))
    assert only.config == stored
    assert only.pending_writes == []
    save(saver, owned(second), {"list": ["w"]})
    save(saver, of("t"), {"list": ["outside of a run nothing is fenced"]})
    assert len(list(saver.list(of("t")))) == 3


def test_a_finished_run_saves_nothing(saver: AndonSaver, store: Store) -> None:
    held = begin(store)
    do(store, held.settle("succeeded", entries=(held.entry(kind="end", state="succeeded"),)))
    with pytest.raises(Fenced):
        save(saver, owned(held), {})


def test_a_graph_does_not_continue_without_its_run(saver: AndonSaver, store: Store) -> None:
    held = begin(store)
    graph = conversation(saver, 5)
    steps = graph.stream({"messages": [("user", "x")], "said": 0}, owned(held), durability="sync")
    next(steps)
    taken_over(store)
    with pytest.raises(Fenced):
        list(steps)
    assert graph.get_state(of("t")).values["said"] <= 1


@pytest.mark.parametrize("owner", [{}, {"run_id": "r"}, "r", {"run_id": "r", "fence": "1"}])
def test_an_invalid_owner_is_refused(saver: AndonSaver, owner: Any) -> None:
    with pytest.raises(BadInput, match="fence"):
        save(saver, of("t", andon=owner), {})
    assert saver.get_tuple(of("t")) is None


@contextlib.contextmanager
def claiming(url: str) -> Iterator[None]:
    """Inside the block another owner's claim is made and not committed."""
    if (path := sqlite_path(url)) is not None:
        db = apsw.Connection(str(path))
        with db:
            db.execute("UPDATE andon_runs SET fence = fence + 1")
            yield
    else:
        with psycopg.connect(url) as connection:
            connection.execute("UPDATE andon.runs SET fence = fence + 1")
            yield


def test_a_claim_in_the_middle_of_a_save_wins(
    saver: AndonSaver, store: Store, store_url: str
) -> None:
    held = begin(store)
    refused = []

    def try_to_save() -> None:
        made = checkpoint({"a": 1})
        try:
            saver.put(owned(held), made, {}, made["channel_versions"])
        except Fenced as fenced:
            refused.append(fenced)

    with claiming(store_url):
        saving = threading.Thread(target=try_to_save)
        saving.start()
        saving.join(0.3)
        assert saving.is_alive(), "it did not wait for the claim"
    saving.join()
    assert len(refused) == 1
    assert saver.get_tuple(of("t")) is None

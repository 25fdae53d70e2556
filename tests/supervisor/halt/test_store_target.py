"""The store is notified by a supervisor that has it open, or by a process of the command's own."""

from typing import Any

import pytest

from andon.host import home as homes
from andon.supervisor.halt import store_target as fleets
from andon.supervisor.halt.store_target import SUPERVISOR_SECONDS, StoreTarget

URL = "sqlite:////somewhere/andon.db"
PROVED = {
    "pull": "rcp_1", "state": "answered", "order": "rcp_1", "over": True,
    "targets": 2, "verified": 2, "kinds": {"supervisor": 2}, "unproved": [],
}  # fmt: skip


class Owner:
    """A supervisor as the command sees it."""

    def __init__(self, **said: Any) -> None:
        self.entry = homes.this_process("s1", "supervisor", store=URL)
        self.store: dict[str, Any] = said
        self.listens = True


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The processes started; no real one is."""
    names: list[str] = []
    monkeypatch.setattr(
        StoreTarget, "_start", lambda _self, words, _store: names.append(words["order"])
    )
    return names


def telling(owner: Owner, *stores: str) -> StoreTarget:
    words = {"order": "rcp_1", "stores": [URL, *stores]}
    return StoreTarget(words, "", 10.0, [owner], set())  # type: ignore[list-item]


def test_a_supervisor_that_notified_the_store_is_believed(
    started: list[str],
) -> None:
    found = telling(Owner(**PROVED))
    assert (found.done, found.answered, started) == (True, True, [])
    assert found.report() == {
        "state": "answered", "url": URL, "others": [], "by": "supervisor s1", "order": "rcp_1",
        "targets": 2, "verified": 2, "kinds": {"supervisor": 2}, "unproved": [],
    }  # fmt: skip


def test_a_notification_in_progress_is_waited_for(started: list[str]) -> None:
    owner = Owner(**PROVED | {"over": False, "verified": 1, "unproved": ["supervisor s2: fenced"]})
    found = telling(owner)
    found.look(1e9)
    assert (found.done, found.answered, started) == (False, True, [])
    assert found.report()["unproved"] == ["supervisor s2: fenced"]
    owner.store = PROVED
    found.look(1e9)
    assert found.done
    assert found.report()["unproved"] == []


def test_a_supervisor_that_is_silent_too_long_is_not_waited_for(started: list[str]) -> None:
    found = telling(Owner())
    found.look(found._began + SUPERVISOR_SECONDS)
    assert started == []
    found.look(found._began + SUPERVISOR_SECONDS + 0.001)
    assert (started, found.done) == (["rcp_1"], False)


@pytest.mark.parametrize("said", [{}, PROVED | {"over": False}])
def test_a_supervisor_that_hangs_up_early_is_not_waited_for(
    started: list[str], said: dict[str, Any]
) -> None:
    owner = Owner(**said)
    owner.listens = False
    assert not telling(owner).done
    assert started == ["rcp_1"]


def test_a_supervisor_that_finished_and_hung_up_is_believed(started: list[str]) -> None:
    owner = Owner(**PROVED)
    owner.listens = False
    assert telling(owner).done
    assert started == []


def test_an_answer_about_another_pull_is_ignored(started: list[str]) -> None:
    owner = Owner(**PROVED | {"pull": "rcp_0"})
    owner.listens = False
    assert not telling(owner).done
    assert started == ["rcp_1"]


@pytest.mark.parametrize("name", sorted(PROVED.keys() - {"order"}))
def test_an_incomplete_answer_is_ignored(started: list[str], name: str) -> None:
    owner = Owner(**{key: value for key, value in PROVED.items() if key != name})
    owner.listens = False
    assert not telling(owner).done
    assert started == ["rcp_1"]


def test_another_store_of_this_host_is_named(started: list[str]) -> None:
    assert telling(Owner(**PROVED), "postgresql://u@h/d").report()["others"] == [
        "postgresql://u@h/d"
    ]


def test_without_a_supervisor_a_process_is_started_at_once(started: list[str]) -> None:
    fleets.StoreTarget({"order": "rcp_1", "stores": []}, "", 10.0, [], set())
    assert started == ["rcp_1"]

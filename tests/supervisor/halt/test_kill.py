"""Survivors of a kill are killed again, and named until they are gone."""

import os
from types import SimpleNamespace
from typing import Any, cast

from andon.supervisor.children.child import Child
from andon.supervisor.exit import SupervisorExit
from andon.supervisor.halt.kill import TreeKill
from andon.supervisor.spec import ChildSpec
from andon.supervisor.supervisor import Supervisor
from andon.supervisor.trees.tree import Tree, TreeSpec
from andon.supervisor.trees.walk import Walk, WalkTree


class Tough(Tree):
    """Each signal kills one of them, and one of them forks a child meanwhile."""

    by = "tough"

    def __init__(self, alive: int, births: int = 0) -> None:
        super().__init__(TreeSpec("tough"))
        self.alive, self.births, self.blows = list(range(100, 100 + alive)), births, 0

    def pids(self) -> list[int]:
        return list(self.alive)

    def kill(self) -> None:
        self.blows += 1
        self.alive.pop()
        if self.births:
            self.births -= 1
            self.alive.append(1000 + self.births)

    def freeze(self) -> bool:
        return False

    def thaw(self) -> bool:
        return False


def kill_of(tree: Tree) -> tuple[TreeKill, list[TreeKill]]:
    done: list[TreeKill] = []
    child = Child(ChildSpec("one", "worker", ["x"], {}), state="running", tree=tree)
    return TreeKill([child], done.append, seconds=60.0), done


def rounds(found: TreeKill) -> int:
    count = 1
    while not found.rounds():
        count += 1
        assert count < 100
    return count


def test_survivors_are_killed_again_until_none_is_left() -> None:
    tree = Tough(alive=5)
    found, _ = kill_of(tree)
    found.hit()
    assert found.rounds() is False
    assert found.survivors == [100, 101, 102, 103]
    rounds(found)
    assert (tree.blows, found.survivors, found.processes) == (5, [], 5)


def test_processes_born_during_the_kill_are_killed_and_counted() -> None:
    tree = Tough(alive=2, births=3)
    found, _ = kill_of(tree)
    found.hit()
    rounds(found)
    assert (tree.blows, found.survivors, found.processes) == (5, [], 5)


def test_one_kernel_call_is_enough_where_one_exists() -> None:
    tree = Tough(alive=3)
    found, _ = kill_of(tree)

    def all_at_once() -> bool:
        tree.alive.clear()
        return True

    found.hit(all_at_once)
    assert found.rounds()
    assert tree.blows == 0


def test_the_next_tree_of_a_child_is_left_alone() -> None:
    first, second = Tough(alive=3), Tough(alive=3)
    found, _ = kill_of(first)
    found.hit()
    found.targets[0].child.tree = second  # cleared away, and started again
    assert found.rounds()
    assert second.blows == 0


def test_a_tree_that_cannot_be_looked_at_is_not_proved_to_be_gone() -> None:
    class Hidden(Tough):
        def pids(self) -> list[int]:
            raise OSError("no /proc")

    tree: Any = Hidden(alive=50)
    tree.pid = 7
    found, _ = kill_of(tree)
    found.hit()
    assert found.rounds() is False
    assert found.survivors == [7]


class Births(Walk):
    """A look finds no process, while a dying parent's child is re-parented to us."""

    def __init__(self) -> None:
        self.trees, self.born = [], list[int]()

    def look(self) -> bool:
        new, self.born = not self.born, [os.getpid()]
        return new

    def orphans_of(self, *_: Any, **__: Any) -> list[int]:
        return self.born


def test_an_orphan_adopted_during_the_look_is_found() -> None:
    assert WalkTree(Births(), TreeSpec("one")).pids() == [os.getpid()]
    assert not WalkTree(Births(), TreeSpec("one")).empty()


class Sure(Tough):
    """One signal is enough, and they take a while to die."""

    sure = True

    def kill(self) -> None:
        self.blows += 1


def test_processes_already_signalled_are_left_to_die() -> None:
    tree = Sure(alive=3)
    found, _ = kill_of(tree)
    found.hit()
    for _ in range(3):
        found._next = 0.0  # whatever the time is
        assert found.rounds() is False
    assert (tree.blows, found.survivors, found.processes) == (1, [100, 101, 102], 3)
    tree.alive.clear()
    found._next = 0.0
    assert found.rounds() is True
    assert (tree.blows, found.survivors) == (1, [])


def test_processes_that_survive_a_signal_are_killed_again() -> None:
    tree = Sure(alive=3)
    found, _ = kill_of(tree)
    found.hit()
    found.targets[0].again_at = 0.0  # its time is over
    assert found.rounds() is False
    assert tree.blows == 2


def test_a_process_that_cannot_be_inspected_is_not_gone() -> None:
    tree = Sure(alive=3)
    found, _ = kill_of(tree)
    found.hit()
    tree.empty = tree.pids = lambda: (_ for _ in ()).throw(OSError(5, "no"))  # type: ignore[method-assign]
    found._next = 0.0
    assert found.rounds() is False
    assert found.survivors == [tree.pid]


def test_a_kill_is_reported_only_after_a_look_for_survivors() -> None:
    """The child's exit may be seen between two looks; survivors of the first delay the report."""
    child = SimpleNamespace(kind="command", state="ended", spec="single", exit_code=lambda: 128 + 9)
    own = SimpleNamespace(
        children=[child],
        supervised=[child],
        control=None,
        halt_state=SimpleNamespace(current=None),
        kills=[SimpleNamespace(survivors=[7], overran=False)],
        leaving="",
        channel=SimpleNamespace(send=lambda event, **facts: None),
        spec=SimpleNamespace(single="single"),
    )
    ending = SupervisorExit(cast(Supervisor, own))
    ending.look()
    assert not ending.begun
    own.kills.clear()
    ending.look()
    ending.look()
    assert ending.code == 128 + 9

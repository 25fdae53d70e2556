"""Processes die, or work side by side: every acknowledged checkpoint is there, and whole."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.adapters.graphs import of

from andon.adapters.langgraph import AndonSaver

PROGRAM = Path(__file__).parent / "graphs.py"


def program(verb: str, *words: object, faults: str = "") -> "subprocess.Popen[str]":
    line = [sys.executable, str(PROGRAM), verb, *map(str, words)]
    environ = {**os.environ, "ANDON_FAULTS": faults}
    return subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environ)


def finished(process: "subprocess.Popen[str]") -> tuple[int, list[str]]:
    printed, _ = process.communicate(timeout=60)
    return process.returncode, printed.split("\n")[:-1]


def is_whole(url: str, acknowledged: list[str]) -> None:
    """Every visible checkpoint is complete, and the acknowledged ones are all visible."""
    with AndonSaver(url) as saver:
        seen = {}
        for found in saver.list(of("t")):
            values = found.checkpoint["channel_values"]
            assert len(values["messages"]) == values["count"]
            assert all(
                text.startswith(f"message {n} ") for n, text in enumerate(values["messages"])
            )
            seen[found.config["configurable"]["checkpoint_id"]] = found
        for line in acknowledged:
            name, count = line.split()
            assert seen[name].checkpoint["channel_values"]["count"] == int(count)
            assert seen[name].pending_writes
        assert len(acknowledged) <= len(seen) <= len(acknowledged) + 1


@pytest.mark.parametrize("lines", [1, 40])
def test_a_process_that_is_killed_while_it_saves_leaves_whole_checkpoints(
    store_url: str, lines: int
) -> None:
    with program("save", store_url, "t") as process:
        assert process.stdout is not None
        acknowledged = [process.stdout.readline() for _ in range(lines)]
        process.kill()
        acknowledged += [line for line in process.stdout if line.endswith("\n")]
    assert process.returncode == -9
    is_whole(store_url, acknowledged)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("moment", ["writer:before-commit", "writer:after-commit"])
@pytest.mark.parametrize("nth", [41, 42])  # a checkpoint, and the writes after it
def test_a_process_that_dies_around_a_commit_leaves_whole_checkpoints(
    store_url: str, moment: str, nth: int
) -> None:
    code, acknowledged = finished(program("save", store_url, "t", faults=f"{moment}=kill@{nth}"))
    assert code == -9
    assert len(acknowledged) == 20
    is_whole(store_url, acknowledged)


def test_two_processes_save_to_one_store_concurrently(store_url: str) -> None:
    processes = [program("many", store_url, thread) for thread in ("same", "same", "other")]
    assert [finished(process)[0] for process in processes] == [0, 0, 0]
    with AndonSaver(store_url) as saver:
        assert [len(list(saver.list(of(thread)))) for thread in ("same", "other")] == [60, 30]
        for found in saver.list(None):
            numbers = found.checkpoint["channel_values"]["numbers"]
            assert numbers == list(range(len(numbers)))
            assert [value for *_, value in found.pending_writes or ()] == [len(numbers)]


def test_a_graph_continues_in_another_process_from_its_checkpoint(
    store_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "executed"
    assert finished(program("graph", store_url, "t", file)) == (-9, [])
    assert finished(program("graph", store_url, "t", file)) == (0, ["go", "first", "second"])
    assert file.read_text().split() == ["first", "second", "second"]


def test_an_agent_continues_in_another_process_from_its_checkpoint(
    store_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "executed"
    assert finished(program("agent", store_url, "t", file)) == (-9, [])
    code, printed = finished(program("agent", store_url, "t", file))
    assert (code, printed) == (0, ["go", "", "charged 5", "charged"])
    assert file.read_text().split() == ["charge", "asked", "asked"]

"""A command that fails leaves no folder and no database."""

import pytest
from tests.cli.terminal import Terminal


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("start", "nobody"), 4),
        (("start", "nobody", "name"), 2),
        (("start", "nobody", "--at", "tomorrow"), 4),
        (("run", "agents.py:greet", "nme=3"), 2),
        (("run", "agents.py:refunds", "orders=no"), 2),
        (("run", "agents.py:nobody"), 4),
        (("run", "agents.py"), 2),
        (("run", "missing.py"), 2),
        (("work", "missing.py"), 2),
        (("resume", "nobody"), 1),
        (("pause", "nobody"), 1),
        (("ps",), 1),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else str(words),
)
def test_a_refused_command_leaves_no_file(
    local: Terminal, words: tuple[str, ...], code: int
) -> None:
    (local.folder / "home").mkdir()
    before = {path.name for path in local.folder.iterdir()}
    url = f"sqlite:///{local.folder}/new/andon.db"
    local.run(*words, code=code, env={"ANDON_STORE": url})
    after = {path.name for path in local.folder.iterdir()} - {"__pycache__"}
    assert after == before
    local.run(*words, code=code, env={"ANDON_STORE": f"sqlite:///{local.folder}/andon.db"})
    assert {path.name for path in local.folder.iterdir()} - {"__pycache__"} == before


def test_a_start_waits_for_a_worker_that_is_started_with_it(local: Terminal) -> None:
    with local.process("start", "greet", "--id", "first") as waiting:
        waiting.says("no worker knows agent greet yet")
        with local.worker():
            assert waiting.ends() == 0
            assert local.state("first") in ("queued", "running", "succeeded")

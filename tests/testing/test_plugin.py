"""The pytest plugin in a user's project: one pytest run, judged by its own XML."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.testing import crash_agents

# The modules that pytest loads at every start, also in projects without agents.
LOADED = """
import sys
import pytest
before = set(sys.modules)
import andon.testing.plugin
print(*sorted(name for name in set(sys.modules) - before))
"""
TESTS = """
import os
import andon, pytest
from crash_agents import liar, plain
from andon.testing import call


@andon.agent
async def sleeper(ctx):
    return ctx.now().isoformat()


def test_store(andon_store):
    assert andon_store == os.environ["ANDON_STORE"] and andon_store.startswith("sqlite")


def test_clock(andon_store, andon_clock):
    with andon.Client.sync() as client:
        before = client.run(sleeper)
        andon_clock.advance("400d")
        assert client.run(sleeper)[:4] > before[:4]


def test_model(fake_model):
    fake_model.script = [call("charge", amount=1)]
    assert os.environ["OPENAI_BASE_URL"] == fake_model.url + "/v1"


def test_crashtest_passes(crashtest):
    assert crashtest(plain, "y", points="effect:executed").asked == 0


def test_crashtest_fails(crashtest):
    crashtest(liar, points="effect:executed")


@pytest.mark.andon_crashtest(liar, points="effect:executed,effect:confirmed")
def test_each(killed):
    assert killed.reached


@pytest.mark.andon_crashtest(plain)
def test_only_the_agent(killed):
    assert killed.state == "succeeded"


def test_unmarked(killed):
    pass
"""
# Tests that cannot be collected, each with its message.
WRONG = {
    "broken": (
        "@pytest.mark.andon_crashtest(broken)\ndef test_it(killed): pass\n",
        "the plain run failed: FileNotFoundError",
    ),
    "unused": (
        "@pytest.mark.andon_crashtest(plain)\ndef test_it(): pass\n",
        "a test marked andon_crashtest takes the fixture `killed`",
    ),
}


def test_starting_pytest_loads_no_heavy_module() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["andon", "andon.testing", "andon.testing.plugin"]


def run_pytest(folder: Path, tests: str) -> subprocess.CompletedProcess[str]:
    (folder / "crash_agents.py").write_text(Path(crash_agents.__file__).read_text())
    (folder / "test_theirs.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "--junitxml=found.xml"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The outcome of each test: empty if it passed, else the message of its failure."""
    folder = tmp_path_factory.mktemp("project")
    done = run_pytest(folder, TESTS)
    assert done.returncode == 1, done.stdout + done.stderr
    cases = ElementTree.parse(folder / "found.xml").iter("testcase")
    return {
        case.attrib["name"]: " ".join(
            f"{part.tag}: {part.attrib['message']}"
            for part in case
            if part.tag in ("failure", "error")
        )
        for case in cases
    }


@pytest.mark.parametrize("name", ["store", "clock", "model", "crashtest_passes"])
def test_a_correct_agent_passes(outcomes: dict[str, str], name: str) -> None:
    assert outcomes[f"test_{name}"] == ""


def test_a_finding_fails_the_test_with_its_message(outcomes: dict[str, str]) -> None:
    assert "effect 'trust' happened more often" in outcomes["test_crashtest_fails"]
    assert "its probe said did_not_happen" in outcomes["test_crashtest_fails"]


def test_every_kill_is_a_test_of_its_own(outcomes: dict[str, str]) -> None:
    each = {name: text for name, text in outcomes.items() if name.startswith("test_each")}
    assert sorted(each) == [
        "test_each[effect:confirmed forget]",
        "test_each[effect:confirmed trust]",
        "test_each[effect:executed forget]",
        "test_each[effect:executed trust]",
    ]
    assert "its probe said" in each["test_each[effect:executed trust]"]
    assert each["test_each[effect:executed trust]"].startswith("failure: ")
    assert each["test_each[effect:confirmed trust]"] == ""


def test_a_mark_may_name_the_agent_and_nothing_else(outcomes: dict[str, str]) -> None:
    """If a function is its only argument, pytest takes the mark for a decorator of it."""
    only = [text for name, text in outcomes.items() if name.startswith("test_only_the_agent")]
    assert len(only) > 5
    assert set(only) == {""}


@pytest.mark.parametrize("name", WRONG)
def test_a_test_that_cannot_be_collected_is_explained_in_a_sentence(
    tmp_path: Path, name: str
) -> None:
    tests, said = WRONG[name]
    head = "import pytest\nfrom crash_agents import broken, plain\n\n\n"
    done = run_pytest(tmp_path, head + tests)
    assert done.returncode == 2
    assert f"test_theirs.py::test_it: {said}" in done.stdout
    assert "Traceback" not in done.stdout
    assert "plugin.py" not in done.stdout


def test_the_fixture_needs_the_mark(outcomes: dict[str, str]) -> None:
    assert "expected a test marked @pytest.mark.andon_crashtest" in outcomes["test_unmarked"]


@pytest.mark.andon_postgres
def test_the_store_is_postgresql_if_configured(andon_store: str) -> None:
    assert andon_store.startswith("postgresql://")

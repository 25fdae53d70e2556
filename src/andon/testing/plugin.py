"""The pytest plugin: scratch stores, a clock, a fake model, and one test per kill.

pytest imports it at every start where andon is installed, so it imports nothing of andon before a
test needs it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from andon.testing import Clock, FakeModel, Report
    from andon.testing.crash import CrashTest
    from andon.testing.crash.report import Tried

POSTGRES = "andon_postgres"
CRASHTEST = "andon_crashtest"
FOUND = pytest.StashKey[str]()  # in a test of one kill: the findings


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("andon")
    group.addoption(
        "--andon-store",
        choices=("sqlite", "postgresql"),
        default="sqlite",
        help="Where the fixture andon_store is: a file, or a PostgreSQL server of its own.",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{POSTGRES}: the fixture andon_store is a PostgreSQL database in this test"
    )
    config.addinivalue_line(
        "markers",
        f"{CRASHTEST}(agent, *args, **options_and_kwargs): one test for each kill; it takes the "
        "fixture `killed`",
    )


@pytest.fixture(scope="session")
def andon_cluster() -> Iterator[Any]:
    """A PostgreSQL server for the tests of this session."""
    from andon.testing.postgres import Cluster, PostgresMissing

    try:
        cluster = Cluster()
    except PostgresMissing as missing:
        pytest.skip(f"{missing}")
    with cluster:
        yield cluster


@pytest.fixture
def andon_store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The URL of an empty store, which andon also opens by default in this test."""
    marked = request.node.get_closest_marker(POSTGRES) is not None
    monkeypatch.setenv("ANDON_HOME", str(tmp_path / "andon-home"))
    if not marked and request.config.getoption("--andon-store") == "sqlite":
        url = f"sqlite:///{tmp_path}/andon.db"
        monkeypatch.setenv("ANDON_STORE", url)
        yield url
        return
    cluster = request.getfixturevalue("andon_cluster")
    url = cluster.fresh_database()
    monkeypatch.setenv("ANDON_STORE", url)
    yield url
    cluster.drop_database(url.rpartition("/")[2])


@pytest.fixture
def andon_clock(andon_store: str) -> "Iterator[Clock]":
    """The clock of andon_store."""
    from andon.testing.clock import Clock

    with Clock(andon_store) as clock:
        yield clock


@pytest.fixture
def fake_model(monkeypatch: pytest.MonkeyPatch) -> "Iterator[FakeModel]":
    """A fake model that the providers' clients find through the environment; give it a `script`."""
    from andon.testing.model import FakeModel

    with FakeModel([]) as model:
        for name, value in model.environ.items():
            monkeypatch.setenv(name, value)
        yield model


@pytest.fixture
def crashtest() -> "Callable[..., Report]":
    """andon.testing.crashtest, which fails the test on any finding."""
    from andon.testing.crash import crashtest as run

    def check(*args: Any, **kwargs: Any) -> "Report":
        report = run(*args, **kwargs)
        if not report.clean:
            pytest.fail(str(report), pytrace=False)
        return report

    return check


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker(CRASHTEST)
    if marker is None:
        return
    name = metafunc.definition.nodeid
    if "killed" not in metafunc.fixturenames:
        raise pytest.Collector.CollectError(
            f"{name}: a test marked {CRASHTEST} takes the fixture `killed`"
        )
    from andon.errors import AndonError

    try:
        test = _begun(metafunc, marker)
        kills = test.kills()
    except AndonError as error:
        raise pytest.Collector.CollectError(f"{name}: {error}") from error
    metafunc.parametrize(
        "killed", [(test, kill) for kill in kills], indirect=True, ids=map(str, kills)
    )


def _begun(metafunc: pytest.Metafunc, marker: pytest.Mark) -> "CrashTest":
    """Execute the plain run, which determines the tests there are."""
    from andon.testing.crash import prepared

    test = prepared(*marker.args, **marker.kwargs)
    test.open()
    metafunc.config.add_cleanup(test.close)
    test.plain()
    return test


@pytest.fixture
def killed(request: pytest.FixtureRequest) -> "Tried":
    """The outcome of the trial with this kill; the test fails on any finding."""
    if not hasattr(request, "param"):
        pytest.fail(f"expected a test marked @pytest.mark.{CRASHTEST}(agent, …)", pytrace=False)
    test, kill = request.param
    tried: Tried
    tried, _ = test.trial(kill)
    if not tried.reached:
        pytest.skip(f"this time the run did not reach {tried}")
    said = [f"{one.what}\nwhy  {one.why}\ndo   {one.do}" for one in tried.findings]
    said += [f"a person would be asked about {name}" for name in tried.asked if test.options.strict]
    if said:
        request.node.stash[FOUND] = "\n".join([f"killed at {tried}", *said])
    return tried


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Report a finding as a failure of the test, not as an error of its fixture."""
    found = pyfuncitem.stash.get(FOUND, None)
    if found is not None:
        pytest.fail(found, pytrace=False)

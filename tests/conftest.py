"""Databases for the tests: a real SQLite file and a real PostgreSQL server."""

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from andon.testing.postgres import Cluster, PostgresMissing

NOT_FOUND = "PostgreSQL not found"
# A suite in the background ignores Ctrl-C, and so would every process that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Names of folders that are not there yet."""
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def home(homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A latch that nobody else pulls."""
    folder = next(homes)
    monkeypatch.setenv("ANDON_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One server for the session; each xdist worker is a session of its own."""
    try:
        server = Cluster()
    except PostgresMissing as missing:
        # In CI a skipped half of the promises must not look like a pass.
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{NOT_FOUND}: {missing}")
    with server:
        yield server


@pytest.fixture(scope="session")
def andon_cluster(cluster: Cluster) -> Cluster:
    """One is enough: the plugin that andon ships takes this one, too."""
    return cluster


@pytest.fixture
def postgres_url(cluster: Cluster) -> Iterator[str]:
    """A fresh, empty database for one test."""
    cluster.start()  # a test may have ended with the server killed
    url = cluster.fresh_database()
    yield url
    cluster.start()
    cluster.drop_database(url.rpartition("/")[2])


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/andon.db"


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest) -> str:
    """The same test on both databases."""
    url = request.getfixturevalue(f"{request.param}_url")
    assert isinstance(url, str)
    return url


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly that half of the promises went unchecked."""
    skipped = terminalreporter.stats.get("skipped", [])
    untested = [report for report in skipped if NOT_FOUND in str(report.longrepr)]
    if untested:
        text = f"{len(untested)} tests did NOT run: {NOT_FOUND}"
        terminalreporter.write_sep("!", text, red=True, bold=True)
        terminalreporter.write_line("Run `make venv`, which installs one, and test again.")

"""Databases for the tests: a real SQLite file and a real PostgreSQL server."""

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.databases import Databases

from andon.testing.postgres import Cluster, PostgresMissing

NOT_FOUND = "PostgreSQL not found"
# Files with the longest tests, minutes in all. They begin first, each row on an xdist worker of its
# own, so that no xdist worker waits for another at the end. A file stays whole: its tests share
# fixtures.
LONG = (
    ("tests/test_readme.py",),
    ("tests/verify/test_simulation.py",),
    ("tests/verify/test_matrix.py", "tests/verify/test_twins.py", "tests/transcript/test_fuzz.py"),
)
# As in pyproject.toml, for every pytest that a test starts: andon's users lack this plugin.
os.environ["PYTEST_ADDOPTS"] = f"{os.environ.get('PYTEST_ADDOPTS', '')} -p no:langsmith_plugin"
# A suite in the background ignores Ctrl-C, and so would every process that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the long files where a worker begins: each worker gets an equal part of the list, in
    turn.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers == 1:
        return
    rank = {name: (row, n) for row, names in enumerate(LONG) for n, name in enumerate(names)}
    long: list[list[pytest.Item]] = [[] for _ in range(workers)]
    rest: list[pytest.Item] = []
    where = {item: rank.get(item.path.relative_to(config.rootpath).as_posix()) for item in items}
    for item in sorted(items, key=lambda item: where[item] or (0, 0)):
        place = where[item]
        (rest if place is None else long[place[0] % workers]).append(item)
    left, begun = len(items), 0
    items.clear()
    for number, first in enumerate(long):
        share = left // (workers - number)
        taken = max(0, share - len(first))
        items += first + rest[begun : begun + taken]
        begun, left = begun + taken, left - share
    items += rest[begun:]


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Paths of folders that do not exist yet."""
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def home(homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a latch that only this test pulls."""
    folder = next(homes)
    monkeypatch.setenv("ANDON_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One server for the session; each xdist worker is a session of its own."""
    try:
        server = Cluster()
    except PostgresMissing as missing:
        # In CI, skipping half of the promises must not look like a pass.
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{NOT_FOUND}: {missing}")
    with server:
        yield server


@pytest.fixture(scope="session")
def andon_cluster(cluster: Cluster) -> Cluster:
    """The plugin that andon ships shares this server."""
    return cluster


@pytest.fixture
def postgres_url(cluster: Cluster) -> Iterator[str]:
    """A fresh, empty database for one test."""
    cluster.start()  # a test may have ended with the server killed
    url = cluster.fresh_database()
    yield url
    cluster.start()
    cluster.drop_database(url.rpartition("/")[2])


@pytest.fixture(scope="session")
def databases(cluster: Cluster) -> Databases:
    """Databases with andon's tables, all of them empty."""
    return Databases(cluster)


@pytest.fixture
def postgres_with_tables_url(databases: Databases) -> Iterator[str]:
    """A database for one test, with andon's tables and no rows."""
    url = databases.take()
    yield url
    databases.give_back(url)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/andon.db"


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest) -> str:
    """The same test on both databases."""
    fixtures = {"sqlite": "sqlite_url", "postgres": "postgres_with_tables_url"}
    url = request.getfixturevalue(fixtures[request.param])
    assert isinstance(url, str)
    return url


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report loudly that half of the promises were not checked."""
    skipped = terminalreporter.stats.get("skipped", [])
    untested = [report for report in skipped if NOT_FOUND in str(report.longrepr)]
    if untested:
        text = f"{len(untested)} tests did NOT run: {NOT_FOUND}"
        terminalreporter.write_sep("!", text, red=True, bold=True)
        terminalreporter.write_line("Run `make venv`, which installs one, and test again.")

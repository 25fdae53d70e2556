"""The store that a halt addresses is the one in the settings, or none."""

from pathlib import Path

import pytest

from andon.host.home import without_password
from andon.settings import Settings, load
from andon.store import absolute
from andon.supervisor.halt.store_target import DEFAULT_STORE, find_store

OTHER = "postgresql://ana@elsewhere/andon"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With every store that the cases name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANDON_STORE", raising=False)
    for name in (".andon/andon.db", "a/b.db", "c.db"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    return tmp_path


def test_the_default_is_the_same() -> None:
    assert Settings().store == DEFAULT_STORE


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///a/b.db",
        "sqlite:///./a//b.db",
        "sqlite:///c.db",
        "sqlite:///{folder}/a/b.db",
        "postgresql://ana:secret@host:5432/andon?sslmode=disable",
        "postgres://host/andon",
        "postgresql://host/andon?password=secret&x=1",
    ],
)
@pytest.mark.parametrize("way", ["given", "environment", "file"])
def test_the_address_is_the_one_that_the_settings_give(
    folder: Path, monkeypatch: pytest.MonkeyPatch, url: str, way: str
) -> None:
    url = url.format(folder=folder)
    if way == "environment":
        monkeypatch.setenv("ANDON_STORE", url)
    elif way == "file":
        Path("andon.toml").write_text(f"concurrency = 3\nstore = {url!r}\n")
    given = url if way == "given" else ""
    expected = without_password(absolute(load({"store": given or None}).store))
    assert find_store(given, [OTHER]) == expected


def test_without_a_setting_the_address_is_the_default(folder: Path) -> None:
    assert find_store("", [OTHER]) == f"sqlite:///{folder}/.andon/andon.db"


def test_the_environment_takes_precedence_over_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("andon.toml").write_text("store = 'sqlite:///a/b.db'\n")
    monkeypatch.setenv("ANDON_STORE", OTHER)
    assert find_store("", []) == OTHER


def test_a_missing_default_store_means_the_only_one_of_this_host() -> None:
    Path(".andon/andon.db").unlink()
    assert find_store("", [OTHER]) == OTHER
    assert find_store("", [OTHER, "sqlite:////x.db"]) == ""
    assert find_store("", []) == ""


@pytest.mark.parametrize("content", ["store = [", "store = 7", "\xff"])
def test_an_unreadable_settings_file_gives_no_address(content: str) -> None:
    Path("andon.toml").write_bytes(content.encode("latin-1"))
    assert find_store("", [OTHER]) == ""


@pytest.mark.parametrize(
    "url",
    ["mysql://host/x", "sqlite:///", "sqlite://x", "sqlite:///a/../c.db", "sqlite:///none/x.db"],
)
def test_an_ambiguous_setting_gives_no_address(url: str) -> None:
    assert find_store(url, [OTHER]) == ""

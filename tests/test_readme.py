"""What the pages tell people to type works, and prints what the pages say.

The README's program is executed as the README says: its worker is killed with SIGKILL while a
payment is out, another one goes on, and the provider's own file says what was paid.
"""

from pathlib import Path

import pytest
from tests import pages

README = pages.ROOT / "README.md"


def is_followed(page: Path, mark: str) -> bool:
    return any(block.mark == mark for block in pages.blocks(page))


def name_of(page: Path) -> str:
    return page.relative_to(pages.ROOT).as_posix()


def test_the_readme_is_true(tmp_path: Path) -> None:
    printed = pages.follow(README, tmp_path)
    assert '"done"' in printed
    assert (tmp_path / "payments.txt").read_text().split() == ["A-1", "A-2"]


@pytest.mark.parametrize(
    "page",
    [page for page in pages.PAGES if is_followed(page, "run") and page != README],
    ids=name_of,
)
def test_a_page_can_be_followed(page: Path, tmp_path: Path) -> None:
    pages.follow(page, tmp_path)


@pytest.mark.parametrize(
    "page", [page for page in pages.PAGES if is_followed(page, "run: postgres")], ids=name_of
)
def test_a_page_about_postgresql_can_be_followed(
    page: Path, tmp_path: Path, postgres_url: str
) -> None:
    pages.follow(page, tmp_path, ANDON_STORE=postgres_url)


def test_a_page_that_says_something_else_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "LIMIT_SECONDS", 0.3)
    with pages.Shell(tmp_path) as shell, pytest.raises(AssertionError, match="goodbye"):
        shell.execute(pages.Command("echo hello", ["hello and goodbye"]))

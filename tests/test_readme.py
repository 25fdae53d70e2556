"""The commands on the pages work, and print the output that the pages show.

The README's program is executed as the README says: its worker is killed with SIGKILL while a
payment is out, another one goes on, and the provider's own file says which payments happened.
"""

import re
import shlex
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tests import pages

README = pages.ROOT / "README.md"


def is_followed(page: Path, mark: str) -> bool:
    return any(block.mark == mark for block in pages.blocks(page))


def name_of(page: Path) -> str:
    return page.relative_to(pages.ROOT).as_posix()


# Pasted without pauses, into a script and into a terminal.
@pytest.mark.parametrize("shell", [(), ("bash", "--norc", "-i")], ids=["script", "terminal"])
def test_the_readme_program_works_and_prints_what_it_promises(
    tmp_path: Path, shell: tuple[str, ...]
) -> None:
    printed = pages.paste(README, tmp_path, *shell)
    left = iter(printed.splitlines())
    for line in pages.promised(README):
        words = pages.Command("", [line])
        assert any(not words.missing(said) for said in left), f"{line}\nprinted:\n{printed}"
    assert (tmp_path / "payments.txt").read_text().split() == ["A-1", "A-2"]


def test_a_pasted_block_has_no_comments_and_no_prompts() -> None:
    """An interactive zsh does not read # as a comment, and would run a pasted prompt."""
    for page in pages.PAGES:
        for block in pages.blocks(page):
            if block.mark == "paste":
                assert not [one for one in block.text.splitlines() if "#" in one or one[:2] == "$ "]


def test_a_page_names_every_package_that_it_needs() -> None:
    """At its top, in one line that can be pasted."""
    for page in [*(pages.ROOT / "docs" / "guides").glob("*.md"), pages.ROOT / "docs/quickstart.md"]:
        lacking = imported_packages(page) - installed_packages(page)
        assert not lacking, f"{name_of(page)}: no pip install line above its code names {lacking}"


def imported_packages(page: Path) -> set[str]:
    """The distributions that the code of a page imports."""
    known = packages_distributions()
    found = {"andon"}
    for block in pages.blocks(page):
        if block.language == "python":
            names = re.findall(r"^(?:import|from) (\w+)", block.text, re.MULTILINE)
            found |= {normal(known[name][0]) for name in names if name in known}
    return found


def installed_packages(page: Path) -> set[str]:
    """The distributions that the pip lines above the first code install, extras included."""
    head = page.read_text("utf-8").partition("```python")[0]
    found = set[str]()
    for line in re.findall(r"pip install ([^`\n]+)", head):
        for word in [word for word in shlex.split(line) if word != "."]:  # a clone
            requirement = Requirement(word)
            found.add(normal(requirement.name))
            if requirement.name == "andon":
                for text in requires("andon") or ():
                    one = Requirement(text)
                    extras = requirement.extras or {""}
                    if any(not one.marker or one.marker.evaluate({"extra": x}) for x in extras):
                        found.add(normal(one.name))
                        found |= requirements_of(one.name)
    return found


def requirements_of(name: str) -> set[str]:
    """The distributions that it requires without any extra."""
    all_of_it = [Requirement(text) for text in requires(name) or ()]
    plain = [one for one in all_of_it if not one.marker or one.marker.evaluate({"extra": ""})]
    return {normal(one.name) for one in plain}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize(
    "page",
    [page for page in pages.PAGES if is_followed(page, "run") and page != README],
    ids=name_of,
)
def test_the_commands_of_a_page_work_as_written(page: Path, tmp_path: Path) -> None:
    pages.follow(page, tmp_path)


@pytest.mark.parametrize(
    "page", [page for page in pages.PAGES if is_followed(page, "run: postgres")], ids=name_of
)
def test_the_commands_of_a_page_about_postgresql_work_as_written(
    page: Path, tmp_path: Path, postgres_url: str
) -> None:
    pages.follow(page, tmp_path, ANDON_STORE=postgres_url)


def test_a_page_with_wrong_output_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "LIMIT_SECONDS", 0.3)
    with pages.Shell(tmp_path) as shell, pytest.raises(AssertionError, match="goodbye"):
        shell.execute(pages.Command("echo hello", ["hello and goodbye"]))

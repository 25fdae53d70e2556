"""The docs are complete: every public thing has its row in docs/reference, and links work."""

import ast
import inspect
import re
import runpy
from enum import StrEnum
from pathlib import Path

import pytest
from tests import pages

import andon
import andon.testing
import andon.transcript
from andon import errors
from andon.cli.app import cli
from andon.core.effect import EffectKind, EffectState, Verdict
from andon.core.journal import EntryKind, Mark
from andon.core.run import Event, State
from andon.points import POINTS
from andon.runtime.client import Client
from andon.runtime.context import Context
from andon.runtime.operations.asks import Answer
from andon.runtime.requests.requests import Run
from andon.settings import Settings
from andon.store import store
from andon.store.read_api import Reading

REFERENCE = pages.ROOT / "docs" / "reference"
SOURCES = sorted((pages.ROOT / "src").rglob("*.py"))
# Words of the design that mean something today; the others are listed as reserved.
WORDS = """
    agent version run attempt step journal entry effect ledger boundary checkpoint snapshot shield
    worker lease fence drain ask answer transcript orphan
"""
RESERVED = """
    pause resume cancel kill halt reauthorize receipt supervisor grant broker gateway guard
    contract breaker handoff packet
"""
# One word per concept, also on the pages.
OTHER_WORDS = re.compile(r"\b(jobs?|workflows?|history)\b", re.IGNORECASE)

every_page = pytest.mark.parametrize(
    "page", pages.PAGES, ids=lambda page: page.relative_to(pages.ROOT).as_posix()
)


def undocumented(names: set[str], page: str) -> list[str]:
    return sorted(names - pages.entries(REFERENCE / page))


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def test_every_setting_has_a_row_with_its_default() -> None:
    text = (REFERENCE / "settings.md").read_text("utf-8")
    missing = [
        name
        for name in Settings.__struct_fields__
        if f"| `{name}` | `{getattr(Settings(), name)}` |" not in text
    ]
    assert not missing


def test_every_error_has_a_row() -> None:
    found = {
        name: kind
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, BaseException) and kind.__module__ == errors.__name__
    }
    assert not undocumented(set(found), "errors.md")
    text = (REFERENCE / "errors.md").read_text("utf-8")
    wrong = [
        name
        for name, kind in found.items()
        if f"| `{name}` | `{kind.__bases__[0].__name__}` |" not in text
    ]
    assert not wrong, "its parent class"


def test_every_command_has_a_heading() -> None:
    text = (REFERENCE / "cli.md").read_text("utf-8")
    assert set(cli.every_command()) == set(re.findall(r"^## `andon (\w+)", text, re.MULTILINE))


def test_every_public_name_has_a_heading() -> None:
    names = {*andon.__all__, *andon.testing.__all__, *andon.transcript.__all__}
    assert not undocumented(names, "sdk.md")


@pytest.mark.parametrize("kind", [Context, Client, Answer], ids=lambda kind: kind.__name__)
def test_every_member_of_a_public_class_has_a_row(kind: type) -> None:
    assert not undocumented(public(kind), "sdk.md")


def test_every_field_of_a_run_is_named() -> None:
    text = (REFERENCE / "sdk.md").read_text("utf-8")
    assert not [name for name in public(Run) if f"`{name}`" not in text]


@pytest.mark.parametrize(
    "words",
    [State, Event, EffectKind, EffectState, Verdict, EntryKind, Mark],
    ids=lambda w: w.__name__,
)
def test_every_word_in_the_database_has_a_row(words: type[StrEnum]) -> None:
    assert not undocumented({str(word) for word in words}, "states.md")


def test_every_crash_point_has_a_row() -> None:
    assert not undocumented(set(POINTS), "points.md")


def test_every_word_of_the_design_has_a_row() -> None:
    assert not undocumented({*WORDS.split(), *RESERVED.split()}, "glossary.md")


def test_every_message_and_call_of_the_store_has_a_row() -> None:
    messages = {kind.__name__ for kind in store.Message.__args__}
    names = public(store.Store) | public(Reading)
    calls = {name for name in names if callable(getattr(store.Store, name))}
    assert not undocumented(messages | calls, "store.md")


def test_every_table_has_a_row() -> None:
    source = pages.ROOT / "src/andon/store/schema"
    sqlite, postgres = (
        {
            name
            for file in (source / dialect).glob("*.sql")
            for name in re.findall(r"^CREATE TABLE andon[_.](\w+)", file.read_text(), re.MULTILINE)
        }
        for dialect in ("sqlite", "postgres")
    )
    assert postgres - sqlite == {"schema"}
    assert not undocumented(sqlite, "schema.md")


def test_the_tables_of_the_concept_pages_match_the_core() -> None:
    tables = runpy.run_path(str(pages.ROOT / "docs" / "tables.py"))
    stale = [
        page.name
        for page in tables["PAGES"]
        if tables["filled"](page.read_text("utf-8")) != page.read_text("utf-8")
    ]
    assert not stale, "run: python docs/tables.py"
    drawn = "".join(page.read_text("utf-8") for page in tables["PAGES"])
    assert all(f"<!-- table: {name} -->" in drawn for name in tables["TABLES"])


@pytest.mark.parametrize(
    "page", sorted((pages.ROOT / "docs/concepts").glob("*.md")), ids=lambda page: page.stem
)
def test_every_concept_page_ends_with_the_section_see_it(page: Path) -> None:
    headings = re.findall(r"^## (.+)$", pages.prose(page), re.MULTILINE)
    assert headings[-1] == "See it"


@every_page
def test_every_link_leads_to_an_existing_target(page: Path) -> None:
    broken = []
    for target in pages.links(page):
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        if not found.exists() or (anchor and anchor not in pages.anchors(found)):
            broken.append(target)
    assert not broken


@every_page
def test_every_file_and_make_target_on_a_page_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    files = set(re.findall(r"\b(?:tests|bench|docs|src|examples)/[\w/.-]+\.(?:py|md|sql)\b", text))
    assert not [file for file in files if not (pages.ROOT / file).exists()]
    made = set(re.findall(r"^([a-z]+):", (pages.ROOT / "Makefile").read_text(), re.MULTILINE))
    assert not set(re.findall(r"`make (\w+)`", text)) - made


@every_page
def test_every_python_block_compiles(page: Path) -> None:
    for block in pages.blocks(page):
        if block.language == "python":
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST
            compile(block.text, block.where, "exec", flags)


@every_page
def test_the_pages_use_the_words_of_the_glossary(page: Path) -> None:
    own = re.sub(r"`[^`\n]+`", "", pages.prose(page))  # quoted names are not ours
    assert not OTHER_WORDS.findall(own)


def test_a_missing_row_is_noticed() -> None:
    assert undocumented({"store", "no_such_setting"}, "settings.md") == ["no_such_setting"]


def test_every_name_in_the_ways_of_the_architecture_exists() -> None:
    """`file.py` → `Class.method` or `function`: the file below src/andon defines it."""
    page = (pages.ROOT / "ARCHITECTURE.md").read_text("utf-8")
    steps = re.findall(r"`([\w/]+\.py)` → ((?:`[\w.]+`(?:, )?)+)", page)
    assert len(steps) > 15
    missing = []
    for file, names in steps:
        paths = [path for path in SOURCES if path.as_posix().endswith(f"/{file}")]
        text = "\n".join(path.read_text("utf-8") for path in paths)
        for name in re.findall(r"[\w.]+", names):
            wanted = [rf"class {one}\b|def {one}\b" for one in name.split(".")]
            if not all(re.search(one, text) for one in wanted):
                missing.append(f"{file}: {name}")
    assert not missing

"""The map of user requests names only existing files and tests, and covers every document."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from tests import pages

import andon
from andon.cli.app import cli
from andon.runtime.context import Context
from andon.settings import Settings

SOURCE = pages.ROOT / "src" / "andon"
MAP = pages.ROOT / "docs" / "seed-map.md"
DOCUMENTS = ("000", "001", "002", "003", "004")
STATUS = ("works", "partly", "missing")
# The parts of the product that are not built yet, and those that it will not have.
LATER = (
    "broker and gateway",
    "guard",
    "people",
    "transcripts",
    "adapters",
    "drills",
    "outside",
)
HEAD = "| item | where in andon | test | status |"


class Row(NamedTuple):
    """One line of the map."""

    document: str
    item: str
    where: str
    tests: list[str]
    status: str
    said: str  # the text after the status


def rows(text: str) -> list[Row]:
    found = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        document = section[:3]
        for table in section.split(HEAD)[1:]:
            for line in re.findall(r"^\| (.*) \|$", table.split("\n### ")[0], re.MULTILINE):
                item, where, tests, status = line.split(" | ")
                word, _, said = status.partition(":")
                named = [] if tests == "-" else [one.strip("`") for one in tests.split("<br>")]
                found.append(Row(document, item, where, named, word.strip("`"), said.strip()))
    return found


ROWS = rows(MAP.read_text("utf-8"))
every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.document}: {row.item[:60]}")


@cache
def functions(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def exists(test: str) -> bool:
    path, _, name = test.partition("::")
    file = pages.ROOT / path
    return file.exists() and name.startswith("test_") and name in functions(file)


def is_command(words: list[str]) -> bool:
    """Whether `andon WORDS` could be typed: commands and options, whatever their values."""
    command = cli.every_command().get(words[0])
    if isinstance(command, click.Group):
        command = command.commands.get(words[1]) if len(words) > 1 else command
    if command is None:
        return False
    options = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    return all(word in options for word in words if word.startswith("--"))


def unknown(quoted: str) -> bool:
    """Whether quoted code names something that does not exist; other text does not matter."""
    if quoted.startswith("andon "):
        return not is_command(quoted.split()[1:])
    if quoted.startswith("ctx."):
        return not hasattr(Context, quoted.removeprefix("ctx."))
    if quoted.startswith("andon."):
        return quoted.removeprefix("andon.") not in andon.__all__
    if re.fullmatch(r"\.?[\w/-]+\.(py|sql|md|yaml|service)|\.ci/\w+", quoted):
        return not any((root / quoted).exists() for root in (pages.ROOT, SOURCE))
    return quoted.endswith("_seconds") and not hasattr(Settings, quoted)


def test_every_document_has_its_section() -> None:
    assert tuple(dict.fromkeys(row.document for row in ROWS)) == DOCUMENTS
    assert all(sum(row.document == one for row in ROWS) > 20 for one in DOCUMENTS)


@every_row
def test_every_named_test_exists(row: Row) -> None:
    assert not [test for test in row.tests if not exists(test)]


@every_row
def test_every_file_command_and_name_exists(row: Row) -> None:
    quoted = re.findall(r"`([^`]+)`", f"{row.item} {row.where} {row.said}")
    assert not [one for one in quoted if unknown(one)]


@every_row
def test_every_status_is_valid_and_has_its_explanation(row: Row) -> None:
    assert row.status in STATUS
    later = [part for part in LATER if part in row.said]
    match row.status:
        case "works":
            assert row.where != "-"
            assert row.tests
        case "partly":
            assert row.tests
            assert later, "what is missing, and where it belongs"
        case _:
            assert (row.where, row.tests) == ("-", [])
            assert later, "which part it belongs to"


@pytest.mark.parametrize(
    "wrong",
    [
        "andon unsteer",
        "andon drain --harder",
        "andon dead resurrect",
        "ctx.pause",
        "andon.guard",
        "core/halt.py",
        "halt_seconds",
    ],
)
def test_a_name_that_does_not_exist_is_noticed(wrong: str) -> None:
    assert unknown(wrong)


def test_a_test_that_does_not_exist_is_noticed() -> None:
    assert not exists("tests/test_seed_map.py::test_of_another_name")
    assert not exists("tests/test_of_another_name.py::test_every_document_has_its_section")
    assert exists("tests/test_seed_map.py::test_every_document_has_its_section")


def test_no_row_is_overlooked() -> None:
    text = MAP.read_text("utf-8")
    assert len(ROWS) == sum(text.count(f"| `{word}`") for word in STATUS) - len(STATUS)

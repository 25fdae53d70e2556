"""Rules about the repository itself, enforced by the test suite instead of by memory."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from andon.store import queries

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
CORE = [path for path in SOURCES if "core" in path.parts]

MOST_LINES_IN_A_FILE = 450
MOST_MODULES_IN_A_FOLDER = 14
MOST_LINES_IN_A_FUNCTION = 60

# The words that the glossary decided against, in favour of one word per concept. What asyncio and
# the operating system call by name (task, thread, signal, process, lock) stays allowed.
OTHER_WORDS = {
    "abort": "cancel or kill",
    "backend": "store",
    "base": "what it is",
    "canceled": "cancelled, as in cancellation",
    "common": "the concept it serves",
    "data": "what it holds",
    "helper": "the concept it serves",
    "helpers": "the concept it serves",
    "history": "journal",
    "info": "what it says",
    "interrupt": "stop, pause or ask",
    "job": "run",
    "jobs": "runs",
    "manager": "what it does",
    "span": "step",
    "terminate": "cancel or kill",
    "token": "fence, grant or llm_tokens",
    "util": "the concept it serves",
    "utils": "the concept it serves",
    "workflow": "run",
    "workflows": "runs",
}

# Names that the interface of a framework or of the kernel prescribes.
GIVEN = {
    "get_durable_operation_backend",
}

every_source = pytest.mark.parametrize(
    "path", SOURCES, ids=lambda path: path.relative_to(ROOT / "src").as_posix()
)


def names_given(path: Path) -> Iterator[str]:
    """Yield the names that a file defines; names it only uses belong to other projects."""
    yield path.stem
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.alias(asname=str(name)) | ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case _:
                pass


def words(name: str) -> list[str]:
    return re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower())


@every_source
def test_one_word_per_concept(path: Path) -> None:
    found = {
        name: f"for {word!r} say {OTHER_WORDS[word]}"
        for name in names_given(path)
        if not ({"adapters", "host"} & set(path.parts) and name in GIVEN)
        for word in words(name)
        if word in OTHER_WORDS
    }
    assert not found


@every_source
def test_files_and_functions_stay_within_the_line_limits(path: Path) -> None:
    text = path.read_text("utf-8")
    assert text.count("\n") <= MOST_LINES_IN_A_FILE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            assert lines <= MOST_LINES_IN_A_FUNCTION, f"{node.name} has {lines} lines"


def test_a_folder_has_at_most_14_modules() -> None:
    rooms = Counter(path.parent for path in SOURCES)
    assert not {str(room) for room, count in rooms.items() if count > MOST_MODULES_IN_A_FOLDER}


@every_source
def test_a_module_is_named_by_a_noun(path: Path) -> None:
    assert not path.stem.endswith(("ing", "ed"))


def test_a_class_name_stands_in_one_module_only() -> None:
    """A newcomer who searches for a class finds one."""
    found = Counter(
        node.name
        for path in SOURCES
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert not {name for name, count in found.items() if count > 1}


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.name)
def test_the_core_reads_no_clock(path: Path) -> None:
    calls = [
        f"line {node.lineno}: .{node.func.attr}()"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"now", "today", "utcnow"}
    ]
    assert not calls, "time comes from the store and is passed in"


def test_both_databases_answer_the_same_queries() -> None:
    sqlite, postgres = queries.load("sqlite"), queries.load("postgres")
    assert sqlite.keys() ^ postgres.keys() == set()
    assert sqlite, "no queries were found"


@pytest.mark.parametrize(
    ("dialect", "files"),
    [
        ("sqlite", ["shared", "sqlite"]),
        ("postgres", ["shared", "postgres"]),
        ("postgres_batch", ["postgres_batch"]),
    ],
)
def test_a_query_name_is_used_once_per_dialect(dialect: str, files: list[str]) -> None:
    texts = [(ROOT / "src/andon/store" / f"{file}.sql").read_text("utf-8") for file in files]
    headers = re.findall(r"^-- (\w+(?:, \w+)*) --$", "\n".join(texts), re.MULTILINE)
    named = [name for header in headers for name in header.split(", ")]
    assert len(named) == len(set(named)) == len(queries.load(dialect))

"""Named SQL: what both databases carry out is in shared.sql, the rest in one file per dialect.

`-- claim_runs --` starts a query; the comment lines under it explain its design. Several names can
share a query: `-- lock_limits, lock_workers --`. `-- {claimable} --` starts a fragment, which other
queries of the dialect include as `{claimable}`. Each dialect has the same names
(tests/test_tidy.py), so no query exists for one database only.
"""

import os
import re
from functools import cache

_NAME = re.compile(r"^-- (\w+(?:, \w+)*|\{\w+\}) --\n(?:-- .*\n)*", re.MULTILINE)
_FRAGMENT = re.compile(r"\{(\w+)\}")

# Rewrites of shared.sql for each dialect.
_SQLITE = (
    # A JSON list of texts: in PostgreSQL an array keeps the planner on the index.
    (
        r"(?:= ANY \(ARRAY|IN )\(SELECT jsonb_array_elements_text\((:\w+)::text::jsonb\)\)\)?",
        r"IN (SELECT value FROM json_each(\1))",
    ),
    (r" FOR (?:NO KEY )?UPDATE(?: OF \w+)?(?: SKIP LOCKED)?", ""),  # there is one write lock
    (r"\bgreatest\(", "max("),
    (r"\(SELECT andon\.now\(\)\)|andon\.now\(\)", "unixepoch('subsec')"),
    (r"::\w+", ""),
    (r"andon\.", "andon_"),
)
_POSTGRES = ((r"(?<!:):(\w+)", r"%(\1)s"),)
_SHARED = {"sqlite": _SQLITE, "postgres": _POSTGRES}

# Avoid importlib.resources and pathlib: importing either costs every command 10 ms.
_HERE = os.path.dirname(os.path.abspath(__file__))


@cache
def load(dialect: str) -> dict[str, str]:
    """Return the queries of one dialect by name."""
    found: dict[str, str] = {}
    if dialect in _SHARED:
        text = _text("shared.sql")
        for pattern, words in _SHARED[dialect]:
            text = re.sub(pattern, words, text)
        found = _parts(text)
    found |= _parts(_text(f"{dialect}.sql"))
    # The batches of PostgreSQL include fragments of its other queries.
    parts = found if dialect in _SHARED else _parts(_text("postgres.sql")) | found
    return {name: _filled(sql, parts) for name, sql in found.items() if "{" not in name}


def _parts(text: str) -> dict[str, str]:
    _header, *parts = _NAME.split(text)
    named = zip(parts[::2], parts[1::2], strict=True)
    return {name: sql.strip() for names, sql in named for name in names.split(", ")}


def _filled(sql: str, parts: dict[str, str]) -> str:
    while (filled := _FRAGMENT.sub(lambda found: parts[found[0]].rstrip(";"), sql)) != sql:
        sql = filled
    return sql


def migrations(dialect: str) -> list[tuple[int, str, str]]:
    """Return the migrations of one dialect in order: (number, name, SQL)."""
    found = os.listdir(os.path.join(_HERE, "schema", dialect))
    names = sorted(name for name in found if name.endswith(".sql"))
    return [(int(name[:4]), name, _text("schema", dialect, name)) for name in names]


def _text(*parts: str) -> str:
    with open(os.path.join(_HERE, *parts), encoding="utf-8") as file:
        return file.read()

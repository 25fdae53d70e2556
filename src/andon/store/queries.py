"""Named SQL, one file per dialect.

`-- claim_runs --` starts a query; the comment lines under it explain its design. Both files define
the same names (tests/test_tidy.py), so no query exists for one database only.
"""

import os
import re
from functools import cache

_NAME = re.compile(r"^-- (\w+) --\n(?:-- .*\n)*", re.MULTILINE)

# Avoid importlib.resources and pathlib: importing either costs every command 10 ms.
_HERE = os.path.dirname(os.path.abspath(__file__))


@cache
def load(dialect: str) -> dict[str, str]:
    """Return the queries of one dialect by name."""
    text = _text(f"{dialect}.sql")
    _header, *parts = _NAME.split(text)
    return {name: sql.strip() for name, sql in zip(parts[::2], parts[1::2], strict=True)}


def migrations(dialect: str) -> list[tuple[int, str, str]]:
    """Return the migrations of one dialect in order: (number, name, SQL)."""
    found = os.listdir(os.path.join(_HERE, "schema", dialect))
    names = sorted(name for name in found if name.endswith(".sql"))
    return [(int(name[:4]), name, _text("schema", dialect, name)) for name in names]


def _text(*parts: str) -> str:
    with open(os.path.join(_HERE, *parts), encoding="utf-8") as file:
        return file.read()

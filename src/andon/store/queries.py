"""Named SQL, one file per dialect.

`-- claim_runs --` starts a query; the comment lines under it say why it is as it is. Both files
define the same names (tests/test_tidy.py), so a query cannot exist for one database only.
"""

import re
from functools import cache
from pathlib import Path

_NAME = re.compile(r"^-- (\w+) --\n(?:-- .*\n)*", re.MULTILINE)

_HERE = Path(__file__).parent  # importlib.resources costs every command 10 ms


@cache
def load(dialect: str) -> dict[str, str]:
    """The queries of one dialect, by name."""
    text = _HERE.joinpath(f"{dialect}.sql").read_text("utf-8")
    _header, *parts = _NAME.split(text)
    return {name: sql.strip() for name, sql in zip(parts[::2], parts[1::2], strict=True)}


def migrations(dialect: str) -> list[tuple[int, str, str]]:
    """The numbered schema changes: (number, name, SQL), in order."""
    folder = _HERE / "schema" / dialect
    names = sorted(path.name for path in folder.glob("*.sql"))
    return [(int(name[:4]), name, folder.joinpath(name).read_text("utf-8")) for name in names]

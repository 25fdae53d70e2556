"""Named SQL, one file per dialect.

`-- claim_runs --` starts a query; the comment lines under it say why it is as it is. Both files
define the same names (tests/test_tidy.py), so a query cannot exist for one database only.
"""

import re
from functools import cache
from importlib import resources

_NAME = re.compile(r"^-- (\w+) --\n(?:-- .*\n)*", re.MULTILINE)


@cache
def load(dialect: str) -> dict[str, str]:
    """The queries of one dialect, by name."""
    text = resources.files("andon.store").joinpath(f"{dialect}.sql").read_text("utf-8")
    _header, *parts = _NAME.split(text)
    return {name: sql.strip() for name, sql in zip(parts[::2], parts[1::2], strict=True)}


def migrations(dialect: str) -> list[tuple[int, str, str]]:
    """The numbered schema changes: (number, name, SQL), in order."""
    folder = resources.files("andon.store").joinpath("schema", dialect)
    names = sorted(item.name for item in folder.iterdir() if item.name.endswith(".sql"))
    return [(int(name[:4]), name, folder.joinpath(name).read_text("utf-8")) for name in names]

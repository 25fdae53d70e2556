"""Finds the store of a command without loading the settings, which takes longer than a halt may.

It gives the same answer as `andon.settings` and `andon.store.absolute`, or none; a test compares
them. No answer is always safe: another process then loads the settings.
"""

import os
from collections.abc import Collection

DEFAULT = "sqlite:///.andon/andon.db"


def meant(given: str, here: Collection[str]) -> str:
    """The store from `given`, the environment, the file or this host (`here`); "" if unsure."""
    found = given or os.environ.get("ANDON_STORE", "")
    if not found:
        found, certain = _in_file()
        if not certain:
            return ""
    url = _absolute(found or DEFAULT)
    path = url.removeprefix("sqlite:///")
    if path == url or os.path.exists(path):
        return url
    # The store does not exist, or none was named: take the one in use on this host.
    return next(iter(here)) if len(here) == 1 else ""


def _in_file() -> tuple[str, bool]:
    """Return the store in andon.toml, and whether the file could be read with certainty."""
    if not os.path.exists("andon.toml"):
        return "", True
    import tomllib

    try:
        with open("andon.toml", "rb") as file:
            found = tomllib.load(file).get("store", "")
    except (OSError, ValueError):
        return "", False
    return (found, True) if isinstance(found, str) else ("", False)


def _absolute(url: str) -> str:
    if url.startswith("sqlite:////"):
        return url if os.path.isdir(os.path.dirname(url[10:])) else ""
    if url.startswith("sqlite:///"):
        path = url.removeprefix("sqlite:///")
        inside = os.path.isdir(os.path.dirname(path) or ".") and ".." not in path.split("/")
        return f"sqlite:///{os.path.abspath(path)}" if path and inside else ""
    if url.startswith(("postgresql://", "postgres://")):
        from andon.host.home import without_password

        return without_password(url)
    return ""

"""A result of `andon doctor`: a name, how serious it is, the finding, and advice."""

from typing import NamedTuple

OK, WARN, FAIL = "ok", "warn", "fail"


class Check(NamedTuple):
    """The result of one check."""

    name: str
    status: str
    found: str
    advice: str = ""


def advised(name: str, found: str, advice: str) -> Check:
    """A warning if there is something to advise, else ok."""
    return Check(name, WARN if advice else OK, found, advice)

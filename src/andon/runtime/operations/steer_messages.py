"""What people tell a run while it is under way: a goal more, another one, or one less."""

import uuid
from typing import Any

import msgspec

from andon.errors import BadInput, NotFound

EVENT = "andon.steer"


class Steer(msgspec.Struct, frozen=True, kw_only=True):
    """One such word. `message` is how a model is told."""

    id: str
    change: str  # add | revise | retract
    text: str
    of: str | None = None  # the id of what is revised or retracted
    was: str = ""  # its text until now
    by: str = ""

    @property
    def message(self) -> dict[str, Any]:
        """As the user's turn; every provider takes it."""
        who = f" (from {self.by})" if self.by else ""
        match self.change:
            case "revise":
                told = f"Instead of {self.was!r}{who}: {self.text}"
            case "retract":
                told = f"No longer{who}: {self.was}"
            case _:
                told = f"A new goal{who}: {self.text}"
        return {"role": "user", "content": told}


def new(
    said: list[Steer], text: str | None, *, revise: str | None, retract: str | None, by: str
) -> Steer:
    """What is to be told, checked against what was said before."""
    if revise is not None and retract is not None:
        raise BadInput("steer: expected one of revise and retract, found both")
    of, standing = revise or retract, _standing(said)
    if of is not None and of not in standing:
        known = ", ".join(standing) or "none"
        raise NotFound(f"no instruction is in force under the id {of!r}; known: {known}")
    if retract is None and (not isinstance(text, str) or not text.strip()):
        raise BadInput("steer: expected a text, found none; say what the run is to do")
    if retract is not None and text:
        raise BadInput("steer: to retract takes no text; to change the text, revise it")
    change = "retract" if retract else "revise" if revise else "add"
    was = standing.get(of or "", "")
    return Steer(id=uuid.uuid4().hex[:8], change=change, text=text or "", of=of, was=was, by=by)


def _standing(said: list[Steer]) -> dict[str, str]:
    """What holds, by every id that it can be changed under: its own, and those of its changes."""
    found: dict[str, str] = {}
    same: dict[str, list[str]] = {}
    for one in said:
        ids = same[one.id] = [*same.get(one.of or "", []), one.id]
        for name in ids:
            same[name] = ids
            found[name] = one.text
            if one.change == "retract":
                del found[name]
    return found

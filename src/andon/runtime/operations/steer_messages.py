"""Steer messages: people add, revise or retract the goals of a run that is under way."""

import uuid
from typing import Any

import msgspec

from andon.errors import BadInput, NotFound

EVENT = "andon.steer"


class Steer(msgspec.Struct, frozen=True, kw_only=True):
    """One steer message. `message` is its form for a model."""

    id: str
    change: str  # add | revise | retract
    text: str
    of: str | None = None  # the id of the goal that is revised or retracted
    was: str = ""  # that goal's text until now
    by: str = ""

    @property
    def message(self) -> dict[str, Any]:
        """The text as a turn of the user, which every provider accepts."""
        who = f" (from {self.by})" if self.by else ""
        match self.change:
            case "revise":
                text = f"Instead of {self.was!r}{who}: {self.text}"
            case "retract":
                text = f"No longer{who}: {self.was}"
            case _:
                text = f"A new goal{who}: {self.text}"
        return {"role": "user", "content": text}


def new(
    sent: list[Steer], text: str | None, *, revise: str | None, retract: str | None, by: str
) -> Steer:
    """Make a steer message, checked against the messages sent before."""
    if revise is not None and retract is not None:
        raise BadInput("steer: expected one of revise and retract, found both")
    of, standing = revise or retract, _standing(sent)
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


def _standing(sent: list[Steer]) -> dict[str, str]:
    """Texts of the goals in force, by each id that can change them: their own or a change's."""
    found: dict[str, str] = {}
    same: dict[str, list[str]] = {}
    for one in sent:
        ids = same[one.id] = [*same.get(one.of or "", []), one.id]
        for name in ids:
            same[name] = ids
            found[name] = one.text
            if one.change == "retract":
                del found[name]
    return found

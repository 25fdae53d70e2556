"""What people tell a run while it is under way: a goal more, another one, or one less."""

import uuid
from typing import Any

import msgspec

from andon.errors import BadInput, NotFound

EVENT = "andon.steer"
_WORDS = {"add": "A new goal", "revise": "Instead of what was said before", "retract": "No longer"}


class Steer(msgspec.Struct, frozen=True, kw_only=True):
    """One such word. `message` is how a model is told."""

    id: str
    change: str  # add | revise | retract
    text: str
    of: str | None = None  # the id of what is revised or retracted
    by: str = ""

    @property
    def message(self) -> dict[str, Any]:
        """As the user's turn; every provider takes it."""
        who = f" (from {self.by})" if self.by else ""
        return {"role": "user", "content": f"{_WORDS[self.change]}{who}: {self.text}"}


def new(
    said: list[Steer], text: str | None, *, revise: str | None, retract: str | None, by: str
) -> Steer:
    """What is to be told, checked against what was said before."""
    if revise is not None and retract is not None:
        raise BadInput("steer: expected one of revise and retract, found both")
    of = revise or retract
    before = next((one for one in said if one.id == of), None)
    if of is not None and before is None:
        known = ", ".join(one.id for one in said if one.change != "retract") or "none"
        raise NotFound(f"nothing was said under the id {of!r}; known: {known}")
    if retract is None and (not isinstance(text, str) or not text.strip()):
        raise BadInput("steer: expected a text, found none; say what the run is to do")
    if retract is not None and text:
        raise BadInput("steer: what is retracted needs no text; to say something else, revise it")
    change = "retract" if retract else "revise" if revise else "add"
    words = text or (before.text if before else "")
    return Steer(id=uuid.uuid4().hex[:8], change=change, text=words, of=of, by=by)

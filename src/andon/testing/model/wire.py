"""What the three wire formats have in common: turns of a script, and refusals."""

import hashlib
import json
from typing import Any

import msgspec

# The same request is answered with the same bytes: who asks again after a crash gets no other ids.
CREATED = 1_750_000_000


class Call(msgspec.Struct, frozen=True):
    """The model wants a tool called."""

    name: str
    arguments: dict[str, Any] = {}


class Turn(msgspec.Struct, frozen=True):
    """What the model says in one turn."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    number: int = 0
    heard: str = ""  # a digest of the conversation that it answers

    def id_of(self, prefix: str, place: int = 0) -> str:
        seed = json.dumps(
            [
                prefix,
                self.heard,
                self.number,
                place,
                self.text,
                [[one.name, one.arguments] for one in self.calls],
            ]
        )
        return prefix + hashlib.sha256(seed.encode()).hexdigest()[:24]


class Refused(Exception):
    """The provider's answer to a request that it does not take."""

    def __init__(self, status: int, message: str, kind: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.facts = status, message, kind, facts


def turn_of(scripted: Any, number: int) -> Turn:
    """A text, a call, or several calls at once."""
    match scripted:
        case str():
            return Turn(text=scripted, number=number)
        case Call():
            return Turn(calls=(scripted,), number=number)
        case Turn():
            return msgspec.structs.replace(scripted, number=number)
        case list() | tuple() if scripted and all(isinstance(one, Call) for one in scripted):
            return Turn(calls=tuple(scripted), number=number)
        case _:
            raise TypeError(
                f"turn {number} of the script: expected a text, a call or a list of calls, found "
                f"{scripted!r}"
            )


def digest(conversation: Any) -> str:
    """Providers use no id twice: the same answer to another conversation has others."""
    text = json.dumps(conversation, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def pieces(text: str, size: int = 12) -> list[str]:
    """As a stream brings it."""
    return [text[at : at + size] for at in range(0, len(text), size)] or [""]


def count(value: Any) -> int:
    """About as many as a provider would bill."""
    return max(1, len(json.dumps(value)) // 4)

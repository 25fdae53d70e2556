"""The parts that the three wire formats share: turns of a script, and refusals."""

import hashlib
import json
from typing import Any

import msgspec

# Constant, so that a request repeated after a crash gets the same bytes, ids included.
CREATED = 1_750_000_000


class ModelToolCall(msgspec.Struct, frozen=True):
    """A call of a tool by the model."""

    name: str
    arguments: dict[str, Any] = {}


class Turn(msgspec.Struct, frozen=True):
    """The model's output in one turn."""

    text: str = ""
    calls: tuple[ModelToolCall, ...] = ()
    number: int = 0
    conversation: str = ""  # digest of the conversation that this turn answers

    def id_of(self, prefix: str, place: int = 0) -> str:
        seed = json.dumps(
            [
                prefix,
                self.conversation,
                self.number,
                place,
                self.text,
                [[one.name, one.arguments] for one in self.calls],
            ]
        )
        return prefix + hashlib.sha256(seed.encode()).hexdigest()[:24]


class ModelRefusal(Exception):
    """A request that the provider would refuse, with its status and message."""

    def __init__(self, message: str, kind: str = "", *, status: int = 400, **facts: Any) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.facts = status, message, kind, facts


def turn_of(scripted: Any, number: int) -> Turn:
    """Make a turn of a text, a call, or several calls at once."""
    match scripted:
        case str():
            return Turn(text=scripted, number=number)
        case ModelToolCall():
            return Turn(calls=(scripted,), number=number)
        case Turn():
            return msgspec.structs.replace(scripted, number=number)
        case list() | tuple() if scripted and all(
            isinstance(one, ModelToolCall) for one in scripted
        ):
            return Turn(calls=tuple(scripted), number=number)
        case _:
            raise TypeError(
                f"turn {number} of the script: expected a text, a call or a list of calls, found "
                f"{scripted!r}"
            )


def digest(conversation: Any) -> str:
    """Hash the conversation for use in ids, as providers never use an id for two conversations."""
    text = json.dumps(conversation, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def pieces(text: str, size: int = 12) -> list[str]:
    """Split text into the pieces of a stream."""
    return [text[at : at + size] for at in range(0, len(text), size)] or [""]


def count(value: Any) -> int:
    """Count tokens, about as many as a provider would bill."""
    return max(1, len(json.dumps(value)) // 4)

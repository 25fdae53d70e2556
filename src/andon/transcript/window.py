"""Shortens a transcript for a full context window."""

from collections.abc import Callable, Sequence
from typing import Any

from andon.transcript.wire import word

# The providers' wording, in the message or the code of their error.
_TOO_LONG = (
    "prompt is too long",
    "context_length_exceeded",
    "maximum context length",
    "exceeds the context window",
    "exceed context limit",
)


def too_long(error: object) -> bool:
    """Whether a provider's error says that the transcript exceeds the model's window."""
    message = str(error).lower()
    return any(words in message for words in _TOO_LONG)


def shortened(
    given: Sequence[Any], keep: int, faults: Callable[[list[Any]], Sequence[Any]]
) -> list[int]:
    """Return which messages stay: all before the model's first turn, and the last whole turns.

    Turns are never split: a call stays with its result, and thinking with what follows it.
    """
    first = next((n for n, one in enumerate(given) if _by_model(one)), len(given))
    head, end = list(range(first)), len(given)
    for begin in range(max(first, end - keep), end):
        if not _begins_turn(given, begin):
            continue
        kept = [*head, *range(begin, end)]
        if not faults([given[n] for n in kept]):
            return kept
    return head


def _begins_turn(given: Sequence[Any], place: int) -> bool:
    return not _by_model(given[place]) or place == 0 or not _by_model(given[place - 1])


def _by_model(message: Any) -> bool:
    if not isinstance(message, dict):
        return False
    role, kind = word(message, "role"), word(message, "type")
    return role == "assistant" or (not role and not kind.endswith("_output"))

"""JSON lines: the format in which the processes of one host talk to each other."""

import json
from typing import Any

LONGEST_LINE = 1_048_576


def parsed(line: bytes) -> dict[str, Any] | None:
    """Parse a JSON object from a line; None if it is not one."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def encoded(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


class LineReader:
    """Cuts received bytes into messages; skips lines that are too long or no JSON object."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._longest, self._rest = longest, b""

    def messages(self, received: bytes) -> list[dict[str, Any]]:
        """Return the messages that are complete now; the rest is kept for the next call."""
        *lines, rest = (self._rest + received).split(b"\n")
        self._rest = rest if len(rest) <= self._longest else b""
        return [message for line in lines if (message := parsed(line)) is not None]

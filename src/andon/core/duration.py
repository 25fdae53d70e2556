"""Durations as people write them: 10s, 5m, 2h, 1d; a plain number is seconds."""

from __future__ import annotations

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
# Thirty years: longer durations are mistakes, and no clock has to add them.
MOST_SECONDS = 1e9
EXAMPLES = "10s, 5m, 2h or 1d (a plain number is seconds)"


def seconds(text: str) -> float | None:
    """Return the seconds, 0 or more, that a text means; None if it is no duration."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in UNITS else (text, "s")
    try:
        found = float(number) * UNITS[unit]
    except ValueError:
        return None
    return found if 0 <= found <= MOST_SECONDS else None

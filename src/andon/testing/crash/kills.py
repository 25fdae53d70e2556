"""Where a worker is killed: which moments there are in a run, and which of them are tried."""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from andon.errors import BadInput
from andon.testing.crash.lines import Line

# The part of an effect between its first and its last instruction; andon has no point there.
INSIDE = "inside"
# Points that people name themselves: andon.testing.point.
NAMED = "named"
FAMILIES: dict[str, tuple[str, ...]] = {
    "boundary": (
        "attempt:loaded",
        "step:before",
        "step:executed",
        "step:stored",
        "wait:registered",
        "attempt:suspended",
        "attempt:before-settle",
    ),
    "effect": (
        "effect:started",
        "effect:executed",
        "effect:confirmed",
        "effect:probed",
        "effect:undone",
        "undo:begun",
        "undo:started",
        "undo:executed",
        "undo:confirmed",
    ),
    INSIDE: (INSIDE,),
    NAMED: (NAMED,),
}
WATCHED = frozenset(point for points in FAMILIES.values() for point in points)
# A plain function is killed in the middle of its time, if it takes any worth the name.
LONG_SECONDS = 0.02


class Kill(msgspec.Struct, frozen=True, omit_defaults=True):
    """A moment of a run: the nth time that this point is passed for an operation of this name."""

    point: str
    name: str = ""
    nth: int = 1
    moment: int = 0  # inside an async effect: at which of its awaits
    after: float = 0.0  # inside a plain effect: so many seconds after its start

    def __str__(self) -> str:
        text = f"{self.point} {self.name}".rstrip()
        text += f" #{self.nth}" if self.nth > 1 else ""
        if self.moment:
            text += f", at its await {self.moment}"
        elif self.after:
            text += ", while it executes"
        return text

    @property
    def family(self) -> str:
        return next(name for name, points in FAMILIES.items() if self.point in points)


def families(text: str) -> tuple[str, ...]:
    """The points that are meant: names of families or of points, separated by commas."""
    found: list[str] = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        if word in FAMILIES:
            found += FAMILIES[word]
        elif word in WATCHED:
            found.append(word)
        else:
            known = ", ".join([*FAMILIES, *sorted(WATCHED - {INSIDE, NAMED})])
            raise BadInput(f"points: {word!r} is not one; expected some of {known}")
    if not found:
        raise BadInput(f"points: expected some of {', '.join(FAMILIES)}")
    return tuple(dict.fromkeys(found))


def all_kills(lines: Iterable[Line], points: Sequence[str]) -> list[Kill]:
    """Every moment that a run came past, in order."""
    found: list[Kill] = []
    for line in lines:
        if line.what == "passed" and line.point in points:
            found.append(Kill(line.point, line.name, line.nth))
        elif line.what == "ended" and line.role == "effect" and INSIDE in points:
            found += _inside(line)
    return found


def _inside(line: Line) -> list[Kill]:
    if line.awaits:
        # The first, the middle and the last: the answer of a provider comes in many parts.
        moments = sorted({1, (line.awaits + 1) // 2, line.awaits})
        return [Kill(INSIDE, line.name, line.nth, moment=moment) for moment in moments]
    if line.seconds < LONG_SECONDS:
        return []
    return [Kill(INSIDE, line.name, line.nth, after=line.seconds / 2)]


def chosen(kills: Sequence[Kill], most: int | None) -> list[Kill]:
    """At most so many: first those that are unlike all before them, then the others, in order."""
    if most is None or len(kills) <= most:
        return list(kills)
    seen: Counter[tuple[str, str]] = Counter()
    ranked = []
    for place, kill in enumerate(kills):
        ranked.append((seen[kill.point, kill.name], place))
        seen[kill.point, kill.name] += 1
    kept = sorted(place for _, place in sorted(ranked)[:most])
    return [kills[place] for place in kept]

"""The moments at which a worker can be killed, and the choice of those to try."""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from andon import points
from andon.errors import BadInput
from andon.testing.crash.lines import Line

# The part of an effect between its first and last instruction; andon has no point there.
INSIDE = "inside"
# Points that users name themselves: andon.testing.point.
NAMED = "named"
FAMILIES: dict[str, tuple[str, ...]] = {
    "boundary": points.BOUNDARY,
    "effect": points.EFFECT,
    INSIDE: (INSIDE,),
    NAMED: (NAMED,),
}
WATCHED = frozenset(itertools.chain.from_iterable(FAMILIES.values()))
# A plain function is killed halfway through its time if it takes at least this long.
LONG_SECONDS = 0.02


class Kill(msgspec.Struct, frozen=True, omit_defaults=True):
    """A moment of a run: the nth time that it passes this point for an operation of this name."""

    point: str
    name: str = ""
    nth: int = 1
    moment: int = 0  # inside an async effect: the number of the await
    after: float = 0.0  # inside a plain effect: seconds after its start

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
        return next(name for name, members in FAMILIES.items() if self.point in members)


def families(text: str) -> tuple[str, ...]:
    """Return the chosen points, given as names of families or of points, separated by commas."""
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


def all_kills(lines: Iterable[Line], wanted: Sequence[str]) -> list[Kill]:
    """Return every moment that a run passed, in order."""
    found: list[Kill] = []
    for line in lines:
        if line.what == "passed" and line.point in wanted:
            found.append(Kill(line.point, line.name, line.nth))
        elif line.what == "ended" and line.role == "effect" and INSIDE in wanted:
            found += _inside(line)
    return found


def _inside(line: Line) -> list[Kill]:
    if line.awaits:
        # The first, the middle and the last: a provider's answer arrives in many parts.
        moments = sorted({1, (line.awaits + 1) // 2, line.awaits})
        return [Kill(INSIDE, line.name, line.nth, moment=moment) for moment in moments]
    if line.seconds < LONG_SECONDS:
        return []
    return [Kill(INSIDE, line.name, line.nth, after=line.seconds / 2)]


def chosen(kills: Sequence[Kill], most: int | None) -> list[Kill]:
    """Choose at most `most` kills: first those unlike all before them, then others, in order."""
    if most is None or len(kills) <= most:
        return list(kills)
    seen: Counter[tuple[str, str]] = Counter()
    ranked = []
    for place, kill in enumerate(kills):
        ranked.append((seen[kill.point, kill.name], place))
        seen[kill.point, kill.name] += 1
    kept = sorted(place for _, place in sorted(ranked)[:most])
    return [kills[place] for place in kept]

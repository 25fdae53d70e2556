"""Every interleaving of claims, leases, fences, one effect and its takeover.

The moves are andon.core's own decisions (see takeover.py). Every reachable world is visited, none
is sampled. In addition each rule is taken away once: if the search found no accident without it,
the search would prove nothing. The first such accident is the double effect that a lease and a
fence alone do not prevent.
"""

import time
from collections import Counter

from andon.core.effect import EffectKind
from verify.layer import Effort, Outcome, Say
from verify.takeover import (
    CHANGING,
    Accident,
    Model,
    Search,
    always_quiet,
    confirmed_in_vain,
    last_writer,
    process_is_enough,
    repeats,
    stuck,
    twice,
)

# How often the run is claimed at most; each more makes five times as many worlds.
CLAIMS = {"ci": 3, "verify": 4, "soak": 5}
# A program that acts by itself makes six times as many.
APART_CLAIMS = 3
FAULTS = {
    "freezes": "freeze",
    "dies": "death",
    "has its lease end": "end of a lease",
    "acts, and sees an error": "lost answer",
    "fails to act, and sees an error": "failed call",
    "sees an error": "program left to itself",
    "is gone as seen from another host, and replaced": "death that nobody can look into",
}
WITHOUT: dict[str, tuple[Model, Accident]] = {
    "the takeover rule": (Model(EffectKind.PROBEABLE, rule=always_quiet), twice),
    "the takeover rule, before an undo": (
        Model(EffectKind.COMPENSATABLE, rule=always_quiet),
        twice,
    ),
    "the rule never to repeat": (Model(EffectKind.IRREVERSIBLE, rule=repeats), twice),
    "a provider that knows keys": (Model(EffectKind.IDEMPOTENT, provider_knows_keys=False), twice),
    "knowing who started it": (Model(EffectKind.PROBEABLE, fold=last_writer), twice),
    "writing an undo down first": (
        Model(EffectKind.COMPENSATABLE, undo_is_written_first=False),
        confirmed_in_vain,
    ),
    "ending what the dead have started": (
        Model(EffectKind.PROBEABLE, apart=True, programs_are_ended=False),
        twice,
    ),
    "a look at what the dead have started": (
        Model(EffectKind.PROBEABLE, apart=True, certain=process_is_enough),
        twice,
    ),
    "noting a program before it starts": (
        Model(EffectKind.PROBEABLE, apart=True, programs_are_noted_first=False),
        twice,
    ),
    "ending the program of a call that raised": (
        Model(EffectKind.PROBEABLE, apart=True, doubt_ends_programs=False),
        twice,
    ),
    "a person who makes certain": (
        Model(EffectKind.IRREVERSIBLE, person_makes_certain=False),
        twice,
    ),
}


def sentence(path: list[str]) -> str:
    return "; ".join(f"{number}. {label}" for number, label in enumerate(path, 1))


def check(effort: Effort, say: Say) -> Outcome:
    began = time.monotonic()
    claims = CLAIMS.get(effort.name, 3)
    injected: Counter[str] = Counter()
    violations: list[str] = []
    worlds = 0
    for kind, apart in [
        *((kind, False) for kind in CHANGING),
        *((kind, True) for kind in CHANGING),
    ]:
        most = min(claims, APART_CLAIMS) if apart else claims
        search = Search(Model(kind, apart=apart, claims=most))
        worlds += len(search.came_from)
        through = " through a program" if apart else ""
        say(f"{kind}{through}: {len(search.came_from)} worlds with {most} claims at most")
        injected.update(_faults(search))
        violations += _accidents(f"{kind}{through}", search, most)
    missed = []
    for what, (model, accident) in WITHOUT.items():
        path = Search(model, accident).accident
        if path is None:
            missed.append(f"without {what} the search finds no accident")
        else:
            say(f"without {what}: {sentence(path)}")
    return Outcome(
        layer="model",
        injected=f"every interleaving of 2 workers and {claims} claims: "
        + ", ".join(f"{name} {count}" for name, count in sorted(injected.items()))
        + f"; {len(WITHOUT)} rules taken away, {len(WITHOUT) - len(missed)} accidents found",
        faults=injected.total(),
        runs=worlds,
        violations=violations,
        guards=missed,
        seconds=time.monotonic() - began,
    )


def _faults(search: Search) -> Counter[str]:
    """Which faults first led to a new world."""
    labels = (step[0] for step in search.came_from.values() if step is not None)
    endings = (label.partition(" ")[2] for label in labels)
    return Counter(FAULTS[ending] for ending in endings if ending in FAULTS)


def _accidents(kind: str, search: Search, claims: int) -> list[str]:
    replay = "python verify/verify.py --only model"
    found: list[str] = []
    for what, is_wrong in (("happens twice", twice), ("is confirmed in vain", confirmed_in_vain)):
        wrong = next((world for world in search.came_from if is_wrong(world)), None)
        if wrong is not None:
            found.append(f"an effect ({kind}) {what}: {sentence(search.path(wrong))} ({replay})")
    for world in stuck(search, claims)[:1]:
        path = sentence(search.path(world))
        found.append(f"an effect ({kind}) can never end: {path} ({replay})")
    return found

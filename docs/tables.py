"""The tables and pictures of the concept pages, generated from the tables in andon.core.

`python docs/tables.py` writes them between `<!-- table: NAME -->` and `<!-- end of table -->`;
tests/test_docs.py fails when a page has something else.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from andon.core import effect, run
from andon.core.effect import EffectKind, EffectMove, EffectState, Verdict

PAGES = sorted((Path(__file__).parent / "concepts").glob("*.md"))

_TABLE = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def run_diagram() -> str:
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> queued: start"]
    for state, events in run.TRANSITIONS.items():
        lines += [f"    {state} --> {to}: {event}" for event, to in events.items()]
    lines += [f"    {state} --> [*]" for state in run.State if not run.TRANSITIONS[state]]
    return "\n".join([*lines, "```"]) + "\n"


def run_transitions() -> str:
    rows = [
        [f"**{state}**", ", ".join(f"{event} → {to}" for event, to in events.items()) or "nothing"]
        for state, events in run.TRANSITIONS.items()
    ]
    return _table(["state", "what may happen → what it becomes"], rows)


def effect_states() -> str:
    rows = [
        [f"**{_words(state)}**", ", ".join(sorted(map(_words, effect.TRANSITIONS[state])))]
        for state in EffectState
    ]
    return _table(["state", "may become"], rows)


def effect_moves() -> str:
    """What is done about each state; rows that are the same for all kinds are one."""
    rows = []
    states: list[EffectState | None] = [None, *EffectState]
    for state in states:
        name = "not in the ledger" if state is None else _words(state)
        moves = {
            (kind, quiet): _move(state, kind, quiet)
            for kind in EffectKind
            for quiet in (True, False)
        }
        if len(set(moves.values())) == 1:
            rows.append([name, "any", "any", moves[EffectKind.PURE, True]])
            continue
        for kind in EffectKind:
            if moves[kind, True] == moves[kind, False]:
                rows.append([name, kind, "any", moves[kind, True]])
            else:
                rows += [
                    [name, kind, "yes", moves[kind, True]],
                    [name, kind, "no", moves[kind, False]],
                ]
    return _table(["found", "kind", "quiet", "what is done"], rows)


def _move(state: EffectState | None, kind: EffectKind, quiet: bool) -> str:
    move = effect.next_move(state, kind, quiet=quiet)
    if move is not EffectMove.PROBE:
        return _WORDS[move]
    after = {
        verdict: effect.next_move(state, kind, quiet=quiet, verdict=verdict)
        for verdict in Verdict
        if verdict is not Verdict.NOT_ASKED
    }
    return "probe; " + ", ".join(f"{_words(v)}: {_WORDS[m]}" for v, m in after.items())


_WORDS = {
    EffectMove.EXECUTE: "execute",
    EffectMove.PROBE: "probe",
    EffectMove.RECORD: "record the outcome",
    EffectMove.UNDO: "undo, then execute",
    EffectMove.ASK: "ask a person",
    EffectMove.ANSWER: "answer from the journal",
}

TABLES = {
    "run-diagram": run_diagram,
    "run-transitions": run_transitions,
    "effect-states": effect_states,
    "effect-moves": effect_moves,
}


def _words(name: str) -> str:
    return name.replace("_", " ")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def filled(text: str) -> str:
    """The page with its tables as they should be."""
    return _TABLE.sub(lambda found: found[1] + TABLES[found["name"]]() + found[3], text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text("utf-8")), "utf-8")

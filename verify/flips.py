"""Damaged files: flipped bits, zeroed or swapped pages, and files with their end cut off.

A store with runs of every kind is damaged in one place and opened by the real product. Everything
it then reports to a reader (the output of `andon ps`, `show` and `wait`: runs, results, journals,
effects, attempts, asks) is compared with the truth. Legal: the report is true, the product refuses
with an error of its own, or `andon verify` names the damage. A silent difference is a violation,
and so is any other error, damage that a reader meets and `andon verify` does not, or an answer that
takes too long.

A truncated WAL looks like one whose last transactions were never written: then, and when one of its
last two transactions was hurt, the state of an earlier moment is legal as well. UNCHAINED lists the
data that no chain of hashes covers (docs/limits.md).
"""

import contextlib
import json
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
from tests.chaos import agents
from tests.chaos.fleet import Forker, Site, until
from tests.chaos.kill import make_tally

from andon.control.runs import runs
from andon.core.values import value
from andon.errors import AndonError
from andon.runtime.requests import requests
from andon.store import open_store
from verify import harness
from verify.layer import Effort, Outcome, Say

PAGE = 4096
FAULTS = 1000  # at scale 1
LEAST = 70
SLOW_SECONDS = 20.0
KINDS = ("bit in the database", "zeroed page", "swapped pages", "cut database", "bit in the WAL",
         "zeroed piece of the WAL", "cut WAL", "lost line")  # fmt: skip
# Every line of these follows from others. A page that was never written is whole, and an old one.
LINES = ("andon_journal", "andon_attempts", "andon_effects", "andon_blobs")
# They depend on the reader's clock, or on whether a process is alive now.
UNCHAINED = {"created_at", "changed_at", "available_at", "wake_at", "claimed_at", "ended_at",
             "ending", "labels", "queue", "priority", "version", "worker", "undo", "undo_within",
             "waits", "asks", "failures", "interruptions", "quiet"}  # fmt: skip
PASSING = {"age_seconds", "doing", "stalled", "containment", "lifted_with", "held_by"}


@dataclass
class Tally:
    """Counts the outcomes of each kind of damage."""

    kinds: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    named: int = 0
    earlier: int = 0
    untouched: int = 0
    wrong: list[str] = field(default_factory=list)


@harness.layer("flips")
def check(effort: Effort, say: Say, outcome: Outcome) -> None:
    tally = Tally()
    with harness.scratch("flips") as folder:
        with harness.forker() as forker:
            whole, logged = made(forker, folder)
        truths = {
            "andon.db": read_all(copy(whole, folder)),
            "andon.db-wal": read_all(copy(logged, folder)),
        }
        chance = random.Random(effort.seed)
        pages = tables(whole / "andon.db")
        last = range(last_two(logged / "andon.db-wal"), sys.maxsize)
        # A canary may be rare: search until it is found.
        most = 5 * FAULTS if effort.until_red else max(LEAST, round(FAULTS * effort.scale))
        for number in range(most):
            if effort.until_red and tally.wrong:
                break
            kind = KINDS[number % len(KINDS)]
            hurt = "andon.db-wal" if "WAL" in kind else "andon.db"
            place = copy(logged if "WAL" in kind else whole, folder)
            if kind == "lost line":
                where, name = 0, f"{lose(place / hurt, chance)} is lost"
            else:
                where = damage(place / hurt, kind, chance, pages)
                name = f"{kind} at byte {where}"
            name += f" (seed {effort.seed}, number {number})"
            tally.kinds[kind] += 1
            at_the_end = kind == "cut WAL" or (hurt == "andon.db-wal" and where in last)
            judge(tally, name, place, truths[hurt], earlier=at_the_end)
    say(f"{tally.refused} refused, {tally.named} named by andon verify,"
        f" {tally.earlier} gave an earlier state, {tally.untouched} changed nothing")  # fmt: skip
    outcome.runs, outcome.violations = tally.kinds.total(), tally.wrong
    harness.count(outcome, KINDS, tally.kinds)
    if not tally.refused or not tally.named:
        outcome.guards.append("no damage was refused, or none was named by andon verify")


# ── a store with some of everything ───────────────────────────────────────────────────────────────


def made(forker: Forker, folder: Path) -> tuple[Path, Path]:
    """The same store twice: all of it in the database, and most of it still in the WAL."""
    whole, logged = folder / "whole", folder / "logged"
    whole.mkdir()
    with harness.sited(forker, f"sqlite:///{whole}/andon.db", folder / "world") as site:
        make_tally(site)
        fill(site)
        site.end()
        with contextlib.closing(apsw.Connection(str(whole / "andon.db"))) as db:
            db.execute("PRAGMA wal_autocheckpoint = 0")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            shutil.copytree(whole, logged, ignore=shutil.ignore_patterns("*.d", "*-shm"))
    return whole, write_more(logged)


def fill(site: Site) -> None:
    worker = site.worker(settings={"poll_seconds": 0.1})
    for number in range(3):
        requests.start(
            site.store, agents.sequence, (), id=f"sequence{number}", labels={"tenant": f"t{number}"}
        )
    site.start(agents.saga, run="saga")
    site.start(agents.waiting, run="waiting")
    site.start(agents.tour, run="tour")
    ended = {"sequence0", "sequence1", "sequence2", "saga"}
    until(lambda: not ended & {row.id for row in site.open_runs()}, "the end of the runs")
    until(lambda: site.state("tour") == site.state("waiting") == "suspended", "those that wait")
    worker.kill()
    site.start(agents.steady, 3, run="queued")
    requests.start(site.store, agents.acting, ("x" * 2 * value.INLINE_BYTES,), id="large")


def write_more(folder: Path) -> Path:
    """Messages, a run and answers that are in the WAL and not yet in the database."""
    store = open_store(f"sqlite:///{folder}/andon.db")
    with contextlib.closing(store):
        for number in range(6):
            requests.start(store, agents.steady, (number,), id=f"later{number}")
            requests.send(store, "waiting", f"news{number}", {"number": number}, id=f"n{number}")
    return folder


def copy(source: Path, folder: Path) -> Path:
    place = folder / "damaged"
    if place.exists():
        shutil.rmtree(place)
    place.mkdir()
    for name in ("andon.db", "andon.db-wal"):
        if (source / name).exists():
            shutil.copyfile(source / name, place / name)
    return place


# ── damage ────────────────────────────────────────────────────────────────────────────────────────


def tables(path: Path) -> dict[str, list[int]]:
    """Table or index → its pages; otherwise most damage would hit a few large values."""
    found: dict[str, list[int]] = {}
    with contextlib.closing(apsw.Connection(str(path))) as db:
        for name, page in db.execute("SELECT name, pageno - 1 FROM dbstat"):
            found.setdefault(name, []).append(page)
    return found


def last_two(path: Path) -> int:
    """Where the last two transactions of a WAL begin: after the third commit from the end."""
    found = path.read_bytes()
    frames = range(32, len(found), 24 + PAGE)
    commits = [place for place in frames if any(found[place + 4 : place + 8])]
    return commits[-3] + 24 + PAGE


def damage(path: Path, kind: str, chance: random.Random, of: dict[str, list[int]]) -> int:
    """Damages the file; returns the offset of the first damaged byte."""
    found = bytearray(path.read_bytes())
    pages = len(found) // PAGE
    if "bit" in kind:
        place, bit = chance.randrange(len(found)), chance.randrange(8)
        if kind == "bit in the database":
            page = chance.choice(of[chance.choice(sorted(of))])
            used = [n for n in range(page * PAGE, (page + 1) * PAGE) if found[n]]
            place = chance.choice(used)
        found[place] ^= 1 << bit
        where = place
    elif kind == "swapped pages":
        one, other = sorted(chance.sample(range(pages), 2))
        a, b = slice(one * PAGE, (one + 1) * PAGE), slice(other * PAGE, (other + 1) * PAGE)
        found[a], found[b] = found[b], found[a]
        where = one * PAGE
    elif "zeroed" in kind:
        number = chance.randrange(pages)
        found[number * PAGE : (number + 1) * PAGE] = bytes(PAGE)
        where = number * PAGE
    else:
        where = chance.randrange(len(found))
        del found[where:]
    path.write_bytes(found)
    return where


def lose(path: Path, chance: random.Random) -> str:
    """Deletes one line, and nothing else, as if it had never been written; returns which."""
    with contextlib.closing(apsw.Connection(str(path))) as db:
        table = chance.choice(LINES)
        rows = [row for (row,) in db.execute(f"SELECT rowid FROM {table} ORDER BY rowid")]
        place = chance.randrange(len(rows))
        db.execute(f"DELETE FROM {table} WHERE rowid = ?", (rows[place],))
        return f"line {place} of {table}"


# ── what a reader gets ────────────────────────────────────────────────────────────────────────────


def read_all(place: Path) -> dict[str, Any]:
    """Everything that a reader can ask for, through the product's own functions."""
    store = open_store(f"sqlite:///{place}/andon.db", create=False)
    with contextlib.closing(store):
        return dict(asked(store))


def asked(store: Any) -> Iterator[tuple[str, Any]]:
    for line in runs.listing(store, everything=True, limit=1000):
        yield f"ps {line['id']}", plain(line)
        shown = runs.show(store, line["id"])
        yield f"show {line['id']}", plain(shown)
        yield f"journal {line['id']}", plain(requests.journal(store, line["id"]))
        yield f"ledger {line['id']}", plain(store.ledger(line["id"]))


def plain(found: Any) -> Any:
    """As it would be printed, without the values that change with time."""
    text = json.dumps(
        found, default=lambda one: {name: getattr(one, name) for name in one.__struct_fields__}
    )
    return without(json.loads(text))


def without(found: Any) -> Any:
    if found == "stranded":  # the time since which it waits
        return "queued"
    if isinstance(found, dict):
        return {
            name: without(one) for name, one in found.items() if name not in PASSING | UNCHAINED
        }
    return [without(one) for one in found] if isinstance(found, list) else found


def judge(tally: Tally, name: str, place: Path, truth: dict[str, Any], *, earlier: bool) -> None:
    began = time.monotonic()
    wrong: list[str] | None = None
    try:
        with contextlib.closing(open_store(f"sqlite:///{place}/andon.db", create=False)) as store:
            wrong = harness.damage(store)
            found = dict(asked(store))
    except AndonError as error:
        tally.refused += 1
        if wrong == []:
            tally.wrong.append(f"{name}: andon verify finds nothing, and a reader: {error}")
        return
    except Exception as error:  # noqa: BLE001 (an error that is not andon's own is a finding)
        # On an error the command line checks the store for damage, and then reports that instead.
        tally.named += bool(wrong)
        if not wrong:
            tally.wrong.append(f"{name}: {type(error).__name__}: {error}")
        return
    finally:
        if time.monotonic() - began > SLOW_SECONDS:
            tally.wrong.append(f"{name}: the answer took {time.monotonic() - began:.0f} s")
    if wrong:
        tally.named += 1
    elif found == truth:
        tally.untouched += 1
    elif earlier and is_earlier(found, truth):
        tally.earlier += 1
    else:
        tally.wrong.append(f"{name}: silent difference: {difference(found, truth)}")


def is_earlier(found: dict[str, Any], truth: dict[str, Any]) -> bool:
    """Whether every journal is a prefix of the true one."""
    journals = {key: value for key, value in found.items() if key.startswith("journal ")}
    return (
        all(value == truth.get(key, [])[: len(value)] for key, value in journals.items())
        and journals.keys() <= truth.keys()
    )


def difference(found: dict[str, Any], truth: dict[str, Any]) -> str:
    for key in truth.keys() | found.keys():
        if found.get(key) != truth.get(key):
            return f"{key}: " + within(found.get(key), truth.get(key))
    return "nothing"


def within(found: Any, truth: Any) -> str:
    if isinstance(found, dict) and isinstance(truth, dict):
        for name in truth.keys() | found.keys():
            if found.get(name) != truth.get(name):
                return f"{name}: " + within(found.get(name), truth.get(name))
    if isinstance(found, list) and isinstance(truth, list) and len(found) == len(truth):
        for number, (one, other) in enumerate(zip(found, truth, strict=True)):
            if one != other:
                return f"{number}: " + within(one, other)
    return f"{found!r:.100} instead of {truth!r:.100}"


if __name__ == "__main__":
    harness.alone(check)

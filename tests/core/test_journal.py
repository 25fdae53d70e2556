"""The hash chain: no entry can be changed, removed, moved or inserted unnoticed."""

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from andon.core.journal import GENESIS, Entry, EntryKind, Mark, chain, check_chain
from andon.errors import Corrupt

texts = st.text(max_size=5)
times = st.floats(min_value=0, max_value=4e9)


def contents(chance: Random) -> dict[str, Any]:
    def text() -> str:
        return chance.choice(["", "a", "b", "ab", "null", '"', "é", "\x00"])

    return {
        "kind": chance.choice(list(EntryKind)),
        "state": chance.choice(list(Mark)),
        "place": text(),
        "name": text(),
        "key": chance.choice([None, text()]),
        "digest": text(),
        "body": chance.choice([None, text()]),
        "blob": chance.choice([None, text()]),
        "fence": chance.randrange(10),
        "since": chance.random(),
        "at": chance.random(),
    }


def linked(raw: list[dict[str, Any]]) -> list[Entry]:
    entries, previous = [], GENESIS
    for seq, fields in enumerate(raw):
        entry = Entry(seq=seq, **fields)
        entry.hash = previous = chain(previous, entry)
        entries.append(entry)
    return entries


def journal(seed: int, size: int) -> list[Entry]:
    """One draw for all of it: the changes made to the entries matter more than their contents."""
    chance = Random(seed)
    return linked([contents(chance) for _ in range(size)])


seeds = st.integers(0, 2**32)
journals = st.builds(journal, seeds, st.integers(2, 6))

OTHER: dict[str, st.SearchStrategy[object]] = {
    "seq": st.integers(0, 9),
    "kind": texts,
    "state": texts,
    "place": texts,
    "name": texts,
    "key": st.none() | texts,
    "digest": texts,
    "body": st.none() | texts,
    "blob": st.none() | texts,
    "fence": st.integers(0, 99),
    "since": times,
    "at": times,
    "hash": st.text("0123456789abcdef", min_size=64, max_size=64),
}


def test_every_field_of_an_entry_can_be_tampered_with_here() -> None:
    assert set(OTHER) == set(Entry.__struct_fields__)


def intact(entries: list[Entry], head: str) -> bool:
    """The two checks of `andon verify`: the chain holds, and it ends where the run's row says."""
    try:
        return check_chain(entries, run_id="r-1") == head
    except Corrupt:
        return False


@given(journals)
def test_an_untouched_journal_is_intact(entries: list[Entry]) -> None:
    assert check_chain(entries, run_id="r-1") == entries[-1].hash


@pytest.mark.parametrize("field", OTHER)
@given(data=st.data())
def test_any_changed_field_is_noticed(field: str, data: st.DataObject) -> None:
    entries = data.draw(journals)
    n = data.draw(st.integers(0, len(entries) - 1))
    other = data.draw(OTHER[field])
    assume(other != getattr(entries[n], field))
    head = entries[-1].hash
    entries[n] = msgspec.structs.replace(entries[n], **{field: other})
    assert not intact(entries, head)


@given(journals, st.data())
def test_any_removed_entry_is_noticed(entries: list[Entry], data: st.DataObject) -> None:
    head = entries[-1].hash
    del entries[data.draw(st.integers(0, len(entries) - 1))]
    assert not intact(entries, head)


@given(journals, st.data())
def test_any_change_of_order_is_noticed(entries: list[Entry], data: st.DataObject) -> None:
    other = data.draw(st.permutations(entries))
    assume([entry.seq for entry in other] != [entry.seq for entry in entries])
    assert not intact(other, entries[-1].hash)


@given(journals, seeds, st.booleans(), st.data())
def test_any_inserted_entry_is_noticed(
    entries: list[Entry], seed: int, renumbered: bool, data: st.DataObject
) -> None:
    head = entries[-1].hash
    n = data.draw(st.integers(0, len(entries)))
    forged = Entry(seq=n, **contents(Random(seed)))
    forged.hash = chain(entries[n - 1].hash if n else GENESIS, forged)  # as a clever forger would
    entries.insert(n, forged)
    if renumbered:
        for seq, entry in enumerate(entries):
            entry.seq = seq
    assert not intact(entries, head)


@given(journals, st.data())
def test_the_rest_of_a_journal_is_checked_from_its_last_trusted_entry(
    entries: list[Entry], data: st.DataObject
) -> None:
    n = data.draw(st.integers(1, len(entries) - 1))
    before = entries[n - 1].hash
    assert check_chain(entries[n:], run_id="r-1", previous=before) == entries[-1].hash
    assert check_chain(entries[n:], run_id="r-1", previous=None) == entries[-1].hash
    with pytest.raises(Corrupt):
        check_chain(entries[n:], run_id="r-1", previous=GENESIS)


@given(journals, st.data())
def test_every_change_after_a_trusted_first_entry_is_noticed(
    entries: list[Entry], data: st.DataObject
) -> None:
    n = data.draw(st.integers(1, len(entries) - 1))
    entries[n].name += "!"
    with pytest.raises(Corrupt):
        check_chain(entries, run_id="r-1", previous=None)


def test_an_empty_journal_ends_where_it_begins() -> None:
    assert check_chain([], run_id="r-1") == GENESIS
    assert check_chain([], run_id="r-1", previous="ab" * 32) == "ab" * 32
    assert check_chain([], run_id="r-1", previous=None) == GENESIS


def test_a_changed_entry_is_reported_by_its_place() -> None:
    entries = linked([{"kind": "step", "state": "done", "name": "pay"}])
    entries[0].body = '"forged"'
    with pytest.raises(Corrupt) as found:
        check_chain(entries, run_id="r-1")
    assert str(found.value) == (
        "run r-1: journal entry 0 (step pay) does not match its hash; it was changed outside "
        "andon. Restore it from a backup."
    )


def test_a_missing_entry_is_reported_by_its_place() -> None:
    entries = linked([{"kind": "step", "state": "done"}] * 4)
    del entries[2]
    with pytest.raises(Corrupt) as found:
        check_chain(entries, run_id="r-1")
    assert str(found.value) == (
        "run r-1: expected journal entry 2, found 3; entries are missing. "
        "Restore the database from a backup."
    )


def test_entries_missing_after_a_trusted_first_one_are_reported_as_missing() -> None:
    entries = linked([{"kind": "step", "state": "done"}] * 4)
    with pytest.raises(Corrupt, match="expected journal entry 1, found 2; entries are missing"):
        check_chain([entries[0], *entries[2:]], run_id="r-1", previous=None)

"""A value in pieces is the same value, and a list that grows shares its earlier pieces."""

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from andon.core.values import pieces
from andon.core.values.pieces import Piece, Value

kinds = st.sampled_from(["msgpack", "null", "bytes"])
values = st.tuples(kinds, st.binary(max_size=120) | st.binary(min_size=201, max_size=300))
lists = st.lists(values, max_size=4) | st.builds(
    lambda some, times: some * times, st.lists(values, min_size=1, max_size=5), st.integers(1, 300)
)


def bodies(found: list[Piece]) -> dict[bytes, bytes]:
    return {piece.name: piece.body for piece in found}


def reached(value: Value, kept: dict[bytes, bytes]) -> set[bytes]:
    names = set(pieces.names_in(value))
    todo = list(names)
    while todo:
        new = set(pieces.names_under(kept[todo.pop()])) - names
        names |= new
        todo += new
    return names


@given(values)
def test_a_value_is_reassembled_unchanged(value: Value) -> None:
    kept, parts = pieces.whole(value)
    assert pieces.joined(kept, bodies(parts)) == value
    assert reached(kept, bodies(parts)) == bodies(parts).keys()


@given(lists)
def test_a_list_is_reassembled_unchanged(elements: list[Value]) -> None:
    kept, parts = pieces.listed(elements)
    assert pieces.joined(kept, bodies(parts)) == elements
    assert reached(kept, bodies(parts)) == bodies(parts).keys()


@given(lists, lists)
def test_only_pieces_that_the_store_lacks_are_sent(before: list[Value], after: list[Value]) -> None:
    """The store holds all of the first list; the second one shares a part with it."""
    _, first = pieces.listed(before)
    kept, second = pieces.listed([*before, *after])
    store = bodies(first)
    known = frozenset(name for name in pieces.in_question(second) if name in store)
    store.update(bodies(pieces.missing(second, known)))
    assert pieces.joined(kept, store) == [*before, *after]


def test_a_list_that_grows_by_one_sends_only_its_right_edge() -> None:
    elements: list[Value] = [("msgpack", number.to_bytes(4) * 250) for number in range(2000)]
    store: dict[bytes, bytes] = {}
    sizes = []
    for length in range(1500, 1600):
        _, parts = pieces.listed(elements[:length])
        known = frozenset(name for name in pieces.in_question(parts) if name in store)
        new = pieces.missing(parts, known)
        store.update(bodies(new))
        sizes.append(sum(len(piece.body) for piece in new))
    assert all(1000 < size < 3500 for size in sizes[1:])


def test_the_store_is_asked_about_few_pieces() -> None:
    _, parts = pieces.listed([("msgpack", bytes([n % 256]) * 900 + bytes(n)) for n in range(1000)])
    assert len(pieces.in_question(parts)) <= 1 + 32 + 32


def test_each_piece_is_written_once_and_in_order() -> None:
    _, parts = pieces.listed([("bytes", b"a" * 300), ("bytes", b"b" * 300)] * 100)
    new = pieces.missing(parts, frozenset())
    assert [piece.name for piece in new] == sorted({piece.name for piece in parts})


def test_small_values_have_no_pieces_of_their_own() -> None:
    _, parts = pieces.listed([("msgpack", b"1")] * 1000)
    assert all(pieces.names_under(piece.body) or piece.under for piece in parts)
    assert pieces.whole(("msgpack", b"small")) == (("msgpack", b"small"), [])
    kept, none = pieces.listed([])
    assert not none
    assert pieces.joined(kept, {}) == []


def test_pieces_are_named_after_their_content() -> None:
    _, parts = pieces.listed([("msgpack", bytes(n)) for n in range(400)])
    assert all(pieces.named(piece.body) == piece.name for piece in chain(parts))

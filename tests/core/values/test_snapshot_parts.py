"""A state in parts is the same state, and a state that grows shares its earlier parts."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from andon.core.values import snapshot_parts

words = st.text(max_size=20) | st.text(min_size=250, max_size=400)
plain = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | words
states = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.builds(
            lambda some, times: some * times, st.lists(inner, max_size=3), st.integers(1, 60)
        )
        | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def kept(found: Any) -> tuple[bytes, dict[str, bytes]]:
    raw = msgspec.json.encode(found)
    return snapshot_parts.split(raw) or (raw, {})


def reassembled(body: bytes, parts: dict[str, bytes]) -> Any:
    return msgspec.json.decode(
        snapshot_parts.joined(body.decode(), lambda name: parts[name].decode())
    )


@given(states)
def test_a_state_is_reassembled_unchanged(found: Any) -> None:
    assert reassembled(*kept(found)) == found


def conversation(length: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{n} " * 200} for n in range(length)]


@pytest.mark.parametrize("length", [1, 31, 32, 33, 1023, 1024, 1025, 2100])
def test_a_conversation_is_unchanged_at_every_edge_of_the_tree(length: int) -> None:
    found = {"goal": "g", "messages": conversation(length), "seen": list(range(length))}
    body, parts = kept(found)
    assert reassembled(body, parts) == found
    assert (
        len(body) < 4 * 32 * 80 + 2 * snapshot_parts.LARGE_BYTES
    )  # at most 31 parts at each level


def test_one_message_more_is_one_part_more() -> None:
    _, before = kept(conversation(50))
    _, after = kept(conversation(51))
    assert len(after.keys() - before.keys()) == 1
    assert before.keys() < after.keys()


def test_the_stored_size_grows_with_the_length_and_not_with_its_square() -> None:
    def stored(length: int) -> int:
        parts: dict[str, bytes] = {}
        bodies = 0
        for n in range(1, length + 1):
            body, new = kept(conversation(n))
            bodies += len(body)
            parts |= new
        return bodies + sum(map(len, parts.values()))

    assert stored(400) < 2.5 * stored(200)


def test_the_parts_of_a_state_are_found_and_known_ones_are_not_fetched_again() -> None:
    known: set[str] = set()
    for length in (1100, 1101):
        body, parts = kept(
            {
                "talks": [{"messages": conversation(length)}, 1, {"x": conversation(40)}],
                "seen": [*range(3001)],
            }
        )
        new = parts.keys() - known
        fetched: list[str] = []

        def fetch(name: str, parts: Any = parts, fetched: Any = fetched) -> str:
            fetched.append(name)
            return str(parts[name].decode())

        snapshot_parts.names(body.decode(), fetch, known)
        assert sorted(fetched) == sorted(new)
        assert parts.keys() <= known


def test_a_state_that_looks_like_parts_stays_as_it_is() -> None:
    found = {"@andon.list": [[0, "nothing"]], "messages": conversation(40)}
    assert snapshot_parts.split(msgspec.json.encode(found)) is None

"""The digest of arguments: the same for the same call in every process, else different."""

import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import combinations
from random import Random
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from andon.core.values import value
from andon.errors import NotStorable

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
) | st.text(max_size=3)
json_values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=4)
    ),
    max_leaves=8,
)
calls = st.tuples(
    st.lists(json_values, max_size=3).map(tuple),
    st.dictionaries(st.text(max_size=3), json_values, max_size=3),
)
Call = tuple[tuple[Any, ...], dict[str, Any]]
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


def of(*args: Any, **kwargs: Any) -> str:
    return value.digest(args, kwargs, "step 'look'")


def refusal(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(NotStorable) as refused:
        of(*args, **kwargs)
    return str(refused.value)


def shuffled(given_value: Any, chance: Random) -> Any:
    if isinstance(given_value, dict):
        items = [(key, shuffled(item, chance)) for key, item in given_value.items()]
        chance.shuffle(items)
        return dict(items)
    if isinstance(given_value, list | tuple):
        return type(given_value)(shuffled(item, chance) for item in given_value)
    return given_value


@given(calls, st.randoms())
def test_the_order_of_a_dict_does_not_change_its_digest(call: Call, chance: Random) -> None:
    args, kwargs = call
    assert of(*args, **kwargs) == of(*shuffled(args, chance), **shuffled(kwargs, chance))


@given(calls, calls)
def test_two_calls_have_one_digest_only_if_they_are_the_same_json(one: Call, other: Call) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (of(*one[0], **one[1]) == of(*other[0], **other[1])) == same


ALIKE: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}),
    ((True,), {}),
    (("1",), {}),
    ((1.0,), {}),
    (([1],), {}),
    (("true",), {}),
    ((None,), {}),
    (("null",), {}),
    ((), {}),
    (("",), {}),
    (([],), {}),
    (({},), {}),
    ((1, 2), {}),
    (([1, 2],), {}),
    (([1], 2), {}),
    ((), {"a": 1}),
    ((), {"b": 1}),
    (({"a": 1},), {}),
    ((0.0,), {}),
    ((-0.0,), {}),
    ((2**53,), {}),
    ((2**53 + 1,), {}),
    ((2**64,), {}),
    ((2**64 + 1,), {}),
]


def test_calls_that_look_alike_have_different_digests() -> None:
    digests = [of(*args, **kwargs) for args, kwargs in ALIKE]
    for (one, its), (other, others) in combinations(zip(ALIKE, digests, strict=True), 2):
        assert its != others, (one, other)


SAME = """
from dataclasses import dataclass
from andon.core.values import value
@dataclass
class Point:
    x: int
    tags: set
print(value.digest(({"ab", "cd", "ef", "gh"}, Point(1, {"x", "y", "z"})), {"b": 1, "a": {2}}, "s"))
"""


def test_a_digest_is_the_same_in_every_process() -> None:
    found = set()
    for seed in ("1", "2", "3"):  # the order of a set of texts differs from process to process
        environ = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", SAME], env=environ, check=True, capture_output=True, text=True
        )
        found.add(done.stdout)
    assert len(found) == 1


def test_a_digest_does_not_change_with_a_release() -> None:
    """Otherwise every run that is under way would diverge after an upgrade."""
    assert of(1, "a", [None, 2.5], b={"y": 1, "x": True}) == "6abe8ef3c718d8fde996eb36a0e7dfa6"


@dataclass
class Reading:
    level: float | None


class Model:
    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return self.fields


def test_arguments_may_be_of_types_that_have_a_json_form() -> None:
    one = of(NEW_YEAR, Reading(1.5), Model(a=1, b=2))
    assert one == of(NEW_YEAR, Reading(1.5), Model(b=2, a=1))
    assert of(Reading(1.5)) != of(Reading(None))
    assert of(Model(a=1)) != of(Model(a=2))


HOW_TO_GO_ON = (
    "The step was not executed; pass plain JSON values, and create clients and connections "
    "inside the step."
)
NO_NAN = "(JSON has no NaN and no infinity)"
cycle: list[Any] = []
cycle.append(cycle)


@pytest.mark.parametrize(
    ("args", "kwargs", "name", "found"),
    [
        ((object(),), {}, "1", "an object (object has no JSON form)"),
        ((1, {"c": [len]}), {}, "2", "a builtin_function_or_method at .c[0] (builtin"),
        ((1,), {"client": object()}, "'client'", "an object (object has no JSON form)"),
        ((1, math.nan), {}, "2", f"nan {NO_NAN}"),
        ((None,), {"x": [None, math.inf]}, "'x'", f"inf at [1] {NO_NAN}"),
        ((Reading(math.nan),), {}, "1", f"nan at .level {NO_NAN}"),
        ((NEW_YEAR, math.nan), {}, "2", f"nan {NO_NAN}"),
        (({"a": {1: 2}},), {}, "1", "a key of type int (1) at .a (Only dicts with str keys"),
        (("\ud800",), {}, "1", "a str with characters that are not Unicode text ('utf-8'"),
        (({1, "a"},), {}, "1", "a set ("),
        ((MappingProxyType({}),), {}, "1", "a mappingproxy (mappingproxy has no JSON form)"),
        ((10**5000,), {}, "1", "an int (Exceeds the limit"),
        ((), {"b": cycle, "a": object()}, "'b'", "something nested too deeply at [0][0]"),
    ],
)
def test_the_argument_that_cannot_be_stored_is_named(
    args: tuple[Any, ...], kwargs: dict[str, Any], name: str, found: str
) -> None:
    text = refusal(*args, **kwargs)
    assert text.startswith(f"argument {name} of step 'look' cannot be stored: {found}")
    assert text.endswith(HOW_TO_GO_ON)


def test_a_name_that_cannot_be_stored_is_refused_for_all_arguments() -> None:
    text = refusal(1, **{"\ud800": 2})
    assert text.startswith("the arguments of step 'look' cannot be stored: 'utf-8' codec")


def test_a_cycle_is_refused() -> None:
    assert refusal(cycle) == "the arguments of step 'look' are nested too deeply; flatten them"


@pytest.mark.parametrize(("size", "fits"), [(9_999_999, True), (10_000_000, False)])
def test_ten_million_bytes_are_too_many(size: int, fits: bool) -> None:
    text = "x" * (size - len('[[""],{}]'))
    if fits:
        assert len(of(text)) == 32
    else:
        assert refusal(text) == (
            "the arguments of step 'look' have 10,000,000 bytes as JSON; the limit is 10,000,000 "
            "(10 MB). Pass the address of what they hold."
        )

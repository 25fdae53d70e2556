"""Shapes refuse only the values that an annotation certainly refuses."""

import collections.abc
import dataclasses
import datetime
import enum
import json
from decimal import Decimal
from typing import Any, Literal, NamedTuple, NewType, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from andon.core.values.shape import ANY, misfit, shape_of, with_default, words


class Order(msgspec.Struct):
    number: int
    note: str = ""


@dataclasses.dataclass
class Basket:
    orders: list[Order]
    total: float = 0.0


class Options(TypedDict):
    depth: int
    quick: NotRequired[bool]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Odd(enum.Enum):
    PAIR = (1, 2)


class Tree(msgspec.Struct):
    left: "Tree | None" = None
    right: "Tree | None" = None
    more: "list[Tree]" = []


class Row(msgspec.Struct, array_like=True):
    number: int


class Tagged(msgspec.Struct, tag=True):
    number: int


class Point(NamedTuple):
    x: int


FITS: list[tuple[Any, list[Any], list[Any]]] = [
    (int, [1, -1, 3.0, 10**30], ["abc", "1", 1.5, True, None, [], {}]),
    (float, [1, 1.5, float("inf")], ["1", True, None]),
    (str, ["", "1", "[1,"], [1, None, True, ["a"], {}]),
    (bool, [True, False], [0, 1, "true", None]),
    (None, [None], [0, "", False]),
    (int | None, [1, None], ["x", 1.5]),
    (int | str, [1, "x"], [1.5, None, []]),
    (list, [[], [1, "a"], (1,)], ["abc", {}, 1, None]),
    (list[int], [[], [1], (1, 2)], [["a"], [1, None], "1", {}]),
    (collections.abc.Sequence[int], [[1]], ["1"]),
    (set[int], [[1], {1}], ["a", ["a"]]),
    (tuple[int, ...], [(1, 2), [1]], [["a"]]),
    (tuple[int, str], [(1, "a"), [1, "a"]], [[1], [1, 2], "ab", None, [1, "a", 2]]),
    (datetime.date, ["2026-01-31", datetime.date(2026, 1, 31)], ["soon", 1, None, []]),
    (
        datetime.datetime,
        ["2026-01-31T14:00:00Z", datetime.datetime(2026, 1, 31, tzinfo=datetime.UTC)],
        ["2026-01-31", "x"],
    ),
    (datetime.time, ["14:00:00"], ["2 o'clock", 14]),
    (datetime.timedelta, ["PT90S", datetime.timedelta(1)], ["90 seconds"]),
    (UUID, [UUID(int=1), str(UUID(int=1))], ["1234", 1]),
    (Decimal, [1, 1.5, "1.50", Decimal(1)], ["much", None, True]),
    (bytes, [b"\xff", "aGVsbG8="], ["hello!", 1]),
    (list[datetime.date | None], [["2026-01-31", None]], [["x"]]),
    (dict, [{}, {"a": 1}], [[], "a"]),
    (dict[str, list[int]], [{"a": [1]}], [{"a": ["b"]}, {"a": 1}, []]),
    (dict[int, str], [{"1": "a"}, {1: "a"}], [{1: 1}]),
    (Literal["a", 1], ["a", 1], ["b", 2, True, None]),
    (Literal[True], [True], [1]),
    (Colour, ["red", Colour.RED], ["green", 1]),
    (NewType("Number", int), [1], ["a"]),
    (Order, [{"number": 1}, {"number": 1, "note": "x", "new": 1}, Order(1)], [{}, {"number": "a"}]),
    (Order, [], [[], "x", {"number": 1, "note": 2}]),
    (Basket, [{"orders": []}, Basket([])], [{"orders": [{"number": "x"}]}, {"total": 1}]),
    (Options, [{"depth": 1}, {"depth": 1, "quick": True}], [{"depth": 1, "quick": 1}, {}]),
]


@pytest.mark.parametrize(("annotation", "fitting", "others"), FITS)
def test_a_shape_accepts_the_annotated_values_and_refuses_all_others(
    annotation: Any, fitting: list[Any], others: list[Any]
) -> None:
    shape = json.loads(json.dumps(shape_of(annotation)))
    for value in fitting:
        assert misfit(shape, value) is None
    for value in others:
        assert misfit(shape, value), (annotation, value)


@pytest.mark.parametrize(
    "annotation",
    [
        *(Any, object, complex, "Unknown", type),
        *(collections.abc.Iterable[int], collections.abc.Callable[..., int]),
        *(Odd, Row, Tagged, Point, Order | Basket),
    ],
)
def test_an_annotation_that_is_not_understood_accepts_everything(annotation: Any) -> None:
    assert shape_of(annotation) == ANY
    for value in (1, "a", None, [1], {"a": 1}, object()):
        assert misfit(shape_of(annotation), value) is None


@given(st.recursive(st.none() | st.integers() | st.text(), st.lists))
def test_a_shape_written_by_a_later_version_accepts_everything(value: Any) -> None:
    for shape in (
        "date",
        {"date": 1},
        {"text": "later"},
        {"list": "date"} if isinstance(value, list) else "x",
        7,
    ):
        assert misfit(shape, value) is None
    assert misfit({"list": "int", "at_most": 3}, value) is None


def test_objects_that_are_not_plain_json_are_left_to_the_encoder() -> None:
    for annotation in (int, str, list[int], dict[str, int], Order, int | None):
        assert misfit(shape_of(annotation), datetime.date(2026, 1, 1)) is None


def test_the_shape_of_a_recursive_type_is_finite() -> None:
    shape = shape_of(Tree)
    assert len(json.dumps(shape)) < 20_000
    assert misfit(shape, {"left": {"left": {}}, "more": [{}]}) is None
    assert misfit(shape, {"left": {"left": 1}})


def test_the_default_may_always_be_given() -> None:
    assert with_default("int", 3) == "int"
    assert misfit(with_default("int", None), None) is None
    assert misfit(with_default("int", None), "abc") == "expected int or None, found 'abc'"
    assert with_default("int", "auto") == ANY


@pytest.mark.parametrize(
    ("annotation", "given", "said"),
    [
        (int, "abc", "n: expected int, found 'abc'"),
        (list[int], [1, "x"], "n[1]: expected int, found 'x'"),
        (dict[str, int], {"a": "x"}, "n.a: expected int, found 'x'"),
        (Order, {}, "n: expected Order, found no 'number' in it"),
        (Basket, {"orders": [{"number": "x"}]}, "n.orders[0].number: expected int, found 'x'"),
        (Order, 1, "n: expected Order, found 1"),
        (Literal["a", "b"], "c", "n: expected one of 'a', 'b', found 'c'"),
        (dict[str, int], [], "n: expected dict[str, int], found []"),
        (list[str], "x" * 100, "n: expected list[str], found '" + "x" * 56 + "..."),
        (None, 1, "n: expected None, found 1"),
        (tuple[int, str], [1], "n: expected tuple[int, str], found [1]"),
        (datetime.date, "soon", "n: expected date, like 2026-01-31, found 'soon'"),
    ],
)
def test_a_misfit_names_the_place_the_expected_and_the_found(
    annotation: Any, given: Any, said: str
) -> None:
    assert misfit(shape_of(annotation), given, "n") == said


def test_an_unknown_shape_is_described_as_any_value() -> None:
    assert words({"later": 1}) == ANY


def test_a_value_that_is_no_json_is_left_to_the_encoder() -> None:
    assert misfit(shape_of(datetime.date), "\ud800") is None

"""A value comes back from the journal unchanged, or is refused when it is stored.

A value that JSON would change is refused with its path when it is stored, not when it is needed
after a crash.
"""

import inspect
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypedDict, Union
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from andon.core.values import value
from andon.errors import NotStorable

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # Words that JSON spells itself must stay words.
    | st.text()
    | st.sampled_from(["null", "NaN", "true", "1"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)

WHAT = "the result of step 'look'"


def stored(given_value: Any, annotation: Any = Any) -> Any:
    """The value of a step with that annotation; its replay must give the same."""
    typed = value.decoder_for(annotation)
    raw, back = value.encode_result(given_value, WHAT, typed)
    assert repr((typed or value.decode)(raw)) == repr(back)
    return back


def refusal(given_value: Any, annotation: Any = Any) -> str:
    with pytest.raises(NotStorable) as refused:
        stored(given_value, annotation)
    return str(refused.value)


def nested(depth: int, leaf: Any = None, wrap: Callable[[Any], Any] = lambda x: [x]) -> Any:
    for _ in range(depth):
        leaf = wrap(leaf)
    return leaf


# ── plain JSON ────────────────────────────────────────────────────────────────────────────────────


@given(json_values)
def test_a_json_value_comes_back_equal_to_the_last_type(given_value: Any) -> None:
    assert repr(stored(given_value)) == repr(given_value)  # unlike ==, tells 1, 1.0 and True apart


@given(json_values)
def test_encode_writes_what_decode_reads(given_value: Any) -> None:
    assert repr(value.decode(value.encode(given_value, WHAT))) == repr(given_value)


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**63) - 1, 10**400, 10**4299])
def test_a_huge_integer_comes_back_to_the_last_digit(number: int) -> None:
    assert stored([number]) == [number]


def test_an_integer_with_more_digits_than_python_reads_is_refused() -> None:
    assert "4300 digits" in refusal(10**5000)


class Colour(Enum):
    RED = "red"


class Size(IntEnum):
    SMALL = 1


class Mood(StrEnum):
    GOOD = "good"


class Pair(NamedTuple):
    left: int
    right: int


@pytest.mark.parametrize(
    ("given_value", "back"),
    [
        ((1, (2, 3)), [1, [2, 3]]),
        (Pair(1, 2), [1, 2]),
        (Mood.GOOD, "good"),
        ([Size.SMALL], [1]),
        (OrderedDict(a=1), {"a": 1}),
        (Counter("aab"), {"a": 2, "b": 1}),
    ],
)
def test_subclasses_of_json_types_come_back_as_plain_json_at_once(
    given_value: Any, back: Any
) -> None:
    """Also when the step is executed, not only when it is replayed."""
    assert repr(stored(given_value)) == repr(back)


class NeverEqual:
    """Compares like a numpy array: not at all."""

    def __init__(self) -> None:
        self.x = 1

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value of this is ambiguous")

    __hash__ = None  # type: ignore[assignment]


class AwkwardList(list[int]):
    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value of this is ambiguous")

    __hash__ = None


def test_a_value_that_cannot_be_compared_is_judged_by_its_content() -> None:
    assert stored(AwkwardList([1, 2])) == [1, 2]


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────

NOT_A_NUMBER = "is not a number that JSON can hold"
CHANGED = "would come back changed; return plain JSON, or annotate the function's result"


@dataclass
class Reading:
    at: int
    level: float | None = None


class Record(msgspec.Struct):
    level: float | None = None


@pytest.mark.parametrize(
    ("given_value", "said"),
    [
        (math.nan, f"nan {NOT_A_NUMBER}"),
        ([1, {"a": [math.inf]}], f"inf at [1].a[0] {NOT_A_NUMBER}"),
        ({"low": -math.inf}, f"-inf at .low {NOT_A_NUMBER}"),
        ({"x": None, "y": (0, math.nan)}, f"nan at .y[1] {NOT_A_NUMBER}"),
        ([datetime(2026, 1, 1, tzinfo=UTC), math.nan], f"nan at [1] {NOT_A_NUMBER}"),
        ([Reading(1, math.nan)], f"nan at [0].level {NOT_A_NUMBER}"),
        (b"raw", f"a bytes {CHANGED}"),
        ({"file": bytearray(b"raw")}, f"a bytearray at .file {CHANGED}"),
        ({1: "a"}, f"a key of type int (1) {CHANGED}"),
        ({"a": [{2.5: "b"}]}, f"a key of type float (2.5) at .a[0] {CHANGED}"),
        ({1: "a", "1": "b"}, f"a key of type int (1) {CHANGED}"),
        ({None: 1}, "a key of type NoneType (None) (NoneType has no JSON form)"),
        ([{(1, 2): 1}], "a key of type tuple ((1, 2)) at [0] (tuple has no JSON form)"),
        (["ok", "\ud800"], "a str with characters that are not Unicode text at [1] ('utf-8' codec"),
        ({"a": {"\udfff": 1}}, "a key that is not Unicode text ('\\udfff') at .a ('utf-8' codec"),
        (datetime(2026, 1, 1, tzinfo=UTC), f"a datetime {CHANGED}"),
        ({"when": [date(2026, 1, 1)]}, f"a date at .when[0] {CHANGED}"),
        (timedelta(seconds=1), f"a timedelta {CHANGED}"),
        (Decimal("1.5"), f"a Decimal {CHANGED}"),
        (UUID(int=1), f"a UUID {CHANGED}"),
        ({1, 2}, f"a set {CHANGED}"),
        ({"tags": frozenset("a")}, f"a frozenset at .tags {CHANGED}"),
        (Colour.RED, f"a Colour {CHANGED}"),
        (Reading(1), f"a Reading {CHANGED}"),
        (object(), "an object (object has no JSON form)"),
        ([{"client": object()}], "an object at [0].client (object has no JSON form)"),
        (NeverEqual(), "a NeverEqual (NeverEqual has no JSON form)"),
        ([len], "a builtin_function_or_method at [0] (builtin_function_or_method has no"),
        (MappingProxyType({"a": 1}), "mappingproxy has no JSON form"),
        (Reading, "a type (type has no JSON form)"),
    ],
)
def test_a_value_without_a_json_form_is_refused_by_its_path(given_value: Any, said: str) -> None:
    assert refusal(given_value).startswith(f"{WHAT} cannot be stored: {said}")


@pytest.mark.parametrize("annotation", [Reading, Record])
def test_a_number_without_a_json_form_is_refused_inside_a_declared_type_too(
    annotation: Any,
) -> None:
    """NaN would be written as null, and `float | None` would read that as None."""
    given_value = annotation(**{"at": 1} if annotation is Reading else {}, level=math.nan)
    assert refusal(given_value, annotation).endswith(f"nan at .level {NOT_A_NUMBER}")


def test_none_is_not_mistaken_for_a_number() -> None:
    assert stored({"a": None, "b": [1.5, (None, "null")]}) == {
        "a": None,
        "b": [1.5, [None, "null"]],
    }


def test_of_several_bad_values_the_first_is_named() -> None:
    assert f"a bytes at [0].a[0] {CHANGED}" in refusal([{"a": [b"1", b"2"]}, {3}])


def test_the_path_to_a_deep_value_is_cut() -> None:
    assert len(refusal(nested(300, object()))) < 400


# ── too deep ──────────────────────────────────────────────────────────────────────────────────────

TOO_DEEP = f"{WHAT} is nested too deeply to be stored; flatten it"
cycle: list[Any] = []
cycle.append(cycle)


@pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: {"a": x}, lambda x: [None, x]])
def test_a_value_that_is_nested_too_deeply_is_refused(wrap: Callable[[Any], Any]) -> None:
    deep = nested(20_000, 1, wrap)
    assert refusal(deep) == TOO_DEEP
    with pytest.raises(NotStorable, match="arguments of step 'look' are nested too deeply"):
        value.digest((deep,), {}, "step 'look'")


def test_a_cycle_is_refused() -> None:
    assert refusal(cycle) == TOO_DEEP


@pytest.mark.parametrize("leaf", [1, None, math.nan, object(), "\ud800", b"raw"])
@pytest.mark.parametrize("annotation", [Any, tuple[Any, ...], Reading])
def test_no_depth_raises_a_recursion_error(leaf: Any, annotation: Any) -> None:
    typed = value.decoder_for(annotation)
    for depth in (300, 500, *range(930, 1000, 7)):
        deep = nested(depth, leaf)
        with suppress(NotStorable):
            value.encode_result(deep, WHAT, typed)
        with suppress(NotStorable):
            value.digest((1, deep), {"a": deep}, WHAT)


# ── too large ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("size", "fits"), [(9_999_999, True), (10_000_000, False)])
def test_ten_million_bytes_are_too_many(size: int, fits: bool) -> None:
    text = "x" * (size - 2)  # and its quotes
    if fits:
        assert value.encode(text, WHAT) == f'"{text}"'.encode()
    else:
        assert refusal(text) == (
            f"{WHAT} has 10,000,000 bytes as JSON; the limit is 10,000,000 (10 MB). "
            "Store it elsewhere and return its address."
        )


# ── typed results ─────────────────────────────────────────────────────────────────────────────────


class Order(msgspec.Struct):
    id: str
    due: datetime


class Draft(TypedDict):
    text: str
    at: datetime


@dataclass
class Basket:
    items: list[str] = field(default_factory=list)
    colour: Colour = Colour.RED


class Model:
    """The part of a pydantic model that andon uses."""

    def __init__(self, amount: int) -> None:
        self.amount = amount

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return {"amount": self.amount}

    @classmethod
    def model_validate(cls, given_value: dict[str, Any]) -> "Model":
        return cls(given_value["amount"])

    def __repr__(self) -> str:
        return f"Model({self.amount})"


NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given_value", "annotation"),
    [
        (Reading(7, 2.5), Reading),
        (Basket(["a"], Colour.RED), Basket),
        ([Reading(7)], list[Reading]),
        (Order("o1", NOON), Order),
        ({"o1": Order("o1", NOON)}, dict[str, Order]),
        ({"text": "x", "at": NOON}, Draft),
        (NOON, datetime),
        (None, datetime | None),
        (NOON, Union[datetime, None]),  # noqa: UP007 (another object than `datetime | None`)
        (date(2026, 5, 4), date),
        (timedelta(minutes=3), timedelta),
        ((1, "a"), tuple[int, str]),
        ((1, "a"), tuple),
        (Pair(1, 2), Pair),
        ({1, 2}, set[int]),
        (frozenset({"a"}), frozenset),
        (Colour.RED, Colour),
        (Mood.GOOD, Mood),
        (Size.SMALL, Size),
        (b"raw", bytes),
        (Decimal("1.50"), Decimal),
        (UUID(int=7), UUID),
        ("a", Literal["a", "b"]),
        ({1: "a", 20: "b"}, dict[int, str]),
        ({2.5: ["a"]}, dict[float, list[str]]),
        ([{3: None}], list[dict[int, None]]),
        (Model(3), Model),
        ([Model(3)], list[Model]),
    ],
)
def test_a_declared_type_comes_back_as_that_type(given_value: Any, annotation: Any) -> None:
    back = stored(given_value, annotation)
    assert repr(back) == repr(given_value)
    assert type(back) is type(given_value)


@pytest.mark.parametrize(
    ("given_value", "annotation", "said"),
    [
        ({"at": "late"}, Reading, "Expected `int`, got `str` - at `$.at`"),
        ("tomorrow", datetime, "Invalid RFC3339"),
        ({"sum": 3}, Model, "'amount'"),
        ([{"x": 1}], list[NeverEqual], "NeverEqual cannot be made from JSON"),
    ],
)
def test_a_result_that_does_not_match_its_annotation_is_refused(
    given_value: Any, annotation: Any, said: str
) -> None:
    text = refusal(given_value, annotation)
    start = f"{WHAT} is not what its annotation says, so it could not be read back: "
    assert text.startswith(start)
    assert said in text


def test_a_model_without_an_annotation_is_refused_as_it_would_come_back_changed() -> None:
    assert refusal({"m": Model(3)}).endswith(f"a Model at .m {CHANGED}")


def test_the_class_of_a_model_is_not_a_model() -> None:
    assert "has no JSON form" in refusal(Model)


class Broken(Model):
    def model_dump(self, *, mode: str) -> dict[str, Any]:
        raise ValueError("field 'amount' cannot be serialized")


def test_a_model_that_cannot_be_dumped_is_refused_with_its_reason() -> None:
    assert refusal([Broken(1)]).endswith("a Broken at [0] (field 'amount' cannot be serialized)")


@pytest.mark.parametrize(
    "annotation",
    [
        Any,
        object,
        type(None),
        inspect.Parameter.empty,
        bool,
        int,
        float,
        str,
        list,
        dict,
        list[int],
        dict[str, Any],
        dict[str, list[int | None]],
        Union[str, None],  # noqa: UP007 (another object than `str | None`)
        int | str,
    ],
)
def test_plain_json_needs_no_decoder(annotation: Any) -> None:
    assert value.decoder_for(annotation) is None


@pytest.mark.parametrize(
    "annotation",
    [Iterator[int], Iterable[str], NeverEqual, datetime | str, dict[int | str, int]],
)
def test_a_type_that_cannot_be_restored_has_no_decoder(annotation: Any) -> None:
    assert value.decoder_for(annotation) is None


def test_ambiguous_dict_keys_are_refused() -> None:
    assert "a key of type int (1)" in refusal({1: 1}, dict[int | str, int])


# ── the annotations of functions ──────────────────────────────────────────────────────────────────


def test_a_return_annotation_decides_how_the_result_is_read() -> None:
    def due() -> datetime:
        raise NotImplementedError

    async def due_later() -> "datetime":
        raise NotImplementedError

    for function in (due, due_later):
        decoder = value.result_decoder(function)
        assert decoder is not None
        assert decoder('"2026-05-04T12:00:00Z"') == NOON


def test_a_function_without_annotations_returns_plain_json() -> None:
    def look():  # type: ignore[no-untyped-def]  # noqa: ANN202, RUF100
        raise NotImplementedError

    assert value.annotations(look) == {}
    assert value.result_decoder(look) is None


def test_annotations_that_cannot_be_resolved_are_ignored() -> None:
    def look() -> "NoSuchName":  # type: ignore[name-defined]  # noqa: F821
        raise NotImplementedError

    assert value.annotations(look) == {}
    assert value.result_decoder(look) is None


def test_an_annotation_that_cannot_be_hashed_is_ignored() -> None:
    def f() -> Any: ...

    f.__annotations__["return"] = Literal[[1]]
    assert value.result_decoder(f) is None


def test_a_callable_that_cannot_be_hashed_counts_as_unannotated() -> None:
    class Tool:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self) -> datetime:
            raise NotImplementedError

    assert value.result_decoder(Tool()) is None


# ── blobs ─────────────────────────────────────────────────────────────────────────────────────────


@given(st.binary(), st.binary())
def test_a_blob_is_named_by_its_content(one: bytes, other: bytes) -> None:
    assert (value.content_name(one) == value.content_name(other)) == (one == other)
    assert len(value.content_name(one)) == 64


def test_blobs_that_differ_only_at_their_end_have_different_names() -> None:
    assert value.content_name(b"x" * 100_000 + b"1") != value.content_name(b"x" * 100_000 + b"2")


def test_only_a_value_that_may_be_stored_may_be_a_blob() -> None:
    assert value.INLINE_BYTES < value.LIMIT_BYTES


def test_an_instance_of_a_str_subclass_is_stored_as_its_text() -> None:
    class Text(str):
        __slots__ = ()

    raw, back = value.encode_result([Text("said")], "it")
    assert (raw, back, type(back[0])) == (b'["said"]', ["said"], str)

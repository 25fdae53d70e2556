"""Values with names."""

import pytest

from andon.core.values.struct import Struct


class Point(Struct):
    x: int
    y: int = 2


class Named(Point):
    name: str


def test_what_was_not_said_is_the_default() -> None:
    assert (Point(x=1).x, Point(x=1).y) == (1, 2)
    assert Point.__struct_fields__ == ("x", "y")


def test_a_value_that_is_missing_or_unknown_is_named() -> None:
    with pytest.raises(TypeError, match="Point: missing x, unknown z"):
        Point(z=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Point: missing x$"):
        Point()  # type: ignore[call-arg]


def test_it_cannot_be_changed_but_replaced() -> None:
    point = Point(x=1)
    with pytest.raises(AttributeError, match=r"Point\.x cannot be changed"):
        point.x = 5  # type: ignore[misc]
    assert (point.but(x=5), point) == (Point(x=5, y=2), Point(x=1))
    with pytest.raises(TypeError, match="unknown z"):
        point.but(z=1)


def test_equal_is_what_holds_the_same_and_is_the_same() -> None:
    assert Point(x=1) == Point(x=1, y=2) != Point(x=2)
    assert len({Point(x=1), Point(x=1, y=2), Point(x=2)}) == 2
    assert Point(x=1) != Named(x=1, name="")
    assert Point(x=1) != (1, 2)


def test_a_class_has_the_fields_of_its_parent_too() -> None:
    assert repr(Named(x=1, name="here")) == "Named(x=1, y=2, name='here')"


def test_a_default_that_all_would_share_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Shared.items: all would share this default; use \(\)"):

        class Shared(Struct):
            items: list[int] = []  # noqa: RUF012

"""Immutable values with named fields."""

import pytest

from andon.core.values.struct import Struct


class Point(Struct):
    x: int
    y: int = 2


class Named(Point):
    name: str


def test_a_field_that_is_not_given_has_its_default() -> None:
    assert (Point(x=1).x, Point(x=1).y) == (1, 2)
    assert Point.__struct_fields__ == ("x", "y")


def test_a_missing_or_unknown_field_is_named() -> None:
    with pytest.raises(TypeError, match="Point: missing x, unknown z"):
        Point(z=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Point: missing x$"):
        Point()  # type: ignore[call-arg]


def test_a_struct_is_immutable_and_can_be_copied_with_changes() -> None:
    point = Point(x=1)
    with pytest.raises(AttributeError, match=r"Point\.x cannot be changed"):
        point.x = 5  # type: ignore[misc]
    assert (point.but(x=5), point) == (Point(x=5, y=2), Point(x=1))
    with pytest.raises(TypeError, match="unknown z"):
        point.but(z=1)


def test_structs_are_equal_if_class_and_fields_are_equal() -> None:
    assert Point(x=1) == Point(x=1, y=2) != Point(x=2)
    assert len({Point(x=1), Point(x=1, y=2), Point(x=2)}) == 2
    assert Point(x=1) != Named(x=1, name="")
    assert Point(x=1) != (1, 2)


def test_a_class_has_the_fields_of_its_parent_too() -> None:
    assert repr(Named(x=1, name="here")) == "Named(x=1, y=2, name='here')"


def test_a_mutable_default_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Shared.items: all would share this default; use \(\)"):

        class Shared(Struct):
            items: list[int] = []  # noqa: RUF012

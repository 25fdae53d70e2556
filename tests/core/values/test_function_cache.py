"""What was found out about a function."""

import functools
import gc
import weakref
from typing import Any

import pytest

from andon.core.values.function_cache import remembered

asked: list[Any] = []


@remembered
def doc(function: Any) -> str | None:
    asked.append(function)
    return str(function.__doc__)


@pytest.fixture(autouse=True)
def nothing_was_asked() -> None:
    asked.clear()


def new() -> Any:
    captured = object()

    def function() -> object:
        """Mine."""
        return captured

    return function


class Object:
    def method(self) -> None:
        """A method."""


def test_it_is_asked_once_of_each_function() -> None:
    one, other = new(), new()
    assert {doc(one), doc(one), doc(other), doc(other)} == {"Mine."}
    assert asked == [one, other]


def test_nothing_lives_longer_for_it() -> None:
    gc.collect()
    gc.disable()
    try:
        function, thing = new(), Object()
        held = [weakref.ref(function), weakref.ref(thing)]
        objects: list[Any] = [function, functools.partial(function), thing, thing.method]
        for one in objects:
            assert doc(one)
        asked.clear()
        del function, thing, one, objects
        assert [ref() for ref in held] == [None, None]
    finally:
        gc.enable()


def test_what_wraps_a_function_is_asked_for_itself() -> None:
    inner = new()
    doc(inner)
    outer = functools.wraps(inner)(lambda: None)
    outer.__doc__ = "Another."
    assert (doc(outer), doc(inner)) == ("Another.", "Mine.")
    assert asked == [inner, outer]


def test_the_methods_of_many_objects_are_one() -> None:
    class Object:
        def method(self) -> None:
            """A method."""

    assert doc(Object().method) == doc(Object().method) == "A method."
    assert len(asked) == 1
    assert doc(Object.method) == "A method."  # which takes one argument more
    assert len(asked) == 2


def test_what_lasts_is_asked_once_and_other_objects_each_time() -> None:
    class Object:
        def __call__(self) -> None: ...

    thing, bound = Object(), list[int]().append
    objects: list[Any] = [len, Object, thing, bound]
    for one in objects:
        assert doc(one) == doc(one)
    assert asked == [len, Object, thing, thing, bound, bound]

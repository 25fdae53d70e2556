"""The cache of per-function metadata."""

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
def no_calls_yet() -> None:
    asked.clear()


def new_function() -> Any:
    captured = object()

    def function() -> object:
        """Mine."""
        return captured

    return function


class Object:
    def method(self) -> None:
        """A method."""


def test_the_metadata_of_a_function_is_computed_once() -> None:
    one, other = new_function(), new_function()
    assert {doc(one), doc(one), doc(other), doc(other)} == {"Mine."}
    assert asked == [one, other]


def test_the_cache_keeps_no_function_alive() -> None:
    gc.collect()
    gc.disable()
    try:
        function, thing = new_function(), Object()
        held = [weakref.ref(function), weakref.ref(thing)]
        objects: list[Any] = [function, functools.partial(function), thing, thing.method]
        for one in objects:
            assert doc(one)
        asked.clear()
        del function, thing, one, objects
        assert [ref() for ref in held] == [None, None]
    finally:
        gc.enable()


def test_a_wrapper_has_metadata_of_its_own() -> None:
    inner = new_function()
    doc(inner)
    outer = functools.wraps(inner)(lambda: None)
    outer.__doc__ = "Another."
    assert (doc(outer), doc(inner)) == ("Another.", "Mine.")
    assert asked == [inner, outer]


def test_the_methods_of_many_objects_share_one_entry() -> None:
    class Object:
        def method(self) -> None:
            """A method."""

    assert doc(Object().method) == doc(Object().method) == "A method."
    assert len(asked) == 1
    assert doc(Object.method) == "A method."  # which takes one argument more
    assert len(asked) == 2


def test_functions_and_classes_are_cached_and_other_callables_are_not() -> None:
    class Object:
        def __call__(self) -> None: ...

    thing, bound = Object(), list[int]().append
    objects: list[Any] = [len, Object, thing, bound]
    for one in objects:
        assert doc(one) == doc(one)
    assert asked == [len, Object, thing, thing, bound, bound]

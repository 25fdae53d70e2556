"""Errors form one tree, say what to do, and can be caught by their kind."""

import inspect
import json
import re
from typing import Any

import pytest

from andon import errors
from andon.errors import (
    AndonError,
    Conflict,
    DidNotHappen,
    Fenced,
    IllegalTransition,
    Refused,
    StepFailed,
    Stopped,
    StoreUnavailable,
    family,
    step_failed,
)

CLASSES = [
    found
    for _, found in inspect.getmembers(errors, inspect.isclass)
    if issubclass(found, BaseException) and found.__module__ == errors.__name__
]


NODE = re.compile(r" {4}(?P<lead>[ │├└─]*)(?P<name>[A-Z]\w+)(?: \((?P<base>\w+)\))?")


def tree_of_the_docstring() -> dict[str, str]:
    """Each class of the tree with its parent, read from its indentation."""
    assert errors.__doc__ is not None
    parents: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in errors.__doc__.splitlines():
        node = NODE.match(line)
        if node is None:
            continue
        depth = len(node["lead"])
        above = [(other, name) for other, name in above if other < depth]
        parents[node["name"]] = node["base"] or (above[-1][1] if above else "Exception")
        above.append((depth, node["name"]))
    return parents


def test_the_docstring_shows_every_error_below_its_parent() -> None:
    parents = {kind.__name__: kind.__bases__[0].__name__ for kind in CLASSES}
    assert tree_of_the_docstring() == parents


@pytest.mark.parametrize("kind", CLASSES)
def test_the_docstring_of_every_error_says_what_happened(kind: type[BaseException]) -> None:
    assert kind.__doc__
    assert kind.__doc__.endswith(".")


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind.__init__ is AndonError.__init__])
def test_an_error_without_a_message_shows_its_docstring(kind: type[AndonError]) -> None:
    assert str(kind()) == kind.__doc__
    assert str(kind("what was found")) == "what was found"


def test_a_fenced_error_says_that_nothing_was_written() -> None:
    error = Fenced("r-1", "2.7")
    assert str(error) == (
        "run r-1: this worker is no longer the owner (held: 2.7); nothing was written. "
        "Another worker has claimed the run, or its lease has ended."
    )
    assert (error.run_id, error.fence) == ("r-1", "2.7")
    assert "held" not in str(Fenced("r-1"))


def test_an_illegal_transition_names_run_state_and_event() -> None:
    error = IllegalTransition("r-1", "succeeded", "cancel")
    assert str(error) == "run r-1: cannot cancel while succeeded"
    assert (error.run_id, error.state, error.event) == ("r-1", "succeeded", "cancel")


def test_refusals_share_one_base_class() -> None:
    for refusal in (Fenced("r-1"), IllegalTransition("r-1", "a", "b"), Conflict()):
        assert isinstance(refusal, Refused)
    assert not isinstance(StoreUnavailable(), Refused)


def test_a_stop_passes_every_except_exception() -> None:
    stop = Stopped("paused")
    assert not isinstance(stop, Exception)
    assert (str(stop), stop.reason) == ("paused", "paused")


# ── a step's own error ────────────────────────────────────────────────────────────────────────────


class TooPoor(ValueError):
    pass


class Nothing(Exception):
    pass


RAISED: list[tuple[Exception, tuple[type[Exception], ...]]] = [
    (ValueError("bad"), (ValueError,)),
    (TooPoor("bad"), (ValueError,)),
    (UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), (ValueError,)),
    (KeyError("bad"), (KeyError, LookupError)),
    (IndexError("bad"), (IndexError, LookupError)),
    (LookupError("bad"), (LookupError,)),
    (OSError("bad"), (OSError,)),
    (OSError(28, "bad"), (OSError,)),
    (FileNotFoundError(2, "bad", "/etc/x"), (FileNotFoundError, OSError)),
    (PermissionError("bad"), (PermissionError, OSError)),
    (ConnectionResetError("bad"), (ConnectionError, OSError)),
    (TimeoutError("bad"), (TimeoutError, OSError)),
    (ZeroDivisionError("bad"), (ZeroDivisionError, ArithmeticError)),
    (OverflowError("bad"), (ArithmeticError,)),
    (AssertionError("bad"), (AssertionError,)),
    (AttributeError("bad"), (AttributeError,)),
    (NotImplementedError("bad"), (NotImplementedError, RuntimeError)),
    (RecursionError("bad"), (RuntimeError,)),
    (TypeError("bad"), (TypeError,)),
    (Nothing("bad"), ()),
    (DidNotHappen("bad"), ()),
]
every_error = pytest.mark.parametrize(
    ("raised", "families"), RAISED, ids=lambda given: type(given).__name__
)


def described(error: Exception) -> dict[str, Any]:
    return {"type": type(error).__name__, "message": str(error), "family": family(error)}


@every_error
def test_a_failed_step_is_caught_by_its_original_class_live_and_replayed(
    raised: Exception, families: tuple[type[Exception], ...]
) -> None:
    live = described(raised)
    replayed = json.loads(json.dumps(live))
    for error in (step_failed("charge", live, ":3"), step_failed("charge", replayed, ":3")):
        assert isinstance(error, StepFailed)
        for kind in families:
            assert isinstance(error, kind)
        assert str(error) == f"charge: {type(raised).__name__}: {raised}"
        assert (error.name, error.error) == ("charge", type(raised).__name__)
        assert (error.message, error.place) == (str(raised), ":3")


@every_error
def test_a_failed_step_belongs_to_no_other_family(
    raised: Exception, families: tuple[type[Exception], ...]
) -> None:
    error = step_failed("charge", described(raised), "")
    assert {kind for kind in errors._FAMILIES if isinstance(error, kind)} == set(families)


@every_error
def test_a_failed_step_has_the_same_class_whenever_it_is_raised(
    raised: Exception, families: tuple[type[Exception], ...]
) -> None:
    first, second = (step_failed("charge", described(raised), "") for _ in range(2))
    assert type(first) is type(second)
    assert type(first).__name__ == "StepFailed"
    assert type(first).__doc__ == StepFailed.__doc__


def test_the_nearest_family_comes_first() -> None:
    for n, kind in enumerate(errors._FAMILIES):
        assert not [later for later in errors._FAMILIES[n + 1 :] if issubclass(later, kind)]


def test_a_class_name_from_the_journal_is_never_looked_up() -> None:
    error = step_failed("charge", {"family": "SystemExit", "type": "SystemExit"}, "")
    assert isinstance(error, StepFailed)
    assert not isinstance(error, SystemExit)


def test_an_error_that_was_stored_without_a_message_still_names_its_step() -> None:
    assert str(step_failed("charge", {}, "")) == "charge: : "

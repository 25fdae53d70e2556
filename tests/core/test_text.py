"""Text for people: visible, short, and without anything that acts on a terminal."""

import pytest

from andon.core import text


@pytest.mark.parametrize(
    ("given", "limit", "shown"),
    [
        ("plain", None, "plain"),
        ("a\tb\x1b[2J", None, "a b\\x1b[2J"),
        ("x\u200dy\u202e", None, "x\u200dy\\u202e"),
        ("long enough", 8, "long ..."),
        (7, None, "7"),
    ],
)
def test_a_line_is_made_visible_and_cut(given: object, limit: int | None, shown: str) -> None:
    assert text.clean(given, limit) == shown


def test_lines_are_indented_so_that_none_passes_for_another() -> None:
    assert text.clean_lines("one\ntwo\x07\n", "  ") == "one\n  two\\x07"


def test_a_value_is_shown_as_json_and_cut() -> None:
    assert text.brief({"ü": 1}) == '{"ü": 1}'
    assert text.brief("x" * 50, 10) == '"xxxxxx...'


def test_counts_and_names_are_words() -> None:
    assert (text.plural(1, "run"), text.plural(2_000, "run")) == ("1 run", "2,000 runs")
    assert text.either(["a"]) == "'a'"
    assert text.either(["a", "b", "c"]) == "'a', 'b' or 'c'"


@pytest.mark.parametrize(
    ("seconds", "age", "length"),
    [
        (-1, "0 s", "0 ms"),
        (0.25, "0 s", "250 ms"),
        (7.25, "7 s", "7.2 s"),
        (60, "60 s", "60 s"),
        (121, "2 m", "2 min 1 s"),
        (7_260, "2 h", "2 h 1 min"),
        (200_000, "2 d", "55 h 33 min"),
    ],
)
def test_a_duration_is_rough_or_exact(seconds: float, age: str, length: str) -> None:
    assert (text.age(seconds), text.length(seconds)) == (age, length)


def test_a_command_can_be_copied_whatever_its_names_are() -> None:
    assert text.command("show", "a b", options=("--json",)) == "andon show 'a b' --json"
    assert text.command("show", "-r", options=("--json",)) == "andon show --json -- -r"


def test_an_error_is_one_line_and_a_stop_shows_no_class_name() -> None:
    assert text.failure({"type": "ValueError", "message": "bad"}) == "ValueError: bad"
    assert text.failure({"type": "Held", "message": "paused by ana"}) == "paused by ana"
    assert text.failure({"type": "Killed", "message": "killed by ana"}) == "killed by ana"
    assert text.failure({}) == "error: "


def test_a_sentence_ends_with_a_full_stop() -> None:
    assert (text.sentence("It is away"), text.sentence("Why?")) == ("It is away.", "Why?")

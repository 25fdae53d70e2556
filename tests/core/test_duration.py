"""Durations are written in one format everywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from andon.core.duration import MOST_SECONDS, UNITS, seconds


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10", 10.0),
        ("0", 0.0),
        ("0.5", 0.5),
        ("10s", 10.0),
        ("5m", 300.0),
        ("1.5h", 5400.0),
        ("1d", 86_400.0),
        ("", None),
        ("s", None),
        ("-1", None),
        ("-1s", None),
        ("nan", None),
        ("inf", None),
        ("1e30d", None),
        ("5ms", None),
        ("soon", None),
        ("1h30m", None),
    ],
)
def test_a_duration_is_parsed_into_seconds(text: str, found: float | None) -> None:
    assert seconds(text) == found


@given(st.text())
def test_any_text_is_a_finite_duration_or_none(text: str) -> None:
    found = seconds(text)
    assert found is None or 0 <= found <= MOST_SECONDS


@given(st.integers(0, 10_000), st.sampled_from(sorted(UNITS)))
def test_a_unit_multiplies_its_number(count: int, unit: str) -> None:
    assert seconds(f"{count}{unit}") == count * UNITS[unit]

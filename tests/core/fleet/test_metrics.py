"""Metrics stay parseable whatever a name or label contains."""

import re
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from andon.core.fleet.metrics import Family, one, render


def test_a_metric_family_has_help_type_and_samples() -> None:
    depth = Family("depth", "gauge", "How deep.", (({"queue": "a"}, 3.0), ({"queue": "b"}, 0.25)))
    assert render([depth, one("x_total", "counter", "All.", 7)]) == (
        "# HELP depth How deep.\n"
        "# TYPE depth gauge\n"
        'depth{queue="a"} 3\n'
        'depth{queue="b"} 0.25\n'
        "# HELP x_total All.\n"
        "# TYPE x_total counter\n"
        "x_total 7\n"
    )


@given(st.text())
def test_no_label_value_breaks_out_of_its_line(text: str) -> None:
    line = render([Family("n", "gauge", text, (({"q": text, "r": "x"}, 1.0),))]).rstrip("\n")
    help_line, _, sample = line.split("\n")
    assert help_line.removeprefix("# HELP n ").replace("\\\\", "").count("\n") == 0
    found = re.fullmatch(r'n\{q="((?:[^"\\\n]|\\["\\n])*)",r="x"\} 1', sample)
    assert found is not None
    read = re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], found[1])
    assert read == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(nan, "NaN"), (inf, "+Inf"), (-inf, "-Inf"), (True, "1"), (1e300, str(int(1e300)))],
)
def test_numbers_are_written_as_prometheus_writes_them(value: float, text: str) -> None:
    assert render([one("n", "gauge", "", value)]).splitlines()[-1] == f"n {text}"

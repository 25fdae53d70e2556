"""The exhaustive model, as a layer."""

from verify import model
from verify.layer import Effort


def test_no_interleaving_ends_in_an_accident_and_each_rule_is_needed() -> None:
    said: list[str] = []
    found = model.check(Effort("ci", 0.1), said.append)
    assert not found.violations
    assert not found.guards
    assert found.runs > 40_000
    [double] = [line for line in said if line.startswith("without the takeover rule:")]
    assert "A freezes" in double
    assert double.index("B probes: did_not_happen") < double.index("A acts") < len(double)

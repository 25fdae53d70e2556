"""The two databases, side by side."""

from verify import twins
from verify.layer import Effort


def test_both_databases_answer_and_store_the_same(postgres_url: str) -> None:
    found = twins.compare(postgres_url, Effort("ci", 0.1), print)
    assert not found.violations
    assert not found.guards

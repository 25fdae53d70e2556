"""Every layer of faults is green for the product, in small, and red for a product with a bug."""

from pathlib import Path

from tests.verify.planted import red


def test_lost_power_is_noticed_where_nothing_waits_for_the_disk(tmp_path: Path) -> None:
    said = red(tmp_path, "power", "store/sqlite.py", "synchronous = FULL", "synchronous = OFF")
    assert "was acknowledged and is lost" in said

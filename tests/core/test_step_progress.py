"""How far a step is, as it is stored and as it is told."""

import json

import pytest

from andon.core.step_progress import progress_of, told
from andon.errors import BadInput


def test_what_is_stored_is_told() -> None:
    found = [json.loads(progress_of("batch", 1010, 3000)), json.loads(progress_of("rest", 3, None))]
    assert told(found) == "batch 1010/3000, rest 3"
    assert told([]) == ""


@pytest.mark.parametrize(("done", "total"), [(-1, 5), (1, -5), (True, 5), ("1", 5), (1, 2.5)])
def test_what_is_no_number_of_items_is_refused(done: int, total: int) -> None:
    with pytest.raises(BadInput, match="a number of items"):
        progress_of("batch", done, total)

"""The progress of a step, as it is stored and as it is shown."""

import json

import pytest

from andon.core.values.step_progress import progress_of, progress_text
from andon.errors import BadInput


def test_stored_progress_is_shown_as_a_line() -> None:
    found = [json.loads(progress_of("batch", 1010, 3000)), json.loads(progress_of("rest", 3, None))]
    assert progress_text(found) == "batch 1010/3000, rest 3"
    assert progress_text([]) == ""


@pytest.mark.parametrize(("done", "total"), [(-1, 5), (1, -5), (True, 5), ("1", 5), (1, 2.5)])
def test_an_invalid_number_of_items_is_refused(done: int, total: int) -> None:
    with pytest.raises(BadInput, match="a number of items"):
        progress_of("batch", done, total)

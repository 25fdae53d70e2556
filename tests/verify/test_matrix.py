"""The kill matrix, scaled down: green for the product, and red for a product with a bug."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.verify.planted import found

from verify import cells, matrix, matrix_page
from verify.cells import Cell, Found
from verify.drivers.shop import MOMENTS
from verify.matrix import Ground

# The repair is missing in a copy of the product.
FILE = "transcript/__init__.py"
RIGHT = "    if not before:\n        return Repaired(messages)\n"
PLANTED = """
from verify import matrix
from verify.cells import Cell
with matrix.ground(postgres=False) as ground:
    cell = Cell("loop", True, "after intent", "second of two", "message", "chat", "sqlite")
    print(*ground.play(cell).wrong, sep="\\n")
"""


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    with matrix.ground() as found:
        yield found


def some(driver: str, store: str, moments: tuple[str, ...]) -> list[Cell]:
    """Every moment, both kinds of tools, both ways to continue; one format after the other."""
    places = [
        (moment, tools, then) for moment in moments for tools in cells.TOOLS for then in cells.THEN
    ]
    forms = matrix.drivers([driver])[driver].FORMS
    return [
        Cell(driver, True, *place, forms[number % len(forms)], store)
        for number, place in enumerate(places)
    ]


def test_a_loop_that_is_killed_at_every_moment(ground: Ground) -> None:
    wanted = some("loop", "sqlite", MOMENTS) + some("loop", "postgres", ("after effect",))
    outcome = list(ground.played(wanted))
    assert not [wrong for one in outcome for wrong in one.wrong]
    asked = {one.cell.moment for one in outcome if one.asked}
    assert asked == {"after intent", "after effect"}


@pytest.mark.parametrize("driver", ["langgraph", "openai_agents", "pydantic_ai"])
def test_a_framework_that_is_killed(ground: Ground, driver: str) -> None:
    """Two moments that only its adapter handles; `make matrix` has the others."""
    places = [("after effect", "parallel", "resume"), ("before intent", "first of two", "message")]
    for place in places:
        assert not ground.play(Cell(driver, True, *place, "chat", "sqlite")).wrong


def test_failures_without_andon_are_counted(ground: Ground) -> None:
    twice = Cell("loop", False, "after effect", "parallel", "resume", "chat", "file")
    refused = Cell(
        "loop_by_message", False, "after effect", "first of two", "message", "chat", "file"
    )
    first, second = ground.played([twice, refused])
    assert first.wrong == [f"{twice}: 2 effects happened twice"]
    assert f"{refused}: 1 requests were answered with 400" in second.wrong


def test_a_conversation_that_is_not_repaired_is_found(tmp_path: Path) -> None:
    said = found(tmp_path, PLANTED, FILE, RIGHT, "    return Repaired(messages)\n")
    assert "1 requests were answered with 400" in said


def test_a_process_that_was_not_killed_proves_nothing(ground: Ground) -> None:
    cell = Cell("loop", True, "at no moment", "first of two", "resume", "chat", "sqlite")
    assert "it was not killed" in ground.play(cell).broken


def test_the_page_counts_every_outcome() -> None:
    cell = Cell("loop", False, "after effect", "first of two", "resume", "chat", "file")
    whole = Cell("loop", True, "after effect", "first of two", "resume", "chat", "sqlite")
    outcome = [Found(cell, doubled=2, refused=1, answer="none"), Found(whole, asked=1)]
    page = matrix_page.page(outcome, matrix.drivers(["loop"]), "abc", 60)
    assert "| The loop without a framework | 1 | 2 | 0 | 1 | 1 | 0 |" in page
    assert "| **The loop without a framework, with andon** | 1 | 0 | 1 | 0 | 0 | all |" in page
    assert "0 of 1 well: 2 doubled, 1 400, 1 wrong | 1 of 1 well: 1 in doubt |" in page

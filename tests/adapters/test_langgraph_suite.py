"""LangGraph's own conformance suite, all of it, on both databases."""

import asyncio
from collections.abc import AsyncIterator

from langgraph.checkpoint.conformance import checkpointer_test, validate

from andon.adapters.langgraph import AndonSaver

# The suite skips capabilities it does not detect, and still reports FULL: so the numbers count.
PASSED = {
    "put": 17,
    "put_writes": 10,
    "get_tuple": 10,
    "list": 16,
    "delete_thread": 5,
    "delete_for_runs": 7,
    "copy_thread": 8,
    "prune": 8,
}


def test_the_whole_public_conformance_suite_passes(store_url: str) -> None:
    @checkpointer_test(name="AndonSaver")
    async def saver() -> AsyncIterator[AndonSaver]:
        with AndonSaver(store_url) as opened:
            yield opened

    found = asyncio.run(validate(saver)).to_dict()["results"]
    assert {name: one["failures"] for name, one in found.items() if one["failures"]} == {}
    assert {name: one["tests_passed"] for name, one in found.items()} == PASSED
    assert sum(PASSED.values()) == 81

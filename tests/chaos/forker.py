"""Forks worker processes of the chaos tests on request: the import, 0.4 s, is done only once."""

import sys
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.chaos import agents, worker

import andon.runtime.requests.requests
import andon.store.postgres.store
import andon.store.sqlite.store
from andon.testing import fork_server

LOADED = (
    andon.runtime.requests.requests,
    andon.store.postgres.store,
    andon.store.sqlite.store,
    agents,
)


def become(order: bytes) -> None:
    worker.obey(msgspec.json.decode(order, type=worker.Order))


if __name__ == "__main__":
    fork_server.serve(become)

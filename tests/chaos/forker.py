"""Forks worker processes of the chaos tests on request: importing costs 0.4 s, and is done once."""

import sys
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.chaos import agents, worker

import andon.runtime.requests
import andon.store.postgres
import andon.store.sqlite
from andon.testing import forking

LOADED = (andon.runtime.requests, andon.store.postgres, andon.store.sqlite, agents)


def become(order: bytes) -> None:
    worker.obey(msgspec.json.decode(order, type=worker.Order))


if __name__ == "__main__":
    forking.serve(become)

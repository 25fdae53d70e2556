"""The measured systems: andon, its peers, and the limit of the databases themselves."""

import sys
from pathlib import Path
from typing import NamedTuple

from bench.peers import environments
from bench.peers.side import Side

SPEED = Path(__file__).parent / "speed"
PEERS = Path(__file__).parent / "peers"


class System(NamedTuple):
    key: str
    label: str
    store: str = "own"
    environment: str = ""  # its folder in .venv-peers; without one, andon's own
    lesser: str = ""  # why it is shown and not counted as a peer: it promises less

    @property
    def product(self) -> str:
        return self.key.partition("-")[0]

    @property
    def peer(self) -> bool:
        return bool(self.environment)

    @property
    def limit(self) -> str:
        """The raw loop it is compared with: on the same database, else on the same disk."""
        return "raw-postgres" if self.store == "postgres" else "raw-sqlite"

    def open(self, folder: Path, postgres: str) -> Side:
        """Its driver, in its own environment; installs that on first use."""
        python = environments.python(self.environment) if self.peer else sys.executable
        environ = {
            **environments.servers(self.environment),
            "BENCH_POSTGRES": postgres,
            "PYTHONPATH": f"{SPEED}:{PEERS}",
        }
        program = SPEED / f"with_{self.product}.py"
        return Side([python, program, folder, self.store], folder, environ)


SYSTEMS = (
    System("raw-sqlite", "raw SQLite", "sqlite"),
    System("raw-postgres", "raw PostgreSQL", "postgres"),
    System("andon-sqlite", "andon on SQLite", "sqlite"),
    System("andon-postgres", "andon on PostgreSQL", "postgres"),
    System("dbos-sqlite", "DBOS on SQLite", "sqlite", "dbos"),
    System("dbos-postgres", "DBOS on PostgreSQL", "postgres", "dbos"),
    System("langgraph-sqlite", "LangGraph on SQLite", "sqlite", "langgraph"),
    System("langgraph-postgres", "LangGraph on PostgreSQL", "postgres", "langgraph"),
    System("absurd", "absurd on PostgreSQL", "postgres", "absurd"),
    System("restate", "Restate", environment="restate"),
    System("temporal", "Temporal", environment="temporal"),
    System(
        "temporal-local",
        "Temporal, local activities",
        "local",
        "temporal",
        "finished steps become durable together and not one by one: not counted as best peer",
    ),
    System("celery", "Celery on Redis", environment="celery"),
)
BY_KEY = {one.key: one for one in SYSTEMS}


def chosen_systems(text: str) -> list[System]:
    """The named ones, by system or by product, and always the limits; all if none is named."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [w for w in words if not any(w in (one.key, one.product) for one in SYSTEMS)]
    if unknown:
        known = ", ".join(dict.fromkeys(one.product for one in SYSTEMS))
        raise ValueError(f"--systems: expected some of {known}; found {', '.join(unknown)}")
    wanted = {*words, "raw"} if words else {one.product for one in SYSTEMS}
    return [one for one in SYSTEMS if {one.key, one.product} & wanted]

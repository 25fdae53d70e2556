"""The cost of a LangGraph conversation: andon's saver and the official ones, on the same databases.

    python bench/savers.py [--messages 100 200 400] [--rounds 3]

Each step adds one message of 1 KB and is saved durably (`durability="sync"`). The savers take
turns; the median round counts. Absolute numbers are this machine's: compare the two rows.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.pop(0)  # this folder, in which `bench` would be bench.py
sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.peers import environments

from andon.testing.postgres import Cluster

CHECKPOINTER = Path(__file__).parent / "peers" / "checkpointer.py"


def measured(name: str, url: str, messages: int) -> dict[str, float]:
    python = sys.executable if name == "andon" else str(environments.python("langgraph"))
    line = [python, str(CHECKPOINTER), name, url, str(messages)]
    done = subprocess.run(line, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, nargs="+", default=[100, 200, 400])
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    print("| store | messages of 1 KB | saver | MB | ms per step |\n|---|---|---|---|---|")
    with Cluster() as cluster, tempfile.TemporaryDirectory() as folder:
        for store in ("sqlite", "postgresql"):
            for messages in asked.messages:
                found: dict[str, list[dict[str, float]]] = {"andon": [], "official": []}
                for turn in range(asked.rounds):
                    for name, rounds in found.items():
                        file = f"sqlite:///{folder}/{name}-{messages}-{turn}.db"
                        url = file if store == "sqlite" else cluster.fresh_database()
                        rounds.append(measured(name, url, messages))
                for name, rounds in found.items():
                    ms = statistics.median(one["ms"] for one in rounds)
                    size = statistics.median(one["bytes"] for one in rounds) / 1e6
                    print(f"| {store} | {messages} | {name} | {size:.1f} | {ms:.1f} |", flush=True)


if __name__ == "__main__":
    main()

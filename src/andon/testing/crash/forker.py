"""Forks the workers of a crash test, in a process of its own (`command`).

Importing andon and the user's agent takes a second and happens once. Agents whose import starts
threads are imported in each child instead: a process that forks must have none.
"""

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

import andon.runtime.requests.requests
import andon.store.sqlite.store
from andon.cli import loader
from andon.errors import AndonError, BadInput
from andon.runtime.agent import Agent
from andon.testing.crash import worker
from andon.testing.fork_server import say, serve

LOADED = (andon.runtime.requests.requests, andon.store.sqlite.store)
LATE = "late"  # import the agent in each child
# Import all of andon before the user's files can be found: a queue.py shadows Python's.
_START = """
import sys
sys.path.append(sys.argv[1])
from andon.testing.crash.forker import main
main()
"""


def command(source: str, agent: str, path: Sequence[str], *more: str) -> list[str]:
    """Return the forker's command line, for an agent of a file or module and its import path."""
    home = str(Path(andon.__file__).parent.parent)
    words = [home, source, agent, json.dumps(list(path))]
    return [sys.executable, "-P", "-c", _START, *words, *more]


def load(source: str, name: str, path: str) -> list[Agent]:
    """Load all agents of the file: the agent under test may start runs of the others."""
    sys.path[:] = json.loads(path)
    agents = loader.load(source)
    if all(agent.name != name for agent in agents):
        known = ", ".join(sorted(agent.name for agent in agents))
        raise BadInput(f"{source}: expected agent {name!r} at its top level; it has: {known}")
    return agents


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that runs the test handles it
    answers = os.dup(1)
    os.dup2(2, 1)  # output of the import must not mix with answers
    error, agents = "", None
    try:
        agents = None if LATE in sys.argv[5:] else load(*sys.argv[2:5])
    except AndonError as found:
        error = str(found)
    os.dup2(answers, 1)
    if error:
        say(error=error)
        return
    if agents is not None and len(os.listdir("/proc/self/task")) > 1:
        again = command(*sys.argv[2:4], json.loads(sys.argv[4]), LATE)
        os.execv(sys.executable, again)  # noqa: S606
    say(ready=True)

    def become(line: bytes) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        order = msgspec.json.decode(line, type=worker.WorkerOrder)
        os.environ["ANDON_STORE"] = order.url  # for user code that opens the store itself
        worker.obey(order, load(*sys.argv[2:5]) if agents is None else agents)

    serve(become, sweeps=True)

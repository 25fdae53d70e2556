"""How soon a stop really ends the step in flight: andon and its peers, side by side.

    make stops                       (or: python bench/stops.py [--only NAME] [--rounds N])

In each system the same step stamps the clock into a shared page each 5 ms (bench/peers/stamps.py).
The stop is asked for in the system's documented best way (bench/peers/on_*.py say which, and where
it is documented) from a warm client; this script watches the page from outside for 10 s, and notes
what the system says meanwhile. Steps: async, stubborn async, sync, and sync blocked in one C call.

Results are kept in bench/results/stops.json; the table and docs/comparison-stops.md are made of it,
so `--only NAME` measures one system again and leaves the others.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

sys.path.pop(0)  # this folder, in which `bench` would be bench.py
sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.peers import environments, report, stamps
from bench.peers.side import Cannot, Side

from andon.testing.postgres import Cluster
from bench import machine

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results" / "stops.json"
PAGE = ROOT / "docs" / "comparison-stops.md"
# A step that stamps each 5 ms and was silent this long is stopped, whatever its process does.
SILENT_SECONDS = 2.0
AGAIN_SECONDS = 0.7
BEGIN_SECONDS = 30


class System(NamedTuple):
    name: str
    ways: dict[str, str]  # the driver's word for it, and the call, as people know it

    @property
    def key(self) -> str:
        return self.name.lower()


SYSTEMS = (
    System(
        "andon",
        {
            "cancel": "cancel within 1 s; sync steps in processes",
            "kill": "kill; sync steps in processes",
            "threads": "kill; sync steps in threads",
            "shell": "`andon kill RUN` in a shell, its start included",
        },
    ),
    System("DBOS", {"cancel": "`cancel_workflow`, async step preemptible"}),
    System(
        "Temporal",
        {
            "tuned": "`handle.cancel()`, heartbeats each 0.1 s, waits for the activity",
            "sample": "`handle.cancel()` as in its sample (heartbeat timeout 2 s)",
            "terminate": "`handle.terminate()`, heartbeats each 0.1 s",
        },
    ),
    System("Restate", {"cancel": "`invocations cancel`", "kill": "`invocations kill`"}),
    System(
        "Celery",
        {
            "SIGTERM": "`revoke(terminate=True)`, prefork",
            "SIGKILL": '`revoke(terminate=True, signal="SIGKILL")`, prefork',
        },
    ),
    System("absurd", {"cancel": "`cancel_task`"}),
    System("LangGraph", {"cancel": "`task.cancel()` of `graph.ainvoke`"}),
)


def side(system: System, way: str, folder: Path, environ: dict[str, str]) -> Side:
    own = system.key == "andon"
    program = ROOT / "bench" / "peers" / f"on_{system.key}.py"
    python = sys.executable if own else environments.python(system.key)
    told = {**environ, **environments.servers(system.key)}
    return Side([python, program, folder, way], folder, told)


def measure(
    system: System, way: str, kind: str, rounds: int, environ: dict[str, str]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Rounds in one environment, until a step does not end: it is killed with its whole group."""
    done: list[dict[str, Any]] = []
    versions: dict[str, str] = {}
    while len(done) < rounds:
        with tempfile.TemporaryDirectory(prefix="stops-", ignore_cleanup_errors=True) as place:
            folder = Path(place)
            with side(system, way, folder, environ) as opened:
                versions = opened.versions
                while len(done) < rounds:
                    page = folder / f"stamps-{len(done)}"
                    done.append(one_round(opened, kind, page))
                    _tell(system, way, kind, done[-1])
                    if done[-1]["ended"] is None:
                        break
    return done, versions


def one_round(side: Side, kind: str, path: Path) -> dict[str, Any]:
    page = stamps.new(path)
    side.ask(start=kind, stamps=str(path))
    side.answer()
    end = time.monotonic() + BEGIN_SECONDS
    while not (seen := page.read()).begun:
        if time.monotonic() > end:
            raise Cannot(f"the step did not begin in {BEGIN_SECONDS} s")
        time.sleep(0.01)
    # At a varying phase of the rhythm at which the system polls.
    time.sleep(0.5 + 2 * random.random())
    born = _born(seen)
    side.ask(stop=True)
    ended, evidence = _watch(page, kind, born)
    asked = side.answer()
    said = side.answer()
    return {
        "ended": None if ended is None else max(0.0, ended - asked["asked"]),
        "evidence": evidence,
        "returned": asked["returned"] - asked["asked"],
        "said": said["said"],
        "said_after": said["at"] - asked["asked"] if said["over"] else None,
        "began_again": ended is not None and _begins_again(page, seen.begun),
    }


def _watch(page: stamps.StampPage, kind: str, born: str) -> tuple[float | None, str]:
    """The moment at which the step ended, and the evidence."""
    deadline = time.monotonic() + report.WATCHED_SECONDS
    while (now := time.monotonic()) < deadline:
        seen = page.read()
        if seen.left:
            return seen.left, "left"
        if _born(seen) != born and seen.begun == page.read().begun:
            return (now if kind == "blocked" else seen.stamped), "its thread is gone"
        if kind != "blocked" and now - seen.stamped > SILENT_SECONDS:
            return seen.stamped, "silent"
        time.sleep(0.002)
    return None, "goes on"


def _born(seen: stamps.Seen) -> str:
    """The start time of the stamping thread; empty once it is gone."""
    try:
        stat = Path(f"/proc/{seen.pid}/task/{seen.thread}/stat").read_text("utf-8", "replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def _begins_again(page: stamps.StampPage, begun: int) -> bool:
    time.sleep(AGAIN_SECONDS)
    return page.read().begun > begun


def _tell(system: System, way: str, kind: str, one: dict[str, Any]) -> None:
    words = {name: round(v, 4) if isinstance(v, float) else v for name, v in one.items()}
    print(f"{system.name} {way} {kind}: {words}", file=sys.stderr, flush=True)


def measured(system: System, rounds: int, environ: dict[str, str]) -> dict[str, Any]:
    rows, reason = list[dict[str, Any]](), ""
    versions: dict[str, str] = {}
    load = machine.load()
    try:
        for way, calls in system.ways.items():
            kinds: dict[str, Any] = {}
            for kind in stamps.KINDS:
                kinds[kind], versions = measure(system, way, kind, rounds, environ)
            rows.append({"way": way, "calls": calls, "kinds": kinds})
    except (Cannot, environments.Missing) as error:
        reason = str(error)
        print(f"{system.name}: not measured: {reason}", file=sys.stderr)
    return {
        "name": system.name,
        "rows": rows,
        "versions": versions,
        "cannot": reason,
        "on": machine.today(),
        "load": load,
        "rounds": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", choices=[one.key for one in SYSTEMS])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--print", action="store_true", help="only print what was measured before")
    options = parser.parse_args()
    if sys.platform != "linux":
        sys.exit("the end of a blocked thread is seen in /proc: this needs Linux")
    results = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    chosen = [one for one in SYSTEMS if not options.only or one.key in options.only]
    with ExitStack() as stack:
        if not options.print:
            cluster = stack.enter_context(Cluster())
        for system in () if options.print else chosen:
            environ = {"STOPS_POSTGRES": cluster.fresh_database()}
            results[system.key] = measured(system, options.rounds, environ)
            results["machine"] = machine.facts()
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps(results, indent=1), "utf-8")
    found = [results[one.key] for one in SYSTEMS if one.key in results]
    print(report.table(found))
    PAGE.write_text(report.page(found, results["machine"]), "utf-8")


if __name__ == "__main__":
    main()

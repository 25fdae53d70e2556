"""Every parser is fed malformed and malicious input, by seed, so that it can be replayed.

Legal: accepted, and the same when it is written down and read again; refused with an error of
andon's own; or read as a pulled latch. Never a traceback, a slow answer, or unlimited memory. At
the end, messages that andon could not have written are put into a real store, and a real worker has
to survive them.
"""

import os
import random
import resource
import time
from collections import Counter
from pathlib import Path

from tests.chaos import agents
from tests.chaos.fleet import until

from andon.store.store import Deliver
from verify import harness
from verify.layer import Effort, Outcome, Say
from verify.mutation import TOKENS, mutated
from verify.parsers import REFUSALS, Parser, every, probes

INPUTS = 4000  # at scale 1, for each parser of weight 1
MESSAGES = 12
SLOW_SECONDS = 5.0
MOST_MEMORY_KB = 600_000  # more than before


@harness.layer("fuzz")
def check(effort: Effort, say: Say, outcome: Outcome) -> None:
    fed: Counter[str] = Counter()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    chosen = os.environ.get("ANDON_STORE")
    with harness.scratch("fuzz") as folder, probes() as feed:
        parsers = every(folder)
        parsers.append(Parser("probes", [b"GET /livez HTTP/1.1\r\nHost: x"], feed, 0.05))
        for parser in parsers:
            accepted = play(parser, effort, outcome, fed)
            say(f"{parser.name}: {fed[parser.name]} inputs, {accepted} accepted")
            if not accepted:
                outcome.guards.append(f"{parser.name}: none of its inputs was accepted")
        messages(folder / "messages", effort, outcome, fed)
    os.environ.pop("ANDON_STORE", None)
    if chosen is not None:
        os.environ["ANDON_STORE"] = chosen
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    if grown > MOST_MEMORY_KB:
        outcome.violations.append(f"memory grew by {grown // 1024} MB")
    outcome.runs = fed.total()
    harness.count(outcome, fed, fed)


def play(parser: Parser, effort: Effort, outcome: Outcome, fed: Counter[str]) -> int:
    """Feeds it good inputs and mutations of them; returns how many it accepted."""
    chance = random.Random(f"{effort.seed} {parser.name}")
    accepted = 0
    inputs = [*parser.seeds]
    for _ in range(max(40, round(INPUTS * effort.scale * parser.weight))):
        inputs.append(mutated(chance.choice(parser.seeds), parser.seeds, chance))
    for number, content in enumerate(inputs):
        fed[parser.name] += 1
        began = time.monotonic()
        wrong = ""
        try:
            wrong = parser.feed(content)
            accepted += 1
        except REFUSALS:
            pass
        except Exception as error:  # noqa: BLE001 (the fuzzer looks for these)
            wrong = f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - began
        if seconds > SLOW_SECONDS:
            wrong = wrong or f"it took {seconds:.1f} s"
        if wrong:
            which = f"{parser.name}, seed {effort.seed}, input {number}"
            outcome.violations.append(f"{which}: {content[:200]!r}: {wrong:.400}")
    return accepted


def messages(folder: Path, effort: Effort, outcome: Outcome, fed: Counter[str]) -> None:
    """Written into the store behind the product's back; the worker must survive and report them."""
    chance = random.Random(effort.seed)
    wrong: list[str] = []
    folder.mkdir()
    with (
        harness.forker() as forker,
        harness.findings(wrong),
        harness.sited(forker, f"sqlite:///{folder}/andon.db", folder / "world") as site,
    ):
        runs = [f"message{number}" for number in range(max(4, round(MESSAGES * effort.scale)))]
        for run in runs:
            site.start(agents.waiting, run=run)
        worker = site.ready_worker(settings={"poll_seconds": 0.1})
        until(lambda: all(site.state(run) == "suspended" for run in runs), "runs that wait")
        for run in runs:
            said = mutated(b'{"a": [1, 2.5]}', list(TOKENS), chance).decode("utf-8", "replace")
            fed["messages"] += 1
            body = said.replace("\0", "")
            message = Deliver(run_id=run, kind="event", name="go", body=body, message_id=f"{run}-m")
            site.store.write([message])
        ends = ("succeeded", "stranded", "failed", "dead")
        until(lambda: all(site.state(run) in ends for run in runs), "the ends of all runs")
        site.start(agents.steady, 2, run="after")
        until(lambda: site.state("after") == "succeeded", "a run after all that")
        if worker.status is not None:
            wrong.append(f"the worker ended with {worker.status}")
    outcome.violations += [f"messages, seed {effort.seed}: {one[-1500:]}" for one in wrong]


if __name__ == "__main__":
    harness.alone(check)

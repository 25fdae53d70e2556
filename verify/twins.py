"""SQLite and PostgreSQL are given the same messages, and must be the same afterwards.

Hypothesis chooses the messages (see machine.py), and shrinks an example that tells the two apart to
the fewest steps. Both have the same virtual clock, so every time in every row is compared too. In
addition two writers of PostgreSQL meet (see meetings.py).
"""

import time
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from verify.layer import Effort, Outcome, Say

EXAMPLES = 100  # at scale 1
FEWEST = 10
STEPS = 40
# Each must have been sent, and be refused at least once: otherwise the machine does not reach it.
WANTED = ("Claim", "Append", "Settle", "Deliver", "Order", "Beat", "Depart", "Start", "MoveRun")
REFUSALS = ("Fenced", "Conflict", "IllegalTransition")


def check(effort: Effort, say: Say) -> Outcome:
    from andon.testing.postgres import Cluster

    with Cluster() as cluster:
        return compare(cluster.fresh_database(), effort, say)


def compare(url: str, effort: Effort, say: Say) -> Outcome:
    """The same, with a database that exists and is empty."""
    from verify.meeting_scenes import SCENES
    from verify.meetings import Meetings
    from verify.plots import PLOTS, Plots
    from verify.store_pair import Pair

    began = time.monotonic()
    violations: list[str] = []
    with Pair(url) as pair:
        options: Any = settings(
            # A canary may be rare: search until it is found.
            max_examples=EXAMPLES
            if effort.until_red
            else max(FEWEST, int(EXAMPLES * effort.scale)),
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            derandomize=not effort.seed,
            suppress_health_check=list(HealthCheck),
            # Finding the fewest steps takes minutes; finding any difference takes seconds.
            phases=(Phase.generate,) if effort.name == "ci" else (Phase.generate, Phase.shrink),
        )

        def machine() -> Plots:
            return Plots(pair)

        test: Any = seed(effort.seed)(machine) if effort.seed else machine
        plot: Any = None
        meetings = Meetings(pair)
        # A message is held up before each of its statements, or, if time is short, before some.
        every = 1 if effort.until_red or effort.scale >= 1 else 4
        try:
            for plot in PLOTS:
                Plots(pair).play_alone(plot)
            for plot in SCENES:
                meetings.play(SCENES[plot], every)
            plot = None
            run_state_machine_as_test(test, settings=options)
        except Exception as error:  # noqa: BLE001 (anything that tells the two apart)
            story = " / ".join(getattr(error, "__notes__", [f"the plot {plot}"]))
            story = story.replace("\n", "; ")
            violations.append(f"{error}: {story} (python verify/verify.py --only twins)")
            say(violations[-1])
        finally:
            meetings.close()
        unmet = _unmet(pair) if not violations else []
        return Outcome(
            layer="twins",
            injected=", ".join(f"{name} {count}" for name, count in sorted(pair.sent.items()))
            + f"; sent again {pair.again}; met {meetings.met}; refused: "
            + ", ".join(f"{name} {count}" for name, count in sorted(pair.refused.items())),
            faults=pair.refused.total() + pair.again + meetings.met,
            runs=pair.examples,
            violations=violations,
            guards=unmet,
            seconds=time.monotonic() - began,
        )


def _unmet(pair: Any) -> list[str]:
    never = [f"no {name} was sent" for name in WANTED if not pair.sent[name]]
    return never + [f"nothing was refused as {name}" for name in REFUSALS if not pair.refused[name]]

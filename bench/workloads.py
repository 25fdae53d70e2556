"""W1 to W11: the requests to every system, the columns of the results, and the targets.

Sizes are for two cores. Peers are given smaller numbers where a rate would be the same: no row
should take ten minutes.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Column:
    measure: str
    title: str
    unit: str  # µs, ms, s, /s, KB, ×, count, word
    better: str = ""  # less, more: then it is compared with the best peer
    raw: bool = False  # and with the limit, which is measured just before it
    fold: str = "median"  # of round medians; or worst, or sum, of all


@dataclass(frozen=True)
class Ask:
    method: str
    sizes: dict[str, Any] = field(default_factory=dict)
    quick: dict[str, Any] = field(default_factory=dict)
    peers: dict[str, Any] = field(default_factory=dict)
    suffix: str = ""  # of its measures, where one method is asked several times

    def given(self, *, peer: bool, quick: bool) -> dict[str, Any]:
        sizes = {**self.sizes, **(self.peers if peer else {})}
        if quick:
            sizes |= {name: min(size, sizes[name]) for name, size in self.quick.items()}
        return sizes


@dataclass(frozen=True)
class Workload:
    name: str
    title: str
    columns: tuple[Column, ...]
    asks: tuple[Ask, ...] = ()
    rounds: int = 5
    blocks: int = 1  # in a round
    alone: bool = False  # in a store of its own
    only: tuple[str, ...] = ()  # products or systems; without any, all
    stores: tuple[str, ...] = ()
    why_only: str = ""


@dataclass(frozen=True)
class Target:
    """The value that andon has to reach, on every store it has."""

    workload: str
    text: str
    measure: str
    # at most, less than, at least: a number; same: a word
    rule: str
    value: float | str
    # value, raw (times the limit), peer (times ahead of the best peer)
    of: str = "value"


W1 = Workload(
    "W1",
    "sequential durable steps of one run, 1 KB each",
    (
        Column("step", "per step", "µs", "less", raw=True),
        Column("p99", "p99", "µs"),
        Column("plain", "plain function", "µs", raw=True),
    ),
    (
        Ask("steps", {"count": 200}, {"count": 60}, {"count": 60}),
        Ask("plain", {"count": 200}, {"count": 60}, {"count": 60}),
    ),
    blocks=3,
)
W2 = Workload(
    "W2",
    "100 runs × 50 steps at once, one worker process",
    (Column("rate", "steps/s", "/s", "more", raw=True),),
    (Ask("crowd", {"runs": 100, "steps": 50}, {"steps": 5}, {"steps": 10}),),
    rounds=3,
)
W3 = Workload(
    "W3",
    "from enqueue to the run's first line; runs of one step",
    (
        Column("start", "starts after", "ms", "less", raw=True),
        Column("enqueue", "of which the call", "ms"),
        Column("rate", "short runs/s", "/s", "more", raw=True),
    ),
    (
        Ask("latency", {"count": 40}, {"count": 8}, {"count": 20}),
        Ask("short", {"count": 2000}, {"count": 100}, {"count": 300}),
    ),
    rounds=3,
)
W4 = Workload(
    "W4",
    "SIGKILL in the middle of an action on the outside",
    (
        Column("resumed", "resumes after", "s", "less"),
        Column("worst", "worst", "s", fold="worst"),
        Column("repeated", "actions repeated", "count", fold="sum"),
        Column("steps repeated", "finished steps repeated", "count", fold="sum"),
        Column("by", "resumed by", "word"),
    ),
    (Ask("recovery", {"steps": 5}),),
    blocks=2,
    rounds=3,
)
W5 = Workload(
    "W5",
    "SIGTERM with a step of 5 s in flight, grace 2 s",
    (
        Column("exit", "exits after", "s"),
        Column("code", "with", "word"),
        Column("in flight", "the step in flight", "word"),
        Column("elsewhere", "resumes after", "s"),
        Column("announced", "announced after", "ms"),
    ),
    (Ask("leaving"),),
    rounds=2,
)
W6 = Workload(
    "W6",
    "cancel → the step in flight has really ended",
    (
        Column("async", "async step", "ms", "less"),
        Column("sync", "sync step", "ms", "less"),
    ),
    rounds=2,
)
W7 = Workload(
    "W7",
    "storage, and a run of 10,000 finished steps that is resumed",
    (
        Column("per step", "per step of 1 KB", "KB", "less", raw=True),
        Column("conversation", "400 messages of 1 KB", "KB", "less"),
        Column("growth", "400 against 4 × 100", "×"),
        Column("resume", "resumed in", "s", "less"),
    ),
    (
        Ask("storage", {"steps": 1000, "messages": 400}, {"steps": 200, "messages": 80}),
        Ask("resume", {"steps": 10_000}, {"steps": 300}),
    ),
    alone=True,
    rounds=1,
)
W8 = Workload(
    "W8",
    "enqueue and claim beside finished runs",
    (
        Column("start 0", "starts after, 0 finished", "ms"),
        Column("start 1", "100 k", "ms"),
        Column("start 2", "1 M", "ms"),
        Column("start growth", "1 M / 0", "×", "less"),
        Column("enqueue 0", "enqueue, 0", "ms"),
        Column("enqueue 2", "1 M", "ms"),
        Column("enqueue growth", "1 M / 0", "×", "less"),
    ),
    (Ask("latency", {"count": 40}, {"count": 8}, {"count": 20}),),
    blocks=4,
    alone=True,
    only=("raw", "andon", "dbos-postgres", "absurd"),
    why_only="those whose finished runs can be written with SQL, each once",
    rounds=1,
)
SCALES, QUICK_SCALES = (0, 100_000, 1_000_000), (0, 1_000, 10_000)
W9 = Workload(
    "W9",
    "an effect against a step, in an agent's loop: a step (the model), then an effect (the tool), "
    "in `ctx.together()`",
    (
        Column("step commits", "commits per step", "×"),
        Column("effect commits", "commits per effect", "×"),
        Column("step", "per step", "µs"),
        Column("effect", "per effect", "µs"),
        Column("ratio", "effect / step", "×"),
    ),
    (Ask("effects", {"count": 400}, {"count": 60}),),
    only=("andon",),
    why_only="a ledger of effects is andon's own",
    rounds=3,
)
W10 = Workload(
    "W10",
    "1, 2 and 4 worker processes on one PostgreSQL, 100 runs × 50 steps",
    (
        Column("rate 1", "1 worker, steps/s", "/s", "more"),
        Column("rate 2", "2 workers", "/s", "more"),
        Column("rate 4", "4 workers", "/s", "more"),
    ),
    tuple(
        Ask(
            "crowd",
            {"runs": 100, "steps": 50, "workers": workers},
            {"steps": 5},
            {"steps": 10},
            f" {workers}",
        )
        for workers in (1, 2, 4)
    ),
    only=("andon", "dbos", "absurd"),
    stores=("postgres",),
    why_only="for systems whose workers share a PostgreSQL",
    rounds=2,
)
W11 = Workload(
    "W11",
    "memory of the worker for each run",
    (
        Column("suspended", "suspended", "KB", "less"),
        Column("running", "running", "KB", "less"),
    ),
    (
        Ask("suspended", {"count": 1000}, {"count": 50}, {"count": 300}),
        Ask("running", {"count": 500}, {"count": 50}, {"count": 200}),
    ),
    alone=True,
    rounds=1,
)
WORKLOADS = (W1, W2, W3, W4, W5, W6, W7, W8, W9, W10, W11)

TARGETS = (
    Target("W1", "median ≤ 1.5 × the raw commit", "step", "at most", 1.5, "raw"),
    Target("W1", "≥ 3 × faster than the best peer", "step", "at least", 3, "peer"),
    Target("W2", "≥ 10 × the best peer", "rate", "at least", 10, "peer"),
    Target("W2", "≥ 25 % of the raw group commit", "rate", "at least", 0.25, "raw"),
    Target("W3", "starts sooner than with every peer", "start", "at least", 1, "peer"),
    Target("W3", "≥ 2,500 short runs/s", "rate", "at least", 2500),
    Target("W4", "resumes in less than 0.1 s", "resumed", "less than", 0.1),
    Target("W4", "no action repeated", "repeated", "at most", 0),
    Target("W4", "no finished step repeated", "steps repeated", "at most", 0),
    Target("W5", "exits within the grace", "exit", "at most", 2),
    Target("W5", "the partial value is kept", "in flight", "same", "kept and resumed"),
    Target("W6", "async step in less than 20 ms", "async", "less than", 0.020),
    Target("W6", "sync step in less than 300 ms", "sync", "less than", 0.300),
    Target("W7", "storage grows linearly", "growth", "at most", 1.1),
    Target("W7", "10,000 steps resumed in less than 1 s", "resume", "less than", 1),
    Target("W8", "claim at 1 M ≤ 1.3 × the empty store", "start growth", "at most", 1.3),
    Target("W8", "enqueue at 1 M ≤ 1.3 × the empty store", "enqueue growth", "at most", 1.3),
    Target("W9", "≤ 1.5 commits per effect", "effect commits", "at most", 1.5),
)


def chosen_workloads(text: str) -> list[Workload]:
    """The named ones; all if none is named."""
    words = [word.strip().upper() for word in text.split(",") if word.strip()]
    names = [one.name for one in WORKLOADS]
    if unknown := [word for word in words if word not in names]:
        found = ", ".join(unknown)
        raise ValueError(f"--only: expected some of {', '.join(names)}; found {found}")
    return [one for one in WORKLOADS if not words or one.name in words]

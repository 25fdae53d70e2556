"""The results of stops.py, as a table for the terminal and as a page of the docs."""

import statistics
from typing import Any

STEPS = {
    "async": "async",
    "stubborn": "async, swallows it",
    "sync": "sync",
    "blocked": "sync, blocked in C",
}
# The page is polled each 2 ms and the status each 5 ms: closer times are not ordered.
RESOLUTION_SECONDS = 0.005
WATCHED_SECONDS = 10.0
HEAD = ("system", "stopped with", "step", "step ended", "said so after", "said it too early")

Round = dict[str, Any]


def table(found: list[Round]) -> str:
    """One line for each step, for the terminal."""
    lines = [HEAD, *(line for one in found for line in _lines(one))]
    plain = [[cell.replace("`", "").replace("**", "") for cell in line] for line in lines]
    widths = [max(len(line[at]) for line in plain) for at in range(len(HEAD))]
    shown = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in plain
    ]
    reasons = [f"{one['name']}: not measured here: {one['cannot']}" for one in _absent(found)]
    return "\n".join([*shown, *reasons])


def page(found: list[Round], machine: dict[str, str]) -> str:
    return PAGE.format(
        rounds=max(one["rounds"] for one in found),
        matrix="\n".join(_matrix(found)),
        absent="".join(
            f"\n{one['name']} was not measured: {one['cannot']}\n" for one in _absent(found)
        ),
        detail=_markdown(HEAD, [line for one in found for line in _lines(one)]),
        versions=_markdown(
            ("system", "versions", "measured on", "load before"),
            [(one["name"], _listed(one["versions"]), one["on"], one["load"]) for one in found],
        ),
        machine=_listed(machine),
    )


def _lines(system: Round) -> list[tuple[str, ...]]:
    return [
        (
            system["name"],
            row["calls"],
            STEPS[kind],
            _ended(rounds),
            _said(rounds),
            "{1} of {0}".format(*_claims(rounds)),
        )
        for row in system["rows"]
        for kind, rounds in row["kinds"].items()
    ]


def _matrix(found: list[Round]) -> list[str]:
    head = ("system", "stopped with", *STEPS.values())
    lines = [
        (
            system["name"],
            row["calls"],
            *(f"{_ended(rounds)}{_caught(rounds)}" for rounds in row["kinds"].values()),
        )
        for system in found
        for row in system["rows"]
    ]
    return [_markdown(head, lines)]


def _ended(rounds: list[Round]) -> str:
    times = [one["ended"] for one in rounds if one["ended"] is not None]
    on = len(rounds) - len(times)
    again = sum(one["began_again"] for one in rounds)
    if not times:
        return "> 10 s (goes on)"
    text = f"{_time(statistics.median(times))} (worst {_time(max(times))})"
    if on:
        text += f", {on} of {len(rounds)} go on"
    return f"{text}, began again {again}×" if again else text


def _said(rounds: list[Round]) -> str:
    times = [one["said_after"] for one in rounds if one["said_after"] is not None]
    words = "/".join(sorted({one["said"] for one in rounds if one["said_after"] is not None}))
    if not times:
        still = "/".join(sorted({one["said"] for one in rounds}))
        return f"not in 10 s (says {still})"
    return f"{_time(statistics.median(times))} ({words})"


def _caught(rounds: list[Round]) -> str:
    """The claims it made before they were true."""
    _, early = _claims(rounds)
    if not early:
        return ""
    times = [one["said_after"] for one in rounds if _too_early(one)]
    return f"; **said over after {_time(statistics.median(times))}**"


def _claims(rounds: list[Round]) -> tuple[int, int]:
    return len(rounds), sum(_too_early(one) for one in rounds)


def _too_early(one: Round) -> bool:
    """Whether it claimed so while the step ran; after 10 s the script stops looking."""
    ended = WATCHED_SECONDS if one["ended"] is None else one["ended"]
    return one["said_after"] is not None and one["said_after"] + RESOLUTION_SECONDS < ended


def _absent(found: list[Round]) -> list[Round]:
    return [one for one in found if one["cannot"]]


def _time(seconds: float) -> str:
    if seconds < 0.0095:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e3:.0f} ms" if seconds < 0.9995 else f"{seconds:.1f} s"


def _listed(facts: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def _markdown(head: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    rows = [head, tuple("---" for _ in head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


PAGE = """\
# How soon a stop takes effect

A step is running when a client orders a stop. How long does the step go on, and which state does
the system report meanwhile? `make stops` measures it for andon and its peers with the same step in
each, and writes this page. Median of {rounds} rounds, worst in brackets.

{matrix}
{absent}
**Bold**: the system said that the run was over while its step still ran. *Swallows it*: the step
catches its own cancellation and tries again, as careless code does.

Read it by columns. Every system ends a cooperative async step sooner or later. Only Temporal
notifies a sync step in a thread, at its next turn. The other cases need a process outside:
Celery signals the process of a task (SIGKILL for the one that swallows), and andon's supervisor
ends processes that do not end by themselves. andon's *cancel* asks first and becomes a
kill when its window is over (1 s here, 10 s by default); its *kill* first gives the worker 0.2 s to
end the attempt, so that its other runs need not end with it. andon commits the order and raises the
fence before it notifies the worker, and reports that a run is over when that is proved.

## How it is measured

The step stamps the clock into a shared memory page each 5 ms and knows nothing of stops: in a loop
with `await asyncio.sleep(0.005)`; the same under `except BaseException: continue`; in a loop with
`time.sleep(0.005)`; and in one call of `time.sleep(30)`, which stands for any call into C that does
not come back. Another process watches the page and the thread's entry in `/proc` for 10 s. *Ended*
is the last stamp after the request (or the moment its thread was gone, where it could not stamp),
*said* the moment the system's own status first reported it, polled each 5 ms. The stop comes at a
random moment, from a client that is already connected.

Each system is used as its documentation recommends for stops; the files
`bench/peers/on_*.py` name that page, and the settings in its favour: DBOS's async step is
preemptible, Temporal's steps heartbeat at every turn, Celery has the prefork pool. Some
systems offer the step a flag to check; this step does not check it, because agents call code that
does not either.

## Limits of the comparison

The machine was not quiet: see the load in the last table, and measure on yours. Not measured: the
price of a stop (Celery and andon end a process, and the step's memory is lost), the fate of the
work (a Celery task is gone, a killed run of andon can be resumed), and processes that the step
starts.

## Every number

{detail}

## Versions

{versions}

Machine: {machine}.
"""

"""Judges grace periods, and whether the orchestrator's signals reach a process.

Each function returns (status, finding, advice), as `andon doctor` prints it.
"""

from collections.abc import Sequence
from pathlib import Path

from andon.control.doctor.check import FAIL, OK, WARN
from andon.core.fleet.rollout import grace_for, orchestrator_for, steps_have
from andon.core.text import length
from andon.host import proc
from andon.settings import Settings
from andon.store.messages.rows import StepTime

# How far back the durations of steps are considered.
STEPS_SECONDS = 7 * 86_400.0

_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "busybox"})
# Init programs that pass a signal on to their child, but not to its descendants.
_PASSING = frozenset({"tini", "dumb-init", "docker-init", "catatonit"})

Judged = tuple[str, str, str]


def judge_orchestrator(settings: Settings) -> Judged:
    """Compare the grace period with the orchestrator's."""
    grace, limit = settings.grace_seconds, settings.orchestrator_grace_seconds
    enough = orchestrator_for(grace)
    mine = f"grace_seconds {grace:g}"
    if not limit:
        found = f"{mine}; the orchestrator's is not known (set ANDON_ORCHESTRATOR_GRACE_SECONDS)"
        return OK, found, ""
    advice = (
        f"set terminationGracePeriodSeconds: {enough:g}, or ANDON_GRACE_SECONDS={_within(limit):g}"
    )
    if limit <= grace:
        return FAIL, f"{mine}, but the orchestrator kills after {limit:g} s", advice
    if limit < enough:
        found = f"{mine} of {limit:g} s leaves {limit - grace:g} s to exit"
        return WARN, found, advice
    return OK, f"{mine} of the orchestrator's {limit:g} s", ""


def _within(limit: float) -> float:
    """The longest grace period that fits into the orchestrator's limit."""
    fits = [grace for grace in range(1, int(limit) + 1) if orchestrator_for(grace) <= limit]
    return float(max(fits, default=max(limit / 2, 0.5)))


def judge_steps(settings: Settings, times: Sequence[StepTime]) -> Judged:
    """Compare the durations of steps with the part of the grace period that a step gets."""
    count, longer = sum(one.count for one in times), sum(one.longer for one in times)
    have = steps_have(settings.grace_seconds)
    if not count:
        return OK, f"none in the last 7 days; each has {length(have)} when its worker drains", ""
    slowest = max(times, key=lambda one: one.longest_seconds)
    longest = f"the longest took {length(slowest.longest_seconds)} in the last 7 days"
    if not longer:
        return OK, f"{longest}, and each has {length(have)} when its worker drains", ""
    grace = grace_for(slowest.longest_seconds)
    found = (
        f"{longest} ({slowest.agent} {slowest.name}), but each has {length(have)} of "
        f"grace_seconds {settings.grace_seconds:g}: {_percent(longer, count)} could be cut"
    )
    advice = (
        f"set ANDON_GRACE_SECONDS={grace:g} and terminationGracePeriodSeconds: "
        f"{orchestrator_for(grace):g}, or save partial progress with ctx.checkpoint"
    )
    return WARN, found, advice


def _percent(part: int, whole: int) -> str:
    share = 100 * part / whole
    return f"{share:.0f} % of {whole:,} steps" if share >= 1 else f"{part:,} of {whole:,} steps"


def lines_above(pid: int) -> list[list[str]]:
    """The command lines of a process and of its ancestors, up to PID 1."""
    found: list[list[str]] = []
    while pid > 0 and (stat := proc.stat(pid)) is not None:
        found.append(proc.words(pid))
        pid = stat.parent
    return found


def judge_signals(pid: int, lines: Sequence[Sequence[str]]) -> Judged:
    """Whether the orchestrator's SIGTERM reaches the process; `lines` run from it up to PID 1.

    The orchestrator signals only PID 1. A shell as PID 1, or right below an init, does not pass
    the signal on.
    """
    if pid == 1:
        return OK, "PID 1 is andon: signals arrive", ""
    above = [Path(line[0]).name.lstrip("-") if line else "" for line in lines[1:]]
    shell = above[:1] and above[0] in _SHELLS and "-i" not in lines[1]
    if shell and (len(above) == 1 or (len(above) == 2 and above[1] in _PASSING)):
        found = f"a shell stands between PID 1 and pid {pid}: {' '.join(lines[1])[:80]}"
        advice = (
            'the shell does not pass SIGTERM on: use CMD ["andon", "work", …], or exec andon work '
            "in the script"
        )
        return WARN, found, advice
    top = above[-1] if above else "not visible"
    return OK, f"pid {pid} is under PID 1 ({top or 'unnamed'})", ""

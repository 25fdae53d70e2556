"""Output of `andon wait`: advice while it waits, and the outcome."""

from collections.abc import Callable
from typing import Any

import msgspec

from andon.cli import output
from andon.cli.app import advise, print_answer
from andon.cli.progress import ProgressLine
from andon.cli.views.run_view import how_to_answer, show_ask
from andon.control.facts import facts
from andon.control.runs.activity import doing
from andon.control.runs.command_run import VERSION
from andon.control.runs.runs import as_ask
from andon.control.runs.shown_state import Surroundings
from andon.core.run import TERMINAL, State
from andon.core.text import clean, clean_lines, command, failure
from andon.runtime.requests import requests, scope_latches
from andon.store.messages.rows import RunRow
from andon.store.store import Store

SUCCEEDED, FAILED, LATE = 0, 1, 3


class Advice:
    """Explains once why a run does not proceed: no worker serves it, say, or it asks a person."""

    def __init__(
        self, store: Store, advise: Callable[[str], None], line: ProgressLine | None = None
    ) -> None:
        self._store, self._advise, self._line = store, advise, line
        self._given = set[str]()

    def look(self, row: RunRow) -> None:
        """Check the run at every poll; a new state may need new advice."""
        around = Surroundings(self._store)
        self._look_at_stops(row, around)
        if around.is_stranded(row) and around.latch_on(row) is None:
            how = "" if row.version == VERSION else ". Start one: andon work FILE"
            self._say(f"run {row.id} is stranded: {around.missing_worker(row)}{how}")
        if row.state == State.SUSPENDED:
            asks = self._store.asks(row.id)
            for ask in asks:
                how = how_to_answer(row.id, as_ask(ask), alone=len(asks) == 1)
                self._say(f"run {row.id} asks: {ask.question}   {how}")
        if self._line is not None and self._line.shown:
            text = doing(row, self._store.asks(row.id), around)
            self._line.show(f"run {row.id} is {around.state_of(row)}: {text}".removesuffix(": "))

    def _look_at_stops(self, row: RunRow, around: Surroundings) -> None:
        latch = around.latch_on(row)
        if row.stop is not None:
            words = doing(row, (), around)
            receipt = command("show", msgspec.json.decode(row.stop)["order"])
            self._say(f"run {row.id} is stopping: {words}   {receipt}")
        elif latch is not None:
            self._say(
                f"run {row.id} waits: {scope_latches.held_by(latch)}   "
                f"{scope_latches.lift_command(latch)}"
            )
        elif row.state == State.PAUSED:
            words = doing(row, (), around)
            words = words if words.startswith("paused by ") else f"paused: {words}"
            self._say(f"run {row.id} is {words}   {command('resume', row.id)}")

    def _say(self, text: str) -> None:
        if text not in self._given:
            self._given.add(text)
            self._advise(clean(text, 1000))


def report(store: Store, run_id: str, over: RunRow | None, timeout: float | None) -> int:
    """Print the outcome on stdout or, if there is none, the reason on stderr."""
    row = over if over is not None else requests.find(store, run_id)
    run = requests.described(store, row)
    state = Surroundings(store).state_of(row)
    succeeded = run.state == State.SUCCEEDED
    print_answer(_facts(run, state), output.as_json(run.result) if succeeded else "")
    if succeeded and over is not None:
        return SUCCEEDED
    if over is None and not succeeded:
        advise(f"run {clean(run_id)} is {state}, and was not over within {timeout:g} s")
    elif not succeeded:
        why = failure(run.error) if run.error else ""
        by_somebody = why.startswith(f"{run.state} by ")
        ended = f"was {why}" if by_somebody else f"{_ended(run.state)}{why and ': '}{why}"
        advise(clean_lines(f"run {run_id} {ended}", "  "))
        if run.state == State.KILLED:
            advise(f"to continue it: {command('resume', run_id)}")
    advise(f"look: {command('show', run_id)}")
    return LATE if over is None else FAILED


def has_ask(store: Store, row: RunRow) -> bool:
    """Whether the run asks a person now; a finished run's questions need no answer."""
    return row.state not in TERMINAL and bool(store.asks(row.id))


def report_ask(store: Store, run_id: str, row: RunRow | None, timeout: float | None) -> int:
    """Print the open asks on stdout or, if there are none, the reason on stderr."""
    found = row if row is not None else requests.find(store, run_id)
    asks = [as_ask(ask) for ask in store.asks(run_id)] if has_ask(store, found) else []
    state = Surroundings(store).state_of(found)

    def show(_: Any) -> None:
        for ask in asks:
            show_ask(run_id, ask, alone=len(asks) == 1)

    print_answer({**_facts(requests.described(store, found), state), "asks": asks}, show)
    if asks:
        return SUCCEEDED
    name = clean(run_id)
    late = f"run {name} is {state}, and asked nothing within {timeout or 0:g} s"
    advise(late if row is None else f"run {name} {_ended(state)} and has no open ask")
    advise(f"look: {command('show', run_id)}")
    return LATE if row is None else FAILED


def _ended(state: str) -> str:
    """Return a state as the verb of a sentence."""
    was = {"cancelled": "was cancelled", "killed": "was killed"}
    return state if state in ("succeeded", "failed") else was.get(state, f"is {state}")


def _facts(run: requests.Run, state: str) -> dict[str, Any]:
    return facts(run, "id agent version") | {"state": state} | facts(run, "attempt result error")

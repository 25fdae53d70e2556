"""The run of a command that does not use andon itself, executed by `andon exec`.

The control process is the run's worker: it holds the run for the supervisor, lets the command
begin, passes stops on to it and settles it when it has ended. It keeps no state that the store or
the supervisor does not have: the next action follows from the run's row and the child's state, so
a restarted control process continues where the last one died.

    pause = freeze · resume = thaw · cancel = TERM, its window, then KILL · kill, halt = KILL
"""

import json
import uuid
from typing import Any

import msgspec

from andon.control.runs.command_run import VERSION
from andon.control_process.children import ChildRecord
from andon.core.journal import Entry, EntryKind, chain
from andon.core.lease import Fence
from andon.core.run import TERMINAL, Event, State, advance
from andon.core.stop import StopKind, StopScope
from andon.errors import Fenced, Refused
from andon.runtime.requests import scope_latches
from andon.runtime.requests.requests import write
from andon.runtime.requests.start import new_run
from andon.runtime.worker.peers import end_remains, is_gone, this_process
from andon.settings import Settings
from andon.store.messages.rows import RunRow
from andon.store.messages.stops import Order, StopNotice, SupervisorRow, TargetReport
from andon.store.store import (
    AgentRow,
    Claim,
    Depart,
    NewRun,
    Register,
    Settle,
    Start,
    Store,
    WorkerRow,
)
from andon.supervisor.spec import OVER

PARAMETERS = {"parameters": [{"name": "argv", "required": True}], "extra": False}
# Endings of a command that was stopped without an order about its run: the run continues later.
_RETURNS = {"drain": "returned", "lost contact": "interrupted"}


class CommandRun(msgspec.Struct, frozen=True, kw_only=True):
    """The command that `andon exec -- CMD` passes to the control process."""

    child: str
    run: str
    agent: str
    argv: list[str]
    labels: dict[str, str] = {}
    restart: str = "never"

    @property
    def row(self) -> AgentRow:
        """The agent row that gives the command a name, under which it can be stopped or limited."""
        parameters = json.dumps(PARAMETERS)
        return AgentRow(name=self.agent, version=VERSION, queue="default", parameters=parameters)

    def new_run(self, now: float) -> NewRun:
        given = {"argv": self.argv}
        return new_run(self.row, (), given, run_id=self.run, labels=self.labels, now=now)


class CommandRunner:
    """The run of one command, for as long as its supervisor lives."""

    def __init__(
        self, command: CommandRun, supervisor: SupervisorRow, settings: Settings, send: Any
    ) -> None:
        self.command, self._supervisor, self._settings = command, supervisor, settings
        self._send = send
        self._said: set[tuple[str, ...]] = set()  # requests already sent: one of each is enough
        self.worker_id = ""
        # The supervisor stops the command when contact is lost. The lease is longer than it waits
        # for that, so a worker that takes the run over finds no process of it alive.
        self.lease_seconds = settings.lost_contact_seconds + settings.lease_seconds

    def advance(self, store: Store, child: ChildRecord, notices: list[StopNotice]) -> None:
        """Bring the run's row and the child into agreement, by one action or several."""
        if not self.worker_id:
            self._register(store, child)
        row = store.run(self.command.run)
        if row is None:
            row = self._start(store, child)
        if row is None:
            return
        if child.state in ("new", "waiting"):
            self._begin(store, child, row)
        elif child.alive:
            self._follow(store, child, row)
        elif self._is_final(child) and child.quiet:
            self._end(store, child, row)
        self._prove(store, child, notices)

    def is_mine(self, row: RunRow) -> bool:
        return row.state == State.RUNNING and row.worker == self.worker_id

    def concerns(self, notice: StopNotice) -> bool:
        return notice.run_id == self.command.run or notice.worker == self.worker_id

    def lost(self) -> None:
        """Forget the worker that the store has given up: the run must be claimed anew, or ended."""
        self.worker_id = ""

    def leave(self, store: Store) -> None:
        if self.worker_id:
            write(store, Depart(worker_id=self.worker_id))

    def _register(self, store: Store, child: ChildRecord) -> None:
        """Register a worker with the supervisor's own process, so that others notice its death."""
        one = self._supervisor
        for row in store.workers():
            same = (row.supervisor, row.pid, row.start_ticks) == (one.id, one.pid, one.start_ticks)
            if same and row.state == "live":
                self.worker_id = row.id
                return
        row = WorkerRow(
            id=f"{one.host}.{one.pid}.{uuid.uuid4().hex[:8]}",
            host=one.host,
            boot=one.boot,
            namespace=one.namespace,
            pid=one.pid,
            start_ticks=one.start_ticks,
            concurrency=1,
            supervisor=one.id,
            containment=json.dumps(child.containment),
        )
        message = Register(
            worker=row,
            agents=(self.command.row,),
            lease_seconds=self.lease_seconds,
            promote=False,  # only `andon exec` starts runs of it
        )
        write(store, message)
        self.worker_id = row.id

    def _start(self, store: Store, child: ChildRecord) -> RunRow | None:
        try:
            write(store, Start(run=self.command.new_run(store.now())))
        except Refused as refusal:
            self._refuse(child, str(refusal))
            return None
        return store.run(self.command.run)

    def _begin(self, store: Store, child: ChildRecord, row: RunRow) -> None:
        """Let the command begin once the run is ours."""
        if not self.is_mine(row):
            why = refusal_of(store, row)
            if why:
                self._refuse(child, why)
                return
            if not self._claim(store, row):
                return
        env = {"ANDON_RUN": self.command.run, "ANDON_SUPERVISOR": self._supervisor.id}
        env["ANDON_CONTAINMENT"] = json.dumps(child.containment)
        self._say("go", child, run=self.command.run, env=env)

    def _refuse(self, child: ChildRecord, why: str) -> None:
        self._say("refuse", child, why=why)

    def _claim(self, store: Store, row: RunRow) -> bool:
        message = Claim(
            worker_id=self.worker_id,
            agents=((self.command.agent, VERSION),),
            limit=1,
            only=(self.command.run,),
            dead=self._dead(store, row),
            lease_seconds=self._settings.lease_seconds,
            interruption_limit=self._settings.interruption_limit,
        )
        return any(one.id == self.command.run for one in write(store, message).runs)

    def _dead(self, store: Store, row: RunRow) -> tuple[tuple[str, str], ...]:
        """The run's previous worker, if its process is gone and no process has recorded that."""
        if row.worker is None or row.worker == self.worker_id:
            return ()
        here = this_process()
        return tuple(
            (one.id, end_remains(one, "its process is gone"))
            for one in store.workers()
            if one.id == row.worker and is_gone(here, one)
        )

    def _follow(self, store: Store, child: ChildRecord, row: RunRow) -> None:
        if self.is_mine(row):
            if row.stop is not None:
                self._obey(store, child, row)
            elif child.state == "frozen":
                self._say("thaw", child, again=row.fence)
        elif row.state == State.PAUSED:
            if child.state != "frozen":
                self._say("freeze", child, again=row.fence)
        elif row.state == State.QUEUED:
            # The run was resumed; or its lease expired while we had no contact, and no other
            # worker has claimed it.
            self._claim(store, row)
        else:
            # The run is killed, cancelled or held by another worker: this process must not go on.
            order = json.loads(row.stop)["order"] if row.stop else ""
            self._say("kill", child, order=order)

    def _obey(self, store: Store, child: ChildRecord, row: RunRow) -> None:
        """Carry out a polite order: freeze the command for a pause, else terminate it."""
        assert row.stop is not None
        mark = json.loads(row.stop)
        if mark["kind"] == StopKind.PAUSE:
            if child.state == "frozen":
                grade = child.containment.get("pause", "none")
                self._settle(store, row, Event.RETURN, f"frozen, grade {grade}")
            else:
                self._say("freeze", child, order=mark["order"])
            return
        order = store.stop(mark["order"])
        grace = order.within if order is not None else 0.0
        self._say("term", child, order=mark["order"], grace=grace)

    def _say(self, do: str, child: ChildRecord, *, again: int = 0, **words: Any) -> None:
        """Send a request to the supervisor, once for each process, order and claim."""
        name = (do, str(child.pid), str(words.get("order") or again))
        if name not in self._said:
            self._said.add(name)
            self._send(do, child=child.name, **words)

    def _is_final(self, child: ChildRecord) -> bool:
        """Whether the supervisor will not start the command again."""
        if child.state in OVER or child.asked:
            return True
        return self.command.restart == "never" or child.code == 0

    def _end(self, store: Store, child: ChildRecord, row: RunRow) -> None:
        if not self.is_mine(row):
            return
        if child.state == "refused" or child.asked in _RETURNS:
            self._settle(store, row, Event.RETURN, _RETURNS.get(child.asked, "untouched"))
        elif child.asked == "halt":
            return  # the halt, which the store learns first, settles the run
        elif child.asked == "kill":
            write(store, self._kill_order(child))
        elif row.stop is not None and child.asked == "term":
            self._settle(store, row, Event.RETURN, "returned")
        elif child.code == 0:
            self._settle(store, row, Event.SUCCEED, "", result={"exit": 0})
        else:
            self._settle(store, row, Event.FAIL, "", error=_failure(child))

    def _kill_order(self, child: ChildRecord) -> Order:
        """An order that records a kill given through the supervisor's socket."""
        return Order(
            id=child.order or f"rcp_{uuid.uuid4().hex[:12]}",
            kind=StopKind.KILL,
            scope=StopScope.RUN,
            name=self.command.run,
            via="the supervisor's socket",
        )

    def _settle(
        self,
        store: Store,
        row: RunRow,
        event: Event,
        ending: str,
        *,
        result: dict[str, Any] | None = None,
        error: dict[str, Any] | None = None,
    ) -> None:
        state = advance(State.RUNNING, event)
        fence = Fence(row.epoch, row.fence)
        body = json.dumps(error if error is not None else result)
        ended = _end_entry(row, state, body, store.now()) if state in TERMINAL else None
        message = Settle(
            run_id=row.id,
            fence=fence,
            state=state,
            ending=ending or state,
            entries=(ended,) if ended else (),
            error=None if error is None else json.dumps(error),
            returned=state == State.QUEUED,
            failed=error is not None,
        )
        try:
            write(store, message)
        except Fenced:  # an order came first; the next turn sees it
            return

    def _prove(self, store: Store, child: ChildRecord, notices: list[StopNotice]) -> None:
        """Report to the store that no process of the command is left."""
        if child.alive or not child.quiet:
            return
        if child.asked == "kill" and child.killed is None and child.state not in OVER:
            return  # the supervisor's "killed" event, with the evidence, follows in a moment
        for one in notices:
            if self.concerns(one) and one.hard:
                write(
                    store,
                    TargetReport(
                        stop_id=one.stop_id,
                        target=one.target,
                        stage="verified",
                        evidence=f"its supervisor: {proof(child)}",
                    ),
                )


def proof(child: ChildRecord) -> str:
    """The evidence of the command's end, in words."""
    if child.killed is not None:
        took, by = child.killed.get("took_ms"), child.killed.get("by")
        number = child.killed.get("pids")
        return f"{number} processes ended by {by} in {took} ms, nothing is left"
    return f"it has ended ({child.how()}), nothing is left"


def refusal_of(store: Store, row: RunRow) -> str:
    """Why a run cannot begin or continue here; empty if it can."""
    if row.state in TERMINAL:
        return f"run {row.id} is {row.state} already; to start another leave out --id"
    if row.state in (State.PAUSED, State.KILLED, State.STRANDED):
        return f"run {row.id} is {row.state}; resume it first: andon resume {row.id}"
    if row.state == State.RUNNING:
        here = this_process()
        live = [one for one in store.workers() if one.id == row.worker and not is_gone(here, one)]
        if live and live[0].lease_until > store.now():
            return f"run {row.id} is running already, on worker {row.worker}; andon show {row.id}"
    return held(store, row.agent, json.loads(row.labels))


def held(store: Store, agent: str, labels: dict[str, str]) -> str:
    """The latch that keeps a run of this agent with these labels from starting; empty if none."""
    latch = scope_latches.on_path_of(store.latches(), agent, labels)
    if latch is None:
        return ""
    return f"{scope_latches.held_by(latch)}. To lift it: {scope_latches.lift_command(latch)}"


def _failure(child: ChildRecord) -> dict[str, Any]:
    return {
        "type": "Exited",
        "message": f"the command ended with {child.how()}",
        "exit": child.code,
        "signal": child.signal,
    }


def _end_entry(row: RunRow, state: str, body: str, now: float) -> Entry:
    entry = Entry(
        seq=row.head_seq + 1,
        kind=EntryKind.END,
        state=state,
        name=row.agent,
        body=body,
        fence=row.fence,
        since=now,
        at=now,
    )
    entry.hash = chain(row.head_hash, entry)
    return entry

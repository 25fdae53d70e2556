"""One attempt: a worker's hold on a run, from claim to settlement.

An attempt loads the run, executes its code (replay first, then new operations) and settles it.
"""

import asyncio
import contextlib
import contextvars
import functools
import logging
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from andon.core.journal import GENESIS, EntryKind, Replay, check_chain
from andon.core.stop import Stage
from andon.core.values import value
from andon.errors import Corrupt, Diverged, Fenced, Stopped, StoreError
from andon.host.remains import Remains
from andon.points import point
from andon.runtime.attempt import branch, callbacks, settlement
from andon.runtime.attempt.error_text import reason_of
from andon.runtime.attempt.exit import Host, Wait, log
from andon.runtime.attempt.failures import noted
from andon.runtime.attempt.journal import Draft
from andon.runtime.attempt.waits import Waiting
from andon.runtime.operations import snapshots
from andon.runtime.processes import attribution
from andon.runtime.worker import cleanup
from andon.runtime.worker.stop_orders import AGAIN_SECONDS, HARD_SECONDS
from andon.store.messages.rows import Loaded
from andon.store.messages.stops import TargetReport
from andon.store.store import Claimed, EffectRow

# How long code that is leaving may take to unwind before it is cancelled again.
UNWIND_SECONDS = 2.0
UNWIND_TRIES = 5
# A kill waits no longer than this for its receipt to name the processes it ends.
NAMED_SECONDS = 0.1
# After these reasons another worker continues the run, perhaps on another host.
GIVEN_AWAY = frozenset({"drained", "stopped", "fenced", "unavailable"})


class Attempt(Waiting):
    """The state of one run in this process."""

    def __init__(self, host: Host, run: Claimed, agent: Any) -> None:
        super().__init__(host, run, agent)
        self.open_effects: dict[tuple[str, str], EffectRow] = {}
        # Effects of a run with a snapshot; includes earlier attempts once `ledger_read` is set.
        self.ledger: dict[tuple[str, str], EffectRow] = {}
        self.ledger_read = False
        self.undos: dict[tuple[str, str], Callable[..., Any]] = {}  # by name and key of the effect
        self.leftovers: list[Draft] = []  # entries on effects cut off here, for the next attempt
        self.cleanups: list[Callable[[], Any]] = []
        self.cancelled: set[str] = set()  # places of operations that the code itself cancelled
        # Tasks that the code cancelled while they received a recorded outcome.
        self.outlasted: dict[asyncio.Task[Any], Any] = {}
        self.keys: dict[str, asyncio.Lock] = {}  # one per operation with a key, by place
        # Tool calls by the provider's id: the place of the answer that plans the call, and its key.
        self.planned: dict[str, tuple[str, str]] = {}
        self.invocations: Counter[str] = Counter()  # graph invocations by the run's code, by thread
        self.unanswered: set[str] = set()  # open asks that hold up only the run's end
        self._loaded: Loaded | None = None
        self.snapshot = b"null"  # the state of the last snapshot
        self.parts: frozenset[str] = frozenset()  # its parts, which the store therefore has
        self.oblivious = False  # there is a snapshot, and the code has not read it
        self._scratch: Path | None = None
        self.settled: asyncio.Future[str] = self.loop.create_future()  # how it ended, for the drain
        self.ending: str | None = None
        self.also = ""  # names of processes that the run started and that were ended with it

    async def carry_out(self) -> str:
        """Execute the run as far as it goes here; return how the attempt ended."""
        try:
            ended = await self._carry_out()
            self.settled.set_result(ended)
        finally:
            if not self.settled.done():
                self.settled.set_result("fenced")
            self.end_flushing()
            self.started.close()
            await self._clean_up()
        return ended

    async def _carry_out(self) -> str:
        try:
            if self.host.draining:  # the drain began during the claim
                self.leave("drained")
            self.check()
            await self._load()
            self.check()
            if self.run.trial is not None:
                from andon.runtime.attempt import rehearsal

                return await rehearsal.settle_trial(self)
            if self.run.undoing is not None or self.replay.compensation is not None:
                return await self._compensate()
            outcome = await self._execute()
        except (Exception, Stopped) as error:  # noqa: BLE001 (a worker must survive every run)
            outcome = None
            self.leave(reason_of(error), error)
        if self.order is not None:
            await self._stand_still()
        elif self.reason in GIVEN_AWAY:
            await self._end_started(at_once=self.reason == "fenced")
        if self.reason == "killed":  # the store accepts none of its writes any more
            return "killed"
        try:
            return await self._settle(outcome)
        except (Fenced, StoreError, Stopped) as error:
            return await self._give_up(error)
        except Exception as error:  # noqa: BLE001 (a worker must survive every run)
            log.exception("run %s: andon could not settle it", self.run.id)
            self.error = error
            return str(await self.host.writer.write(settlement.stranding(self)))

    async def _load(self) -> None:
        if self.run.start is not None:
            loaded = Loaded.untouched(self.run.start)
        else:
            loaded = await self.in_thread(self.host.store.load, self.run.id)
        first = loaded.entries[0]
        trusted = GENESIS if first.kind == EntryKind.START else None
        head = check_chain(loaded.entries, run_id=self.run.id, previous=trusted)
        if head != self.run.head_hash:
            raise Corrupt(
                f"run {self.run.id}: its journal ends with {head[:12]}, expected "
                f"{self.run.head_hash[:12]}; entries are missing. Restore it from a backup."
            )
        if self.run.interruptions:
            await self.in_thread(cleanup.sweep, self.run.id)
        self._loaded = loaded
        self.oblivious = first.kind == EntryKind.SNAPSHOT
        self.inbox = list(loaded.inbox)
        self.checkpoints = dict(loaded.checkpoints)
        self.replay = Replay(loaded.entries, run_id=self.run.id)
        if self.agent.is_async:  # nothing shows when the thread of a plain agent is at rest
            self.turns.expect(self.replay.answers())
        if self.replay.snapshot is not None:
            self.root.restart(self.replay.root)
            self.snapshot, self.parts = await self.read(
                snapshots.restored, self.host.store, self.replay.snapshot
            )
        point("attempt:loaded")

    async def _execute(self) -> tuple[str, Any] | None:
        from andon.runtime.effects import in_doubt

        await in_doubt.look_back(self)
        return await self.play()

    async def play(self) -> tuple[str, Any] | None:
        """Call the agent's code; return None if the attempt left before the code ended."""
        context = contextvars.copy_context()
        context.run(branch.current.set, self.root)
        main = asyncio.Task(self.agent.call(self), loop=self.loop, context=context)
        self.tasks.add(main)
        self.main = main
        await asyncio.wait({main, self.left}, return_when=asyncio.FIRST_COMPLETED)
        await self._join_others()
        await self._unwind()
        if self.reason is not None:
            log.debug("run %s: leaves (%s)", self.run.id, self.reason)
            return None
        if main.cancelled():
            return "error", asyncio.CancelledError("the agent's code cancelled itself")
        error = main.exception()
        if error is not None:
            return "error", error
        self.replay.check_end(self.root.number)
        return "result", main.result()

    async def _join_others(self) -> None:
        """Wait for operations that still execute: the run must not finish before them."""
        while self.active and self.reason is None and self.tasks.all:
            await asyncio.wait({*self.tasks.all, self.left}, return_when=asyncio.FIRST_COMPLETED)

    async def _unwind(self) -> None:
        """Wait until the run's code has ended; cancel code that does not end by itself.

        Cancels repeatedly, because code can swallow a cancellation. Operations in hand may end,
        unless the attempt has to leave at once.
        """
        self.ended = True
        patient = self.reason is not None and not self.cut
        for _ in range(UNWIND_TRIES):
            if not patient:
                for task in self.tasks.all:
                    task.cancel()
            while self.tasks.all and not self.ordered.done():
                ends: set[asyncio.Future[Any]] = {*self.tasks.all, self.ordered}
                done, _ = await asyncio.wait(
                    ends, timeout=self.host.unwind_seconds, return_when=asyncio.FIRST_COMPLETED
                )
                if not done and not (self.active and not self.cut):
                    break
            if not self.tasks.all or self.ordered.done():
                break
            patient = False
        if self.ordered.done():
            await self._come_to_rest()
        for task in self.tasks.all:
            log.error("run %s: code that cannot be cancelled continues: %r", self.run.id, task)
            self.host.keep_in_mind(task)

    async def _come_to_rest(self) -> None:
        """Wait until none of the run's code executes: only then may a stop be reported."""
        while not self.tasks.still:
            left = self.tasks.all | self.tasks.inner
            if self.cut or not self.active:
                for task in left:
                    task.cancel()
            hard = self.order is not None and self.order.hard
            await self.moved(HARD_SECONDS if hard else AGAIN_SECONDS, left)

    async def _stand_still(self) -> None:
        """Clean up a stopped run and wait until nothing of it executes.

        Cleanup functions are the run's own code: they have to end too, and a kill calls none.
        """
        await self._come_to_rest()
        point("stop:left")
        if self.reason != "killed":
            await self._clean_up()
            await self._come_to_rest()
        while not await self._is_at_rest():
            await self.moved(AGAIN_SECONDS)  # the rest has to be ended from outside this process

    async def _is_at_rest(self) -> bool:
        """End the run's processes and callbacks; return whether nothing it started goes on."""
        at_once = self.reason == "killed"
        if not await self._end_started(at_once=at_once) or self.started.threads:
            return False
        strays = self.started.strays()
        if strays.look() and self.started.alone:
            self.also = "; ".join(filter(None, (self.also, await self._end(strays, at_once))))
        if strays.look():
            names = strays.named(strays.survivors)
            log.error(
                "run %s: these may be its processes, or another run's: %s", self.run.id, names
            )
        return not strays.survivors and not self._end_callbacks()

    def _end_callbacks(self) -> bool:
        """Cancel what the run's code left on the event loop; return whether there was anything."""
        own, alone = not self.host.embedded, self.started.alone
        left = callbacks.end(self.loop, self.tasks, own=own, alone=alone)
        if left:
            log.warning("run %s: left on the event loop: %s", self.run.id, ", ".join(left))
        return bool(left)

    async def _end(self, remains: Remains, at_once: bool) -> str:
        with contextlib.suppress(TimeoutError):
            return await attribution.end(remains, at_once=at_once)
        return ""

    def _left(self) -> dict[str, Any]:
        """Fields that tell the store whether anything the run started goes on."""
        if self.started.threads or not self.tasks.still:  # these outlive the attempt
            self._note_started(threads=True)
            return {"also": self.also}
        remains = self.started.remains()
        return {"also": self.also, "cleared": remains is not None and remains.none()}

    async def _end_started(self, *, at_once: bool) -> bool:
        """End the run's processes before another worker continues it; False if some are left."""
        if self.reason == "killed":
            await self._name_started()
        try:
            ended = await self.end_started(at_once=at_once)
        except TimeoutError as error:
            log.error(
                "run %s: processes that it has started cannot be ended: %s", self.run.id, error
            )
            return False
        self.also = "; ".join(filter(None, (self.also, ended)))
        return True

    async def _settle(self, outcome: tuple[str, Any] | None) -> str:
        await self.flush()
        if self.reason == "fenced":
            raise Fenced(self.run.id, self.fence)
        if outcome is not None and self.open_effects:
            from andon.runtime.effects import in_doubt

            if await in_doubt.ask_about_open(self):
                self.leave("suspended")
                outcome = None
        if self.unanswered and outcome is not None and outcome[0] == "result":
            self.leave("suspended")
            self.left_waits = [Wait(kind="answer", name=one) for one in sorted(self.unanswered)]
            outcome = None
        outcome = settlement.checked(self, outcome)
        failure = None
        if outcome is not None and outcome[0] != "result":
            failure = noted(self, outcome[1], f"agent {self.agent.name!r} failed", logging.ERROR)
            if settlement.is_final_failure(self, outcome):
                from andon.runtime.effects import compensation

                if await compensation.begin_after_failure(self, failure):
                    return await self._compensate()
        settle = settlement.settlement(self, outcome, failure).but(**self._left())
        self.ending = settle.ending
        point("attempt:before-settle")
        state = await self.host.writer.write(settle)
        point("attempt:settled")
        return str(state)

    async def _compensate(self) -> str:
        """Undo the run's effects; then it ends as decided before, or waits for a person."""
        from andon.runtime.effects import compensation

        self.ended = False
        self.turns.expect([])  # no agent code asks for recorded answers any more
        work = asyncio.ensure_future(compensation.carry_out(self))
        self.tasks.add(work)
        ends: set[asyncio.Future[Any]] = {work, self.left}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        await self._unwind()
        ended = work.done() and not work.cancelled() and not work.exception()
        if self.reason is None or (ended and self.reason != "killed"):
            settle = work.result()
        elif self.reason in ("fenced", "unavailable", "killed"):
            raise self.stopped(self.reason)
        else:  # the next worker that claims the run continues the compensation
            settle = settlement.returning(self, self.leftovers)
        await self.flush()
        settle = settle.but(**self._left())
        self.ending = settle.ending
        point("attempt:before-settle")
        return str(await self.host.writer.write(settle))

    async def _give_up(self, error: BaseException) -> str:
        """Give the run back after the store refused its settlement, so that it is not held."""
        if self.reason == "killed":
            return "killed"
        fenced = isinstance(error, Fenced) or self.reason == "fenced"
        if fenced:
            log.warning("run %s: fenced: %s", self.run.id, self.error or error)
        else:
            log.error("run %s: given up here: %s", self.run.id, self.error or error)
        # The store refuses a fenced worker again, as it should. But this worker may still be the
        # owner (its last write never arrived, and later ones built on it): then the run must not
        # stay stuck.
        while not self.host.draining and self.reason != "killed":
            try:
                state = str(await self.host.writer.write(settlement.returning(self)))
            except Fenced:
                return "fenced"
            except StoreError:
                await asyncio.sleep(1)
            else:
                return "fenced" if fenced else state
        return "killed" if self.reason == "killed" else "unavailable"

    async def _name_started(self) -> None:
        """Report the processes about to be ended: once gone, nobody outside can name them."""
        order = self.order
        found = [self.started.remains(), self.started.strays() if self.started.alone else None]
        named = [one.named(pids) for one in found if one is not None and (pids := one.look())]
        if order is None or not named:
            return
        report = TargetReport(
            stop_id=order.stop_id,
            target=order.target,
            stage=Stage.FENCED,
            evidence=f"its worker has ended processes of it: {', '.join(named)}",
        )
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(NAMED_SECONDS):
                await self.host.writer.submit(report)

    # ── services for operations ───────────────────────────────────────────────────────────────

    async def in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        return await self.loop.run_in_executor(self.host.threads, function, *args)

    async def read(self, request: Callable[..., Any], *args: Any) -> Any:
        """Query the store; if it cannot answer, the run is interrupted, not failed."""
        try:
            return await self.in_thread(request, *args)
        except StoreError as error:
            raise self.stop("unavailable", error) from None

    async def body_of(self, body: str | None, blob: str | None) -> str:
        if blob is not None:
            found: str = await self.read(self.host.store.blob, blob)
            return found
        return body if body is not None else "null"

    def is_quiet(self, fence: int) -> bool:
        """Whether the worker that held the run under this fence certainly executes nothing."""
        return self._loaded is not None and fence in self._loaded.quiet_fences

    @property
    def restored(self) -> Any:
        """The state of the last snapshot."""
        self.oblivious = False
        return value.decode(self.snapshot.decode())

    def refuse_oblivion(self) -> None:
        """Raise if the code starts over although it has a snapshot: it would repeat everything."""
        if self.oblivious:
            raise Diverged(
                f"run {self.run.id}: it has a snapshot, but its code does not read "
                "ctx.restored: it would repeat finished work. Nothing was executed. Start the "
                "code from ctx.restored, and resume the run."
            )

    @property
    def start_body(self) -> tuple[str | None, str | None]:
        assert self._loaded is not None
        return self._loaded.start.body, self._loaded.start.blob

    @property
    def scratch(self) -> Path:
        """A folder for files, deleted when the attempt ends."""
        if self._scratch is None:
            self._scratch = cleanup.scratch(self.run.id)
        return self._scratch

    async def _clean_up(self) -> None:
        if self.reason == "killed":
            self.cleanups.clear()
        await cleanup.carry_out(self.cleanups, f"run {self.run.id}", self.host.cleanup_left)
        if self._scratch is not None:
            await self.in_thread(functools.partial(shutil.rmtree, self._scratch, True))

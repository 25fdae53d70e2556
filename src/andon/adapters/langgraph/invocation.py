"""One call of a LangGraph graph by the code of a run: an invocation.

The run's code executes again after a crash and calls its graphs again, with the same input. Each
call is numbered and its starting checkpoint journaled, so it continues from its own checkpoints. A
call that the code has already moved past returns the same result as before.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import Counter
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME
from langgraph.config import get_config
from langgraph.runtime import RunControl

from andon.core.journal import EntryKind
from andon.core.values import value
from andon.errors import BadInput, Diverged, Stopped
from andon.runtime import sync
from andon.runtime.requests import tool_ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import CheckpointTuple, PendingWrite

    from andon.runtime.attempt.attempt import Attempt

_NOBODY = "00000000-0000-0000-0000-000000000000"  # LangGraph's task id of a Command
_STEP = "langgraph"
# A thread whose event loop has ended must not wait for it for ever.
_LOOP_SECONDS = 10.0


def begin(attempt: Attempt, context: Any, thread_id: str | None) -> dict[str, Any]:
    """Build the result of `ctx.langgraph()`."""
    thread = attempt.run.id if thread_id is None else str(thread_id)
    # The graph resumes from its checkpoint, so nothing will ask for earlier turns.
    attempt.turns.forget()
    attempt.invocations[thread] += 1
    invocation = Invocation(attempt, context, thread, attempt.invocations[thread])
    owner = {
        "run_id": attempt.run.id,
        "fence": (attempt.fence.epoch, attempt.fence.counter),
        "invocation": invocation,
    }
    return {
        "config": {
            "configurable": {"thread_id": thread, "andon": owner},
            "metadata": {"run_id": invocation.id, "andon_run": attempt.run.id},
        },
        "control": invocation,
        "durability": "sync",
    }


class Invocation(RunControl):
    """One call of a graph; as its RunControl, it ends the graph when the run has to leave."""

    def __init__(self, attempt: Attempt, context: Any, thread: str, number: int) -> None:
        super().__init__()
        self.attempt, self.context = attempt, context
        self.id = f"{attempt.run.id}/{thread}/{number}"
        self.counts: Counter[str] = Counter()  # model calls, by task
        # Starting point, set when AndonSaver first asks for it.
        self.begun: dict[str, Any] | None = None
        self._fresh = False
        # The run's code has moved past this call: return its old result and execute nothing more.
        self.over = self._was_begun(f"{thread}/{number + 1}")
        self._key = f"{thread}/{number}"

    def _was_begun(self, key: str) -> bool:
        digest = value.digest((), {}, _STEP)
        step = {"kind": EntryKind.STEP, "name": _STEP, "key": key, "place": "", "digest": digest}
        return self.attempt.journal.replay.find(**step) is not None

    def begin(self, found: CheckpointTuple | None, config: RunnableConfig) -> str | None:
        """Journal the starting checkpoint and return it, the same in every later attempt."""
        durability = config["configurable"].get("__pregel_durability")
        if durability not in (None, "sync"):
            raise BadInput(
                f"durability={durability!r}: expected 'sync' inside a run of andon, because a step "
                "that is not saved is executed again. Call the graph with **ctx.langgraph()."
            )
        now: dict[str, Any] = {"origin": None, "told": 0, "resumed": 0}
        if found is not None:
            now = {"origin": found.checkpoint["id"], **_count(found.pending_writes or ())}

        before = None if found is None else found.metadata.get("andon_run")

        def first() -> dict[str, Any]:
            self._fresh = True
            if before not in (None, self.attempt.run.id):
                tool_ledger.take_over(self.attempt.host.store, str(before), self.attempt.run.id)
            return now

        self.begun = self.portal(self.context).step(first, name=_STEP, key=self._key)
        origin: str | None = self.begun["origin"]
        return origin

    def portal(self, target: Any) -> Any:
        """Wrap an object of the run's event loop, such as the context, for use in a thread."""
        if sync.running_loop() is self.attempt.loop:
            raise BadInput(
                "graph.invoke or graph.stream in an async agent would hold up its event loop: "
                "await graph.ainvoke(…, **ctx.langgraph())"
            )
        return sync.portal(self.attempt, target)

    def as_left(self, found: CheckpointTuple) -> CheckpointTuple:
        """Remove the answers that later invocations have written onto the checkpoint."""
        if not self.over:
            return found
        writes = found.pending_writes or []
        asked = {task for task, channel, _ in writes if channel == INTERRUPT} | {_NOBODY}
        kept = [one for one in writes if one[0] not in asked or one[1] == INTERRUPT]
        return found._replace(pending_writes=kept)

    def as_begun(self, found: CheckpointTuple) -> tuple[CheckpointTuple, bool]:
        """Return the start of a call that has saved no step, and whether its input is in there."""
        assert self.begun is not None
        if self._fresh or self.over:
            return self.as_left(found), False
        writes = found.pending_writes or []
        now = _count(writes)
        if now["resumed"] == self.begun["resumed"]:
            return found, now["told"] > self.begun["told"]
        # That answer was used: the next question must not get it.
        kept = [one for one in writes if (one[0], one[1]) != (_NOBODY, RESUME)]
        return found._replace(pending_writes=kept), True

    def keeps(self, writes: Sequence[tuple[str, Any]]) -> bool:
        """Whether to save a task's writes; an error caused by the run leaving is not the task's."""
        errors = [one for channel, one in writes if channel == ERROR]
        stopped = any(isinstance(one, Stopped | asyncio.CancelledError) for one in errors)
        return not self.over and not (stopped and self.attempt.exit.stopping)

    def refuse_more(self) -> None:
        """Refuse a step beyond the point from which the run's code continued."""
        if self.over:
            error = Diverged(
                f"run {self.attempt.run.id}: invocation {self.id!r} of a graph went beyond the "
                "point from which the run's code continued. Nothing more of it was saved. Give "
                "changed code a new version. To continue with the original code: andon resume."
            )
            raise _on_loop(self.attempt, lambda: self.attempt.exit.stop("diverged", error))

    @property
    def drain_requested(self) -> bool:
        if super().drain_requested:
            return True
        attempt = self.attempt
        return attempt.exit.stopping and bool(_on_loop(attempt, attempt.exit.gives_way))

    @property
    def drain_reason(self) -> str | None:
        return super().drain_reason or f"its run leaves this process ({self.attempt.exit.reason})"


def _count(writes: Sequence[PendingWrite]) -> dict[str, int]:
    """Count the answers that tasks have received, and the writes of a Command to the thread."""
    resumes = [one for task, channel, one in writes if channel == RESUME and task != _NOBODY]
    told = [channel for task, channel, _ in writes if task == _NOBODY and channel != RESUME]
    resumed = sum(len(one) if isinstance(one, list) else 1 for one in resumes)
    return {"resumed": resumed, "told": len(told)}


def _on_loop(attempt: Attempt, function: Callable[[], Any]) -> Any:
    """Call a function on the run's event loop, from any thread."""
    if sync.running_loop() is attempt.loop:
        return function()
    done: concurrent.futures.Future[Any] = concurrent.futures.Future()
    attempt.loop.call_soon_threadsafe(lambda: done.set_result(function()))
    return done.result(_LOOP_SECONDS)


def here(config: RunnableConfig | None = None) -> Invocation:
    """Return the invocation whose node executes here; raises BadInput if nothing is journaled."""
    if sync.here()[1] is None:
        raise BadInput(
            "AndonMiddleware: expected a run of andon, found none: nothing would be journaled. "
            "Call the graph in an agent of andon (`await agent.run(…)`), or leave it out."
        )
    owner = (config or get_config())["configurable"].get("andon") or {}
    invocation: Invocation | None = owner.get("invocation")
    if invocation is None:
        raise BadInput("expected a graph that is called with **ctx.langgraph(); it was not")
    if invocation.begun is None:
        raise BadInput("expected a graph with checkpointer=AndonSaver(…); it has another, or none")
    return invocation


def task_key() -> str:
    """Return a key for an operation in a node of your own graph, the same on re-execution.

    `andon.current().step(ask, question, key=task_key())`
    """
    config = get_config()["configurable"]
    task = str(config["__pregel_task_id"])
    invocation = here()
    invocation.counts[task] += 1
    return f"{task}/{invocation.counts[task]}"

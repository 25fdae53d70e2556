"""The result of a streamed call that has a run id."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from agents.result import RunResultStreaming
from agents.run import DEFAULT_MAX_TURNS
from agents.run_internal.agent_runner_helpers import ensure_context_wrapper
from agents.run_internal.streaming import stream_step_items_to_queue

from andon.adapters.openai_agents.call import GUARDED, Called
from andon.errors import Stopped

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_SHOWN = ("input", "new_items", "raw_responses", "final_output", "context_wrapper")


class Streamed(RunResultStreaming):
    """The result of a streamed call; once its run is claimed, the SDK's own result fills it."""

    def __init__(self, call: Called) -> None:
        super().__init__(
            input=call.given if isinstance(call.given, str | list) else "",
            new_items=[],
            raw_responses=[],
            final_output=None,
            **{f"{one}_guardrail_results": [] for one in GUARDED},  # type: ignore[arg-type]
            context_wrapper=ensure_context_wrapper(call.options.get("context")),
            current_agent=call.agent,
            current_turn=0,
            max_turns=call.options.get("max_turns", DEFAULT_MAX_TURNS),
            _current_agent_output_schema=None,
            trace=None,
        )
        legs = call.legs = asyncio.Queue()
        driving = asyncio.ensure_future(call.carry_out())
        driving.add_done_callback(lambda _: legs.put_nowait(None))
        self._call = legs, driving

    async def stream_events(self) -> AsyncIterator[Any]:
        """Stream events like the SDK's; cancelling the listener releases the run."""
        driving = self._call[1]
        events: asyncio.Queue[Any] = asyncio.Queue()
        gone = asyncio.Event()
        forwarding = asyncio.ensure_future(self._forward(events, gone))
        forwarding.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                try:
                    yield event
                finally:
                    events.task_done()
        except asyncio.CancelledError:
            driving.cancel()
            raise
        finally:
            gone.set()
            await asyncio.wait({driving, forwarding})
            for one in (driving, forwarding):
                _ = one.cancelled() or one.exception()  # mark the exception as retrieved
        if driving.cancelled():
            return
        forwarding.result()
        found = driving.result()
        if not isinstance(found, RunResultStreaming):  # the run had already finished
            self.__dict__ |= {name: getattr(found, name) for name in _SHOWN}
            self.current_agent, self.is_complete = found.last_agent, True
            stream_step_items_to_queue(found.new_items, self._event_queue)
            while not self._event_queue.empty():
                yield self._event_queue.get_nowait()

    async def _forward(self, events: asyncio.Queue[Any], gone: asyncio.Event) -> None:
        """Forward the events, in a task of its own: the SDK ends a run whose listener is cancelled.

        The next event follows only when the last one was handled, so that `cancel("after_turn")`
        still takes effect in that turn.
        """
        legs, driving = self._call
        while (leg := await legs.get()) is not None:
            mode, self.__dict__ = self._cancel_mode, leg.__dict__
            self._call, self._cancel_mode = (legs, driving), mode
            # The run itself reports why the loop was stopped.
            with contextlib.suppress(Stopped, asyncio.CancelledError):
                async for event in leg.stream_events():
                    if not gone.is_set():
                        events.put_nowait(event)
                        dealt = asyncio.ensure_future(events.join())
                        left = asyncio.ensure_future(gone.wait())
                        await asyncio.wait({dealt, left}, return_when=asyncio.FIRST_COMPLETED)
                        dealt.cancel()
                        left.cancel()

    def cancel(self, mode: Any = "immediate") -> None:
        """Cancel like the SDK's; the run is released, and continues when it is called again."""
        if mode == "after_turn":
            super().cancel(mode)
        else:
            self._call[1].cancel()

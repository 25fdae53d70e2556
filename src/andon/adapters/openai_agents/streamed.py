"""The result of a streamed call with the id of a run."""

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
    """The result of a streamed call, from before its run is claimed: then it is the SDK's own."""

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
        legs, driving = self._call
        try:
            while (leg := await legs.get()) is not None:
                mode, self.__dict__ = self._cancel_mode, leg.__dict__
                self._call = legs, driving
                self._cancel_mode = mode
                with contextlib.suppress(Stopped):  # what it means is said below
                    async for event in leg.stream_events():
                        yield event
        finally:
            await asyncio.wait({driving})
        if driving.cancelled():
            return
        found = driving.result()
        if not isinstance(found, RunResultStreaming):  # of a run that was over
            self.__dict__ |= {name: getattr(found, name) for name in _SHOWN}
            self.current_agent, self.is_complete = found.last_agent, True
            stream_step_items_to_queue(found.new_items, self._event_queue)
            while not self._event_queue.empty():
                yield self._event_queue.get_nowait()

    def cancel(self, mode: Any = "immediate") -> None:
        """As the SDK's. The run is let go, and goes on when it is called again."""
        if mode == "after_turn":
            super().cancel(mode)
        else:
            self._call[1].cancel()

"""The model loop of an agent: ask a model, call its tools, receive steer messages from people."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from andon import transcript
from andon.core.journal import EntryKind, Mark
from andon.core.queue import Retry
from andon.core.values import value
from andon.runtime.attempt.attempt import Attempt
from andon.runtime.operations.operation import Operation
from andon.runtime.operations.steer_messages import EVENT, Steer
from andon.transcript import Call


class ModelLoop:
    """The part of a context that agents with a model use."""

    if TYPE_CHECKING:  # defined by the context class that inherits from this one

        async def event(self, name: str) -> Any: ...
        async def ask(
            self, question: str, value: Any = ..., /, *, key: str | None = ...
        ) -> Any: ...

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    async def model(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        name: str = "model",
        key: str | None = None,
        calls: Callable[[Any], Sequence[Call]] | None = None,
        retries: int | Retry = 0,
        timeout: float | None = None,  # noqa: ASYNC109 (it is journaled, unlike a scope's)
        **kwargs: Any,
    ) -> Any:
        """Ask a model; one commit holds its answer, as JSON, and the tool calls that it plans.

        `function` is the client's own: Anthropic Messages, OpenAI Chat or OpenAI Responses.
        `calls` extracts the planned calls from an answer of another form.
        """
        from andon.runtime.operations import tool_calls as tools

        asked = tools.CallOptions(name=name, key=key, calls=calls or transcript.calls)
        return await tools.model(self._attempt, function, args, kwargs, asked, retries, timeout)

    async def tool(
        self,
        call_id: str,
        name: str,
        arguments: Any,
        function: Callable[..., Any],
        /,
        *,
        effect: str | None = None,
        probe: Callable[..., Any] | None = None,
        undo: Callable[..., Any] | None = None,
        approve: bool | Callable[..., Any] = False,
        retries: int | Retry = 0,
        timeout: float | None = None,  # noqa: ASYNC109 (it is journaled, unlike a scope's)
    ) -> Any:
        """Call a tool that a model asked for, as an effect: once, even if a process dies meanwhile.

        `effect` is its kind, if the function declares none. `approve`: ask a person first.
        """
        from andon.runtime.effects.declaration import declaration
        from andon.runtime.operations import tool_calls as tools

        call = Call(call_id, name, arguments, 0)
        declared = declaration(function, effect, probe, undo, None)
        ask = self.ask if approve is True else approve or None
        return await tools.tool(self._attempt, ask, call, function, declared, retries, timeout)

    async def tools(
        self, answer: Any, toolbox: Any, /, *, approve: bool | Sequence[str] = False, **options: Any
    ) -> list[Any]:
        """Call every tool that a model's answer asks for; return results in the answer's format.

        `toolbox`: functions by name. `approve`: the tools that need a person's approval first.
        """
        from andon.runtime.operations import tool_calls as tools

        return await tools.each(self, answer, toolbox, approve, options)

    def langgraph(self, thread_id: str | None = None) -> dict[str, Any]:
        """Options for a LangGraph graph: `graph.invoke(given, **ctx.langgraph())`, ainvoke, stream.

        When the code calls the graph again after a crash, it continues from its last checkpoint.
        """
        from andon.adapters import langgraph

        return langgraph.begin(self._attempt, self, thread_id)

    async def steered(self) -> list[Steer]:
        """The messages that `andon steer` has sent since the last call; does not wait for any."""
        operation = Operation(self._attempt, EntryKind.VALUE, "steered", None, "")
        if operation.record is None:
            attempt = self._attempt
            await attempt.receive_messages()
            count = sum((one.kind, one.name) == ("event", EVENT) for one in attempt.waits.inbox)
            attempt.journal.append_soon(operation.draft(Mark.DONE, msgspec.json.encode(count)))
        else:
            count = value.decode(operation.record.body or "0")
        return [Steer(**await self.event(EVENT)) for _ in range(count)]

"""The SDK's Runner with the id of a run, and the redirection of the SDK through andon."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from agents.run import DEFAULT_MAX_TURNS, AgentRunner, set_default_agent_runner
from agents.run_internal import run_loop, tool_execution

from andon.adapters.openai_agents.call import Called
from andon.adapters.openai_agents.conversation import keeping
from andon.adapters.openai_agents.model import JournaledModel
from andon.adapters.openai_agents.scope import PLAIN, active, joining, within
from andon.adapters.openai_agents.stream import Streamed
from andon.adapters.openai_agents.tools import call_tool
from andon.errors import BadInput
from andon.runtime.sync import Portal, current

if TYPE_CHECKING:
    from agents import Agent, Model, RunConfig, RunHooks, RunState, Session, TResponseInputItem
    from agents.result import RunResult, RunResultStreaming
    from agents.run_config import RunOptions
    from agents.run_error_handlers import RunErrorHandlers
    from typing_extensions import Unpack

    from andon.adapters.openai_agents.scope import CallScope, Effects

    Input = str | list[TResponseInputItem] | RunState[Any]


class _Runner(AgentRunner):
    """The runner that the SDK calls: it joins a run when inside one, and is unchanged elsewhere."""

    def __init__(
        self, run_id: str | None = None, effects: Effects | None = None, *, asked: bool = False
    ) -> None:
        self.run_id, self.effects = run_id, effects or {}
        # True if the program made the call; the SDK makes others inside that one.
        self.asked = asked

    def _scope(self) -> CallScope | None:
        return joining(self.effects) if self.asked or active() is not None else None

    async def run(self, starting_agent: Any, input: Any, **options: Any) -> RunResult:  # noqa: A002
        scope = self._scope()
        if scope is None and self.run_id is not None:
            called = Called(self.run_id, self.effects, starting_agent, input, options)
            result: RunResult = await called.carry_out()
            return result
        with within(scope):
            return await PLAIN.run(starting_agent, input, **keeping(scope, options))

    def run_streamed(
        self,
        starting_agent: Any,
        input: Any,  # noqa: A002
        **options: Any,
    ) -> RunResultStreaming:
        scope = self._scope()
        if scope is None and self.run_id is not None:
            return Streamed(Called(self.run_id, self.effects, starting_agent, input, options))
        with within(scope):
            return PLAIN.run_streamed(starting_agent, input, **keeping(scope, options))


class Runner:
    """The SDK's Runner with the id of a run: a repeated call with the same id continues the run.

    `effects` declares tools by name: `{"find": "pure", "charge": andon.effect_of(probe=found)}`.
    Inside a run of andon no id is needed: the call joins that run.
    """

    @classmethod
    async def run(
        cls,
        starting_agent: Agent[Any],
        input: Input,  # noqa: A002 (the SDK's name)
        *,
        run_id: str | None = None,
        effects: Effects | None = None,
        **options: Unpack[RunOptions[Any]],
    ) -> RunResult:
        return await _runner(run_id, effects).run(starting_agent, input, **options)

    @classmethod
    def run_sync(
        cls,
        starting_agent: Agent[Any],
        input: Input,  # noqa: A002
        *,
        run_id: str | None = None,
        effects: Effects | None = None,
        **options: Unpack[RunOptions[Any]],
    ) -> RunResult:
        ctx = current()
        if isinstance(ctx, Portal):  # plain agent: the loop belongs to the run
            call = partial(cls.run, starting_agent, input, effects=effects, **options)
            result: RunResult = ctx._call("model", call, {})  # noqa: SLF001
            return result
        return _runner(run_id, effects).run_sync(starting_agent, input, **options)

    @classmethod
    def run_streamed(
        cls,
        starting_agent: Agent[Any],
        input: Input,  # noqa: A002
        context: Any = None,
        max_turns: int | None = DEFAULT_MAX_TURNS,
        hooks: RunHooks[Any] | None = None,
        run_config: RunConfig | dict[str, Any] | None = None,
        previous_response_id: str | None = None,
        auto_previous_response_id: bool = False,
        conversation_id: str | None = None,
        session: Session | None = None,
        *,
        error_handlers: RunErrorHandlers[Any] | None = None,
        run_id: str | None = None,
        effects: Effects | None = None,
    ) -> RunResultStreaming:
        return _runner(run_id, effects).run_streamed(
            starting_agent,
            input,
            context=context,
            max_turns=max_turns,
            hooks=hooks,
            run_config=run_config,
            previous_response_id=previous_response_id,
            auto_previous_response_id=auto_previous_response_id,
            conversation_id=conversation_id,
            session=session,
            error_handlers=error_handlers,
        )


def _runner(run_id: str | None, effects: Effects | None) -> _Runner:
    if run_id is None and current() is None:
        raise BadInput(
            "Runner: expected run_id=, found none: it names the run, so that the same call goes on "
            "with it after a crash. Inside a run of andon it is not needed."
        )
    return _Runner(run_id, effects, asked=True)


_loop: Any = run_loop
_tools: Any = tool_execution
_plain_model, _plain_settings = _loop.get_model, _loop.get_model_settings


def _get_model(agent: Any, config: Any) -> Model:
    scope, model = active(), _plain_model(agent, config)
    return model if scope is None else JournaledModel(model, _plain_settings(agent, config), scope)


def _get_settings(agent: Any, config: Any) -> Any:
    """Disable the loop's retries and timeout: the model applies them inside its step."""
    settings = _plain_settings(agent, config)
    return settings if active() is None else replace(settings, retry=None, timeout=None)


_tools._invoke_function_tool_with_metadata = call_tool  # noqa: SLF001
_loop.get_model, _loop.get_model_settings = _get_model, _get_settings
set_default_agent_runner(_Runner())

"""Agents: ordinary functions that run durably."""

import functools
import inspect
import json
import re
from collections.abc import Callable
from typing import Any, overload

import msgspec

from andon.core.limits import rate_of
from andon.core.queue import Retry
from andon.core.values import value
from andon.core.values.shape import ANY, OTHERS, shape_of, with_default
from andon.errors import BadInput
from andon.store.store import AgentRow

_NAME = re.compile(r"[\w.\-]{1,100}")
# `__name__` is left out on purpose: pytest mistakes a callable that has one for the test a mark is
# applied to, so `@pytest.mark.andon_crashtest(agent)` would mark the agent.
_ASSIGNED = ("__module__", "__qualname__", "__doc__")


class Agent:
    """A durable function with a name, a version, a retry policy and limits.

    The version is whatever the author declares, never a hash of the source: a run stays with the
    version it was started on, and only the author knows which changes matter to it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        version: str = "1",
        retries: int | Retry = 0,
        queue: str = "default",
        at_most: int | None = None,
        rate: str | None = None,
    ) -> None:
        self.function = function
        self.name = name or function.__name__
        self.version, self.queue = str(version), queue
        self.retry = retries if isinstance(retries, Retry) else Retry(retries)
        for what, text in (("name", self.name), ("version", self.version), ("queue", queue)):
            if not isinstance(text, str) or not _NAME.fullmatch(text):
                raise BadInput(f"agent {what} {text!r}: expected letters, digits, '_', '-', '.'")
        self.at_most = None if at_most is None else _count(self.name, at_most)
        self.rate: int | None = None
        self.per_seconds: float | None = None
        if rate is not None:
            self.rate, self.per_seconds = rate_of(rate)
        self.is_async = inspect.iscoroutinefunction(function)
        self.parameters = _parameters(self.name, function)
        self.result_decoder = value.result_decoder(function)
        functools.update_wrapper(self, function, _ASSIGNED)

    def __repr__(self) -> str:
        return f"<andon agent {self.name} version {self.version}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise BadInput(
            f"agent {self.name!r} cannot be called like a function: use "
            f"`await {self.name}.run(…)`, `client.start({self.name}, …)` or "
            f"`andon start {self.name}`"
        )

    @functools.cached_property
    def row(self) -> AgentRow:
        return AgentRow(
            name=self.name,
            version=self.version,
            queue=self.queue,
            parameters=json.dumps(self.parameters),
            types=json.dumps(_types(self.function)),
            retries=self.retry.retries,
            at_most=self.at_most,
            rate=self.rate,
            per_seconds=self.per_seconds,
        )

    async def run(self, *args: Any, id: str | None = None, **kwargs: Any) -> Any:  # noqa: A002
        """Run the agent durably inside this program and return its result.

        Uses the store named by ANDON_STORE or andon.toml. If a run with this `id` exists, it is
        continued, or its result is returned if it has finished.
        """
        from andon.runtime.client import Client

        async with Client() as client:
            return await client.run(self, *args, id=id, **kwargs)

    async def call(self, attempt: Any) -> Any:
        """Execute the function for one attempt."""
        from andon.runtime.context import Context

        arguments = self.arguments(await attempt.body_of(*attempt.start_body))
        context = Context(attempt)
        from andon.runtime.sync import call_in_thread, enter

        try:
            if self.is_async:
                enter(attempt, context)
                return await self.function(context, **arguments)
            return await call_in_thread(attempt, context, self.function, arguments)
        except SystemExit as error:  # would end the worker and every other run in it
            exited = RuntimeError(f"the agent called sys.exit({error.code!r})")
            raise exited.with_traceback(error.__traceback__) from None

    def arguments(self, body: str) -> dict[str, Any]:
        """Decode a run's stored arguments into what the function expects; raises BadInput."""
        given: dict[str, Any] = value.decode(body)
        for name in given.keys() & self.decoders.keys():
            try:
                given[name] = self.decoders[name](value.encode(given[name], name))
            except msgspec.ValidationError as error:
                raise BadInput(f"agent {self.name!r}: argument {name!r}: {error}") from None
        return given

    @functools.cached_property
    def decoders(self) -> dict[str, value.Decoder]:
        """Decoders, by name, for the arguments that are not plain JSON."""
        hints = value.annotations(self.function)
        found = {name: value.decoder_for(hint) for name, hint in hints.items() if name != "return"}
        return {name: decoder for name, decoder in found.items() if decoder is not None}


def _count(name: str, at_most: int) -> int:
    if isinstance(at_most, bool) or not isinstance(at_most, int) or at_most < 1:
        raise BadInput(f"agent {name!r}: at_most={at_most!r}: expected a whole number from 1 on")
    return at_most


def _parameters(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    """Describe the accepted parameters in the form the store registers."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise BadInput(f"agent {name!r}: its first parameter must be the context: (ctx, …)")
    found, extra = [], False
    for parameter in parameters[1:]:
        match parameter.kind:
            case inspect.Parameter.VAR_KEYWORD:
                extra = True
            case inspect.Parameter.VAR_POSITIONAL | inspect.Parameter.POSITIONAL_ONLY:
                raise BadInput(f"agent {name!r}: parameter {parameter} must be passable by name")
            case _:
                required = parameter.default is inspect.Parameter.empty
                found.append({"name": parameter.name, "required": required})
    return {"parameters": found, "extra": extra}


def _types(function: Callable[..., Any]) -> dict[str, Any]:
    """Describe the parameter types by name, with "**" for arguments that match no parameter."""
    hints, found = value.annotations(function), {}
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        shape = shape_of(hints[parameter.name]) if parameter.name in hints else ANY
        if parameter.default is not inspect.Parameter.empty:
            shape = with_default(shape, parameter.default)
        found[OTHERS if parameter.kind is parameter.VAR_KEYWORD else parameter.name] = shape
    if found.get(OTHERS, ANY) != ANY:
        return found  # keep ANY entries: "**" must not apply to those parameters
    return {name: shape for name, shape in found.items() if shape != ANY}


@overload
def agent(function: Callable[..., Any], /) -> Agent: ...
@overload
def agent(
    *,
    name: str | None = ...,
    version: str = ...,
    retries: int | Retry = ...,
    queue: str = ...,
    at_most: int | None = ...,
    rate: str | None = ...,
) -> Callable[[Callable[..., Any]], Agent]: ...


def agent(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function a durable agent: `@agent`, or `@agent(name=…, version=…, retries=…)`.

    The function may be async or plain. Its first parameter is the context; all others must be
    passable by name. Change `version` when a code change matters to runs in progress: they stay
    with the version they were started on. `at_most` limits how many of the agent's runs execute at
    once, and `rate`, such as "10/1m", how many begin in a time; both hold across all workers.
    """
    if function is not None:
        return Agent(function)
    return lambda wrapped: Agent(wrapped, **options)


def by_identity(agents: list[Agent]) -> dict[tuple[str, str], Agent]:
    """Index agents by name and version; raises BadInput if two agents have the same identity."""
    found: dict[tuple[str, str], Agent] = {}
    for one in agents:
        other = found.setdefault((one.name, one.version), one)
        if other is not one:
            raise BadInput(
                f"two agents are called {one.name!r} version {one.version!r}: "
                f"{_where(other)} and {_where(one)}. Rename one: @andon.agent(name=…)"
            )
    return found


def _where(one: Agent) -> str:
    code = getattr(one.function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(one.function)

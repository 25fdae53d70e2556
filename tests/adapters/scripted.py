"""A chat model of LangChain that follows a script, by the number of turns it is shown."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import Field

from andon.runtime.agent import Agent


def calls(*named: tuple[str, dict[str, Any]], ids: tuple[str, ...] = ()) -> AIMessage:
    made = [
        {"name": name, "args": args, "id": ids[n] if ids else f"call-{name}-{n}"}
        for n, (name, args) in enumerate(named)
    ]
    return AIMessage("", tool_calls=made)


class Scripted(BaseChatModel):
    """`asked`: the messages it was shown, for each call."""

    script: list[Any]
    asked: list[list[Any]] = Field(default_factory=list)
    at_word: Any = None  # called between two words of a stream

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _turn(self, messages: list[Any]) -> AIMessage:
        self.asked.append(messages)
        said = self.script[sum(isinstance(one, AIMessage) for one in messages)]
        return said.model_copy() if isinstance(said, AIMessage) else AIMessage(said)

    def _generate(self, messages: list[Any], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._turn(messages))])


class Streaming(Scripted):
    """The same, word by word."""

    streaming: bool = True

    def _stream(
        self, messages: list[Any], stop: Any = None, run_manager: Any = None, **_: Any
    ) -> Iterator[ChatGenerationChunk]:
        for word in self._turn(messages).text.split(" "):
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=f"{word} "))
            if run_manager is not None:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk
            if self.at_word is not None:
                self.at_word(word)

    async def _astream(
        self, messages: list[Any], stop: Any = None, run_manager: Any = None, **_: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for word in self._turn(messages).text.split(" "):
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=f"{word} "))
            if run_manager is not None:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk
            if self.at_word is not None:
                await self.at_word(word)


def agent_of(graph: Any, code: Any, *, plain: bool) -> Agent:
    """The same code as a sync and as an async agent: `code` is a generator of calls.

    It yields the input of each invocation, or the name of an event to wait for, and returns its
    result.
    """

    def step(ctx: Any, said: Any) -> tuple[Any, Any]:
        return (ctx.event, said) if isinstance(said, str) else (None, said)

    def run_plain(ctx: Any) -> Any:
        steps, found = code(), None
        while True:
            try:
                said = steps.send(found)
            except StopIteration as ended:
                return ended.value
            wait, given = step(ctx, said)
            found = wait(given) if wait else graph.invoke(given, **ctx.langgraph())

    async def run(ctx: Any) -> Any:
        steps, found = code(), None
        while True:
            try:
                said = steps.send(found)
            except StopIteration as ended:
                return ended.value
            wait, given = step(ctx, said)
            found = await (wait(given) if wait else graph.ainvoke(given, **ctx.langgraph()))

    return Agent(run_plain if plain else run, name="agent")


class Gate:
    """A place in a tool or a stream at which a test holds it, from any thread."""

    def __init__(self) -> None:
        self.reached, self.release = threading.Event(), threading.Event()

    def pass_plain(self, *_: Any) -> None:
        if not self.reached.is_set():
            self.reached.set()
            assert self.release.wait(30)

    async def pass_awaited(self, *_: Any) -> None:
        if not self.reached.is_set():
            self.reached.set()
            async with asyncio.timeout(30):
                while not self.release.is_set():
                    await asyncio.sleep(0.002)

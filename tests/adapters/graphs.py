"""Graphs and saves for the tests of LangGraph, also as programs that tests kill.

python graphs.py VERB URL THREAD [FILE]
"""

import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, empty_checkpoint
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from andon.adapters.langgraph import AndonSaver


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]
    said: int


def conversation(saver: Any, messages: int, size: int = 1024) -> Any:
    """Each step adds one message."""

    def say(state: State) -> dict[str, Any]:
        return {"messages": [("ai", os.urandom(size // 2).hex())], "said": state["said"] + 1}

    graph = StateGraph(State)
    graph.add_node("say", say)
    graph.add_edge(START, "say")
    graph.add_conditional_edges("say", lambda state: END if state["said"] >= messages else "say")
    return graph.compile(checkpointer=saver)


def of(thread: str, **more: Any) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, **more}, "recursion_limit": 10_000}


def checkpoint(values: dict[str, Any], version: str = "1") -> Checkpoint:
    made = empty_checkpoint()
    made["channel_values"] = values
    made["channel_versions"] = dict.fromkeys(values, version)
    return made


def save(saver: AndonSaver, config: RunnableConfig, values: dict[str, Any]) -> RunnableConfig:
    """A checkpoint after the one that `config` names."""
    made = checkpoint(values, saver.get_next_version(None, None))
    return saver.put(config, made, {"step": 1}, made["channel_versions"])


def one_after_the_other(saver: AndonSaver, file: Path) -> Any:
    """Two nodes that record their execution; the second one dies there the first time."""

    def first(state: State) -> dict[str, Any]:
        note(file, "first")
        return {"messages": [("ai", "first")]}

    def second(state: State) -> dict[str, Any]:
        note(file, "second")
        if file.read_text().count("second") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"messages": [("ai", "second")]}

    graph = StateGraph(State)
    graph.add_node("first", first)
    graph.add_node("second", second)
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    graph.add_edge("second", END)
    return graph.compile(checkpointer=saver)


class Model(BaseChatModel):
    """Calls the tool, then says that it is done; dies before it says so the first time."""

    file: Path

    @property
    def _llm_type(self) -> str:
        return "fake"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _generate(self, messages: list[Any], *_: Any, **__: Any) -> ChatResult:
        if not any(isinstance(one, ToolMessage) for one in messages):
            call = {"name": "charge", "args": {"amount": 5}, "id": "call-1"}
            answer = AIMessage("", tool_calls=[call])
        else:
            note(self.file, "asked")
            if self.file.read_text().count("asked") == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            answer = AIMessage("charged")
        return ChatResult(generations=[ChatGeneration(message=answer)])


def buyer(saver: AndonSaver, file: Path) -> Any:
    def charge(amount: int) -> str:
        """Charge the card."""
        note(file, "charge")
        return f"charged {amount}"

    return create_agent(Model(file=file), [charge], checkpointer=saver)


def note(file: Path, word: str) -> None:
    with file.open("a") as written:
        written.write(word + "\n")


def tell(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def go_on(graph: Any, thread: str) -> None:
    """Start the graph, or continue it from its checkpoint."""
    begun = graph.get_state(of(thread)).next
    given = None if begun else {"messages": [("user", "go")], "said": 0}
    for message in graph.invoke(given, of(thread), durability="sync")["messages"]:
        tell(message.content)


def keep_saving(saver: AndonSaver, thread: str) -> None:
    """Save growing checkpoints, and print each once it is saved, until the process is killed."""
    config = of(thread)
    messages: list[str] = []
    while True:
        messages.append(f"message {len(messages)} " + "x" * 2000)
        config = save(saver, config, {"messages": messages, "count": len(messages)})
        saver.put_writes(config, [("messages", messages[-1:])], "task", "path")
        tell(config["configurable"]["checkpoint_id"], len(messages))


def save_many(saver: AndonSaver, thread: str, times: int = 30) -> None:
    config = of(thread)
    for number in range(times):
        config = save(saver, config, {"numbers": list(range(number)), "text": "x" * 500})
        saver.put_writes(config, [("numbers", number)], f"{os.getpid()}-{number}")


def main() -> None:
    verb, url, thread, *rest = sys.argv[1:]
    with AndonSaver(url) as saver:
        if verb == "save":
            keep_saving(saver, thread)
        elif verb == "many":
            save_many(saver, thread)
        else:
            made = {"graph": one_after_the_other, "agent": buyer}[verb]
            go_on(made(saver, Path(rest[0])), thread)


if __name__ == "__main__":
    main()

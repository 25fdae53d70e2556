"""OpenAI Chat Completions: tool messages stand directly behind the message that asks for them."""

from typing import Any

import pytest
from tests.transcript.judge import refusal

from andon import transcript
from andon.transcript import UNKNOWN, Done

ASK = {"role": "user", "content": "go"}


def call(name: str, arguments: str = '{"n": 1}') -> dict[str, Any]:
    body = {"name": "charge", "arguments": arguments}
    return {"id": name, "type": "function", "function": body}


def said(*calls: Any, content: Any = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def tool(name: str, content: Any = "ok") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": name, "content": content}


def repaired(*talk: Any, **given: Any) -> list[Any]:
    found = transcript.repair(list(talk), format="chat", **given)
    assert refusal(found.messages, "chat") == ""
    return list(found.messages)


def test_a_call_is_answered_directly_behind_it() -> None:
    assert repaired(ASK, said(call("a"))) == [ASK, said(call("a")), tool("a", UNKNOWN)]
    assert repaired(ASK, said(call("a")), ASK)[2:] == [tool("a", UNKNOWN), ASK]


def test_parallel_calls_keep_their_existing_results() -> None:
    talk = [ASK, said(call("a"), call("b"), call("c")), tool("c"), ASK]
    found = repaired(*talk, ledger={"a": Done("paid")})
    assert found[2:] == [tool("c"), tool("a", "paid"), tool("b", UNKNOWN), ASK]


@pytest.mark.parametrize("role", ["system", "developer", "user"])
def test_a_message_in_between_moves_behind_the_results(role: str) -> None:
    note = {"role": role, "content": "be kind"}
    found = repaired(ASK, said(call("a"), call("b")), tool("a"), note, tool("b"))
    assert found[2:] == [tool("a"), tool("b"), note]


def test_a_result_before_its_call_moves_behind_it() -> None:
    assert repaired(ASK, tool("a"), said(call("a"))) == [ASK, said(call("a")), tool("a")]


def test_results_without_a_call_are_kept_as_text_behind_the_others() -> None:
    found = repaired(ASK, said(call("a")), tool("x", "42 EUR"), tool("a"), ASK)
    assert found[1:3] == [said(call("a")), tool("a")]
    assert found[3]["role"] == "user"
    assert found[3]["content"].endswith("\n42 EUR")


def test_a_second_copy_is_dropped_and_a_second_result_is_kept_as_text() -> None:
    found = repaired(ASK, said(call("a")), tool("a"), tool("a"), tool("a", "else"))
    assert found[2] == tool("a")
    assert found[3]["content"].endswith("\nelse")
    assert len(found) == 4


def test_a_call_that_broke_off_is_dropped_and_the_text_before_it_stays() -> None:
    assert repaired(ASK, said(call("a", '{"n": '), content="I pay")) == [
        ASK,
        {"role": "assistant", "content": "I pay"},
    ]
    assert repaired(ASK, said(call("a", '{"n": '))) == [ASK]
    assert repaired(ASK, said({"index": 0, "function": {"arguments": "{"}})) == [ASK]


def test_a_call_without_arguments_is_complete() -> None:
    assert repaired(ASK, said(call("a", "")))[-1] == tool("a", UNKNOWN)


def test_a_call_with_broken_arguments_that_was_answered_stays() -> None:
    talk = [ASK, said(call("a", '{"n": ')), tool("a", "these are no arguments")]
    assert transcript.repair(talk, format="chat").messages is talk


def test_one_id_used_twice_in_a_message_becomes_two() -> None:
    second = call("a", '{"n": 2}')
    found = repaired(ASK, said(call("a"), second), tool("a", "1"), tool("a", "2"))
    assert found[1] == said(call("a"), {**second, "id": "a_2"})
    assert found[2:] == [tool("a", "1"), tool("a_2", "2")]


def test_ids_that_are_used_again_in_another_turn_are_valid() -> None:
    talk = [ASK, said(call("a")), tool("a"), said(call("a", "{}")), tool("a", "2nd")]
    assert transcript.repair(talk, format="chat").messages is talk


def test_the_ledgers_result_of_one_call_is_never_given_to_another_with_the_same_id() -> None:
    talk = [ASK, said(call("a")), tool("a"), said(call("a", "{}"))]
    found = repaired(*talk, ledger={"a": Done("of the first")})
    assert found[-1] == tool("a_2", UNKNOWN)


def test_the_input_of_a_custom_tool_may_be_any_text() -> None:
    custom = {"id": "a", "type": "custom", "custom": {"name": "sql", "input": "select {"}}
    assert repaired(ASK, said(custom))[-1] == tool("a", UNKNOWN)


@pytest.mark.parametrize(
    ("talk", "place"),
    [
        ([ASK, {"role": "robot", "content": "x"}], 1),
        ([ASK, "text"], 1),
        ([ASK, {"role": "assistant", "tool_calls": {}}], 1),
        ([ASK, {"role": "user", "content": 7}], 1),
    ],
)
def test_a_transcript_that_cannot_be_repaired_is_refused_with_its_place(
    talk: list[Any], place: int
) -> None:
    with pytest.raises(transcript.Unrepairable, match="expected") as refused:
        transcript.repair(talk, format="chat")
    assert refused.value.message == place


@pytest.mark.parametrize(
    ("talk", "said_of_it"),
    [
        ([ASK, said(call("a")), tool("a"), tool("a")], "Duplicate value for 'tool_call_id' of 'a'"),
        ([ASK, said(call("a"), call("a")), tool("a")], "Duplicate value for 'tool_call_id' of 'a'"),
        ([ASK, said(content="x")], "empty array"),
        ([ASK, {"role": "assistant", "content": None}], "expected a string, got null"),
        ([ASK, said({"id": "", "function": {"name": "f"}})], "tool_calls[0].id"),
        ([ASK, said({"id": "a", "function": {"name": ""}})], "function.name"),
        ([{"role": "robot", "content": "x"}], "Supported values are"),
    ],
)
def test_the_server_refuses_what_the_provider_refuses(talk: list[Any], said_of_it: str) -> None:
    assert said_of_it in refusal(talk, "chat")
    assert transcript.check(talk, "chat")

"""OpenAI Responses: every call has its output, and reasoning the item that followed it."""

from typing import Any

import pytest
from tests.transcript.judge import refusal

from andon import transcript
from andon.transcript import IN_DOUBT, NOT_STARTED, UNKNOWN, Done

ASK = {"role": "user", "content": "go"}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "xyz"}
SAID = {
    "type": "message",
    "role": "assistant",
    "id": "msg_1",
    "status": "completed",
    "content": [{"type": "output_text", "text": "so", "annotations": []}],
}


def call(name: str, arguments: str = '{"n": 1}', **more: Any) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": f"fc_{name}",
        "call_id": name,
        "name": "charge",
        "arguments": arguments,
        **more,
    }


def output(name: str, said: Any = "ok", kind: str = "function_call") -> dict[str, Any]:
    return {"type": f"{kind}_output", "call_id": name, "output": said}


def repaired(*items: Any, **given: Any) -> list[Any]:
    found = transcript.repair(list(items), format="responses", **given)
    assert refusal(found.messages, "responses") == ""
    return list(found.messages)


def test_a_call_gets_its_output_behind_the_turn() -> None:
    found = repaired(ASK, REASONING, SAID, call("a"), call("b"), ASK, ledger={"a": Done("paid")})
    assert found[4:] == [call("b"), output("a", "paid"), output("b", UNKNOWN), ASK]


def test_parallel_calls_keep_their_existing_outputs_wherever_they_are() -> None:
    talk = [ASK, call("a"), call("b"), ASK, output("b")]
    assert repaired(*talk) == [ASK, call("a"), call("b"), output("a", UNKNOWN), ASK, output("b")]


def test_an_output_before_its_call_moves_behind_it() -> None:
    assert repaired(ASK, output("a"), call("a")) == [ASK, call("a"), output("a")]


def test_an_output_without_a_call_is_kept_as_text() -> None:
    found = repaired(ASK, output("gone", "42 EUR"))
    assert found[1]["role"] == "user"
    assert found[1]["content"].endswith("\n42 EUR")
    picture = [{"type": "input_image", "image_url": "http://x"}]
    assert repaired(ASK, output("gone", picture))[1]["content"][1:] == picture


def test_a_second_copy_is_dropped_and_a_second_output_is_kept_as_text() -> None:
    found = repaired(ASK, call("a"), output("a"), output("a"), output("a", "else"))
    assert found[:3] == [ASK, call("a"), output("a")]
    assert found[3]["content"].endswith("\nelse")


def test_reasoning_keeps_the_item_that_follows_it() -> None:
    found = repaired(ASK, call("a"), REASONING, output("a"), call("b"), output("b"))
    assert found == [ASK, call("a"), REASONING, call("b"), output("b"), output("a")]


def test_reasoning_is_dropped_with_the_call_that_broke_off_behind_it() -> None:
    assert repaired(ASK, REASONING, call("a", '{"n": ')) == [ASK]
    assert repaired(ASK, REASONING) == [ASK]
    half = {"type": "custom_tool_call", "call_id": "a", "name": "x", "input": "se"}
    assert repaired(ASK, REASONING, {**half, "status": "in_progress"}) == [ASK]


@pytest.mark.parametrize(
    "kind",
    [
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "mcp_call",
        "tool_search_call",
    ],
)
def test_the_providers_own_tools_need_no_output(kind: str) -> None:
    talk = [ASK, REASONING, {"type": kind, "id": "x_1", "status": "completed"}, SAID]
    assert refusal(talk, "responses") == ""
    assert transcript.repair(talk, format="responses").messages is talk


@pytest.mark.parametrize("kind", ["custom_tool_call", "local_shell_call", "shell_call"])
def test_other_calls_get_an_output_of_their_own_kind(kind: str) -> None:
    field = "id" if kind == "local_shell_call" else "call_id"
    found = repaired(ASK, {"type": kind, field: "a", "name": "x", "input": "select {"})
    assert (found[2]["type"], found[2][field]) == (f"{kind}_output", "a")
    assert UNKNOWN in str(found[2]["output"])


def test_a_shell_command_that_ended_has_its_exit_code() -> None:
    asked = {"type": "shell_call", "call_id": "a", "action": {"commands": ["ls"]}}
    [ended] = repaired(ASK, asked, ledger={"a": Done("x.txt")})[2]["output"]
    assert (ended["stdout"], ended["outcome"]["exit_code"]) == ("x.txt", 0)


@pytest.mark.parametrize("kind", ["computer_call", "apply_patch_call"])
def test_a_call_without_a_truthful_output_is_refused_unless_the_ledger_has_one(kind: str) -> None:
    talk = [ASK, {"type": kind, "call_id": "a"}]
    with pytest.raises(transcript.Unrepairable, match=r"message 1: .*policy='restart'") as refused:
        repaired(*talk, ledger={"a": IN_DOUBT})
    assert refused.value.message == 1
    assert repaired(*talk, policy="restart") == [ASK]
    whole = {"type": f"{kind}_output", "call_id": "a", "output": {"x": 1}}
    assert repaired(*talk, ledger={"a": Done(whole)})[2] == whole


def test_an_output_of_another_kind_is_no_answer() -> None:
    custom = {"type": "custom_tool_call", "call_id": "a", "name": "x", "input": "y"}
    found = repaired(ASK, custom, output("a", "42 EUR"))
    assert found[2] == output("a", UNKNOWN, kind="custom_tool_call")
    assert found[3]["content"].endswith("\n42 EUR")


def test_a_turn_that_was_stored_twice_is_kept_once() -> None:
    found = repaired(ASK, REASONING, SAID, call("a"), REASONING, SAID, call("a"), output("a"))
    assert found == [ASK, REASONING, SAID, call("a"), output("a")]


def test_an_id_that_is_used_again_is_replaced_together_with_its_output() -> None:
    again = call("a", '{"n": 2}', id="fc_2")
    found = repaired(ASK, call("a"), output("a"), again, output("a", "2nd"))
    assert (found[3]["call_id"], found[4]) == ("a_2", output("a_2", "2nd"))


def test_an_item_given_by_reference_is_left_to_the_server() -> None:
    talk = [ASK, {"type": "item_reference", "id": "fc_x"}, output("x")]
    assert transcript.repair(talk, format="responses").messages is talk


def test_a_call_to_be_run_is_listed() -> None:
    found = transcript.repair([ASK, REASONING, call("a")], ledger={"a": NOT_STARTED})
    assert [(one.id, one.arguments, one.message) for one in found.to_run] == [("a", {"n": 1}, 2)]
    assert list(found.messages) == [ASK, REASONING, call("a")]


@pytest.mark.parametrize(
    ("talk", "said_of_it"),
    [
        ([ASK, call("a"), output("a"), output("a")], "Duplicate function_call_output for call_id"),
        ([ASK, SAID, SAID], "Duplicate item found with id msg_1"),
        ([ASK, call("a"), call("a", id="x"), output("a")], "Duplicate function_call for call_id"),
        ([ASK, REASONING], "without its required following item"),
        ([ASK, REASONING, ASK], "without its required following item"),
        (
            [ASK, {"type": "custom_tool_call", "call_id": "a"}],
            "output found for custom tool call a",
        ),
        ([ASK, output("a", kind="shell_call")], "No tool call found for shell call output"),
        ([ASK, call("")], "Missing required parameter"),
        ([{"content": "x"}], "Invalid value"),
    ],
)
def test_the_server_refuses_what_the_provider_refuses(talk: list[Any], said_of_it: str) -> None:
    assert said_of_it in refusal(talk, "responses")
    assert transcript.check(talk, "responses")

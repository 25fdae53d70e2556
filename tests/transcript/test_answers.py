"""A model's answer in the three formats: its turn, its calls, and the messages that follow."""

from typing import Any

import pytest

from andon import transcript
from andon.errors import BadInput
from andon.transcript import Call, Done

ANTHROPIC: Any = {
    "type": "message",
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "I charge, "},
        {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}},
        {"type": "tool_use", "id": "a", "name": "charge", "input": {"eur": 1}},
        {"type": "text", "text": "then mail."},
        {"type": "tool_use", "id": "b", "name": "mail", "input": {}},
    ],
}
CHAT: Any = {
    "choices": [
        {
            "message": {
                "role": "assistant",
                "content": "I charge, then mail.",
                "tool_calls": [
                    {
                        "id": "a",
                        "type": "function",
                        "function": {"name": "charge", "arguments": '{"eur": 1}'},
                    },
                    {"id": "b", "type": "function", "function": {"name": "mail", "arguments": ""}},
                ],
            }
        }
    ]
}
RESPONSES: Any = {
    "output": [
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I charge, then mail."}],
        },
        {"type": "function_call", "call_id": "a", "name": "charge", "arguments": '{"eur": 1}'},
        {"type": "function_call", "call_id": "b", "name": "mail", "arguments": "{}"},
    ]
}
ALL = pytest.mark.parametrize("answer", [ANTHROPIC, CHAT, RESPONSES])


class ModelAnswer:
    """Answers like the objects of the providers' clients."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def model_dump(self, **_: Any) -> Any:
        return self.held


@ALL
def test_only_the_calls_for_this_program_are_listed(answer: Any) -> None:
    found = [(one.id, one.name, one.arguments) for one in transcript.calls(answer)]
    assert found == [("a", "charge", {"eur": 1}), ("b", "mail", {})]
    assert transcript.calls(ModelAnswer(answer)) == transcript.calls(answer)


@ALL
def test_the_text_of_an_answer_is_found(answer: Any) -> None:
    assert transcript.text(answer) == "I charge, then mail."


@ALL
def test_turn_and_results_are_a_transcript_that_the_provider_accepts(answer: Any) -> None:
    hello: list[Any] = [{"role": "user", "content": "hello"}]
    if answer is ANTHROPIC:  # the provider would have put its own tool's result there
        kept = [one for one in answer["content"] if one["type"] != "server_tool_use"]
        answer = {"content": kept}
    found = [(one, Done({"ok": one.id})) for one in transcript.calls(answer)]
    messages = hello + transcript.turn(answer) + transcript.results(answer, found)
    assert transcript.check(messages) == []
    assert transcript.check(messages[:-1]) != []


def test_an_error_is_marked_where_the_format_can() -> None:
    [message] = transcript.results(
        ANTHROPIC, [(Call("a", "charge", {}, 0), Done("no", error=True))]
    )
    [block] = message["content"]
    assert block == {"type": "tool_result", "tool_use_id": "a", "content": "no", "is_error": True}


def test_arguments_that_broke_off_stay_text() -> None:
    broken = {
        "output": [{"type": "function_call", "call_id": "a", "name": "x", "arguments": '{"e'}]
    }
    [call] = transcript.calls(broken)
    assert call.arguments == '{"e'


@pytest.mark.parametrize("answer", [{"text": "hello"}, "hello", None, {"choices": []}])
def test_a_value_that_is_no_answer_is_refused(answer: Any) -> None:
    with pytest.raises(BadInput, match="expected a model's answer"):
        transcript.calls(answer)

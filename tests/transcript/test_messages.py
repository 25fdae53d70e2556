"""Anthropic Messages: the faults found, the repairs made, and the parts left alone."""

from typing import Any

import pytest
from tests.transcript.judge import refusal

from andon import transcript
from andon.testing.model import messages as server
from andon.testing.model.wire import ModelRefusal
from andon.transcript import IN_DOUBT, NOT_STARTED, UNKNOWN, Change, Done

ASK = {"role": "user", "content": "go"}
THINKING = {"type": "thinking", "thinking": "hm", "signature": "sig"}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def use(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": "charge", "input": {"n": 1}, **more}


def said(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def result(name: str, content: Any = "ok") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": name, "content": content}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def repaired(*talk: Any, **given: Any) -> list[Any]:
    found = transcript.repair(list(talk), format="anthropic", **given)
    if not found.to_run:
        assert refusal(found.messages, "anthropic") == ""
    return list(found.messages)


# ── calls without results ─────────────────────────────────────────────────────────────────────


def test_a_call_at_the_end_is_answered_in_a_new_message() -> None:
    assert repaired(ASK, said(use("a"))) == [ASK, said(use("a")), user(result("a", UNKNOWN))]


def test_a_result_moves_to_the_front_of_the_next_message() -> None:
    found = repaired(ASK, said(use("a")), user(text("well?")))
    assert found[2] == user(result("a", UNKNOWN), text("well?"))
    found = repaired(ASK, said(use("a")), ASK)
    assert found[2] == user(result("a", UNKNOWN), text("go"))


def test_parallel_calls_keep_their_existing_results() -> None:
    found = repaired(
        ASK,
        said(use("a"), use("b"), use("c")),
        user(result("b"), text("and?")),
        ledger={"a": Done("paid"), "c": IN_DOUBT},
    )
    assert found[2] == user(
        result("b"), result("a", "paid"), result("c", UNKNOWN), text("and?")
    )  # fmt: skip


def test_results_of_one_turn_are_gathered_in_one_message() -> None:
    found = repaired(ASK, said(use("a"), use("b")), user(result("a")), user(result("b")))
    assert found == [ASK, said(use("a"), use("b")), user(result("a"), result("b"))]


def test_an_assistant_message_in_between_does_not_part_a_call_from_its_result() -> None:
    found = repaired(ASK, said(use("a")), said(text("hm")), user(result("a")))
    assert found == [ASK, said(use("a")), user(result("a")), said(text("hm"))]


def test_a_system_message_in_between_moves_behind_the_results() -> None:
    note = {"role": "system", "content": "be kind"}
    found = repaired(ASK, said(use("a")), note, user(result("a")))
    assert found == [ASK, said(use("a")), user(result("a")), note]


def test_a_result_behind_a_text_moves_to_the_front() -> None:
    found = repaired(ASK, said(use("a")), user(text("here:"), result("a")))
    assert found[2] == user(result("a"), text("here:"))


def test_a_result_from_the_ledger_may_be_blocks_an_error_or_any_value() -> None:
    image = [{"type": "image", "source": {"type": "url", "url": "http://x"}}]
    calls = said(use("a"), use("b"), use("c"))
    ledger = {"a": Done(image), "b": Done("no funds", error=True), "c": Done({"n": 1})}
    blocks = repaired(ASK, calls, ledger=ledger)[2]["content"]
    assert blocks[0]["content"] == image
    assert (blocks[1]["content"], blocks[1]["is_error"]) == ("no funds", True)
    assert blocks[2]["content"] == '{"n": 1}'


def test_an_unknown_outcome_is_not_marked_as_an_error() -> None:
    [block] = repaired(ASK, said(use("a")))[2]["content"]
    assert "is_error" not in block


# ── results without calls, and too many ───────────────────────────────────────────────────────


def test_a_result_without_a_call_is_kept_as_text() -> None:
    [message] = repaired(user(result("gone", "42 EUR"), text("go on")))
    kept, rest = message["content"]
    assert kept["type"] == "text"
    assert kept["text"].endswith("\n42 EUR")
    assert "not an instruction" in kept["text"]
    assert rest == text("go on")


def test_nested_content_of_a_result_without_a_call_stays_whole() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "http://x"}}
    [message] = repaired(user(result("gone", [text("see"), image])))
    assert message["content"][1:] == [text("see"), image]


def test_a_block_inside_a_result_is_never_taken_for_a_call() -> None:
    talk = [ASK, said(use("a")), user(result("a", [text('{"type": "tool_use", "id": "b"}')]))]
    assert repaired(*talk) == talk


def test_a_second_copy_of_a_result_is_dropped_and_another_result_is_kept_as_text() -> None:
    found = repaired(ASK, said(use("a")), user(result("a"), result("a"), result("a", "else")))
    first, second = found[2]["content"]
    assert first == result("a")
    assert second["text"].endswith("\nelse")


def test_a_real_result_replaces_a_stand_in() -> None:
    found = repaired(ASK, said(use("a")), user(result("a", UNKNOWN)), user(result("a", "late")))
    assert found == [ASK, said(use("a")), user(result("a", "late"))]


# ── ids ───────────────────────────────────────────────────────────────────────────────────────


def test_a_message_that_was_stored_twice_is_kept_once() -> None:
    found = repaired(ASK, said(use("a")), said(use("a")), user(result("a")))
    assert found == [ASK, said(use("a")), user(result("a"))]


def test_an_id_that_is_used_again_is_replaced_together_with_its_result() -> None:
    again = use("a", input={"n": 2})
    found = repaired(ASK, said(use("a")), user(result("a")), said(again), user(result("a", "2nd")))
    assert found[3:] == [said({**again, "id": "a_2"}), user(result("a_2", "2nd"))]


def test_the_ledgers_result_of_one_call_is_never_given_to_another_with_the_same_id() -> None:
    talk = [ASK, said(use("a")), user(result("a")), said(use("a", input={"n": 2}))]
    found = repaired(*talk, ledger={"a": Done("of the first")})
    assert found[-1] == user(result("a_2", UNKNOWN))


# ── remains of a broken stream ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "remnant",
    [
        use("a", input='{"n": '),
        use("a", input={}, partial_json='{"n": ', index=1),
        {"type": "tool_use", "id": "", "name": "charge", "input": {}},
        {"type": "input_json_delta", "partial_json": '{"n'},
        {"type": "thinking", "thinking": "unfinish"},
        text(""),
        text(" \n"),
    ],
)
def test_a_block_that_broke_off_is_dropped(remnant: dict[str, Any]) -> None:
    assert repaired(ASK, said(text("I pay"), remnant)) == [ASK, said(text("I pay"))]


def test_streamed_arguments_that_are_complete_are_kept() -> None:
    streamed = use("a", input={}, partial_json='{"n": 1}', index=1)
    assert repaired(ASK, said(streamed))[1] == said(use("a"))


def test_a_call_that_broke_off_and_is_known_to_have_started_stays() -> None:
    found = repaired(ASK, said(use("a", input='{"n": ')), ledger={"a": IN_DOUBT})
    assert found[1] == said(use("a", input={"INVALID_JSON": '{"n": '}))
    assert found[2] == user(result("a", UNKNOWN))


def test_white_space_at_the_end_of_an_unfinished_turn_is_dropped() -> None:
    assert repaired(ASK, said(text("I will now ")))[-1] == said(text("I will now"))


def test_an_unfinished_turn_without_remaining_content_is_dropped() -> None:
    assert repaired(ASK, said(THINKING, use("a", input='{"n'))) == [ASK]


# ── thinking, and the provider's own tools ────────────────────────────────────────────────────


def test_thinking_stays_before_its_call_untouched() -> None:
    talk = [ASK, said(THINKING, text("so"), use("a"), use("b", input='{"'))]
    found = transcript.repair(talk, format="anthropic").messages
    assert found[1]["content"][0] is not None
    assert found[1] == said(THINKING, text("so"), use("a"))
    thinking = {"type": "enabled", "budget_tokens": 1024}
    body = {"model": "m", "max_tokens": 1, "messages": found, "thinking": thinking}
    assert server.check(body) == 1


def search(name: str) -> dict[str, Any]:
    return {"type": "server_tool_use", "id": name, "name": "web_search", "input": {"q": "x"}}


def searched(name: str) -> dict[str, Any]:
    return {"type": "web_search_tool_result", "tool_use_id": name, "content": []}


@pytest.mark.parametrize(
    "talk",
    [
        [ASK, said(search("s"), searched("s"), text("found")), ASK],
        [ASK, said(search("s"))],  # a turn that the provider paused
        [ASK, said(search("s"), use("a")), user(result("a")), said(searched("s"), text("x")), ASK],
    ],
)
def test_the_providers_own_tools_need_no_result(talk: list[Any]) -> None:
    assert refusal(talk, "anthropic") == ""
    assert transcript.repair(talk, format="anthropic").messages is talk


def test_a_provider_tool_call_that_will_not_be_answered_is_dropped() -> None:
    assert repaired(ASK, said(text("hm"), search("s")), ASK) == [ASK, said(text("hm")), ASK]
    assert repaired(ASK, said(searched("s"), text("hm")), ASK) == [ASK, said(text("hm")), ASK]
    twice = said(search("s"), text("hm"), search("s"))
    assert repaired(ASK, twice, ASK) == [ASK, said(text("hm")), ASK]


# ── beyond repair ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("talk", "place"),
    [
        ([ASK, user(text("x"), use("a"))], (1, 1)),
        ([ASK, {"role": "tool", "content": "x"}], (1, None)),
        ([ASK, {"role": "user"}], (1, None)),
        ([ASK, user("not a block")], (1, 0)),
        ([said(text(" "))], (0, None)),
    ],
)
def test_a_transcript_that_cannot_be_repaired_is_refused_with_its_place(
    talk: list[Any], place: Any
) -> None:
    with pytest.raises(transcript.Unrepairable, match=r"expected .*\. \w+") as refused:
        repaired(*talk)
    assert (refused.value.message, refused.value.block) == place


def test_notes_say_what_was_changed_and_where() -> None:
    talk = [ASK, said(text(""), use("a"), use("b")), user(text("x"), result("b"))]
    found = transcript.repair(talk, format="anthropic", ledger={"a": NOT_STARTED})
    assert [(note.change, note.message, note.block) for note in found.notes] == [
        (Change.REMOVED, 1, 0),
        (Change.MOVED, 2, 1),
    ]
    [call] = found.to_run
    assert (call.id, call.name, call.arguments, call.message) == ("a", "charge", {"n": 1}, 1)


# ── the server is as strict ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("talk", "said_of_it"),
    [
        ([ASK, said(use("a"), use("a")), user(result("a"))], "`tool_use` ids must be unique"),
        ([ASK, said(text("")), ASK], "text content blocks must be non-empty"),
        ([ASK, said(), ASK], "all messages must have non-empty content"),
        ([ASK, said(text("x ")),], "cannot end with trailing whitespace"),
        ([ASK, said(THINKING), ASK], "final block in an assistant message cannot be `thinking`"),
        ([ASK, said({"type": "thinking", "thinking": "x"}, text("x")), ASK], "signature: Field re"),
        ([ASK, said({"type": "input_json_delta"}), ASK], "Input tag 'input_json_delta'"),
        ([ASK, said(use("a", input="{")), ASK], "Input should be a valid dictionary"),
        ([ASK, said(use("a", index=0)), ASK], "index: Extra inputs are not permitted"),
        ([user(use("a"))], "can only be in `assistant` messages"),
        ([ASK, said(result("a"))], "can only be in `user` messages"),
        ([ASK, said(search("s")), ASK], "without a corresponding `web_search_tool_result`"),
        ([ASK, said(searched("s"), text("x"))], "must have a corresponding `server_tool_use`"),
        ([{"role": "tool", "content": "x"}], 'Unexpected role "tool"'),
        ([{"role": "user"}], "Input should be a valid list"),
    ],
)  # fmt: skip
def test_the_server_refuses_what_the_provider_refuses(talk: list[Any], said_of_it: str) -> None:
    assert said_of_it in refusal(talk, "anthropic")
    assert transcript.check(talk, "anthropic")


def test_the_server_requires_thinking_while_tools_are_in_use() -> None:
    body = {"model": "m", "max_tokens": 1, "thinking": {"type": "enabled"}}
    with pytest.raises(ModelRefusal, match="Expected `thinking`"):
        server.check({**body, "messages": [ASK, said(use("a")), user(result("a"))]})

"""A history that ended in a call is completed, and every provider accepts it."""

from typing import Any

import pytest
from pydantic_ai import Agent, ModelMessagesTypeAdapter
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from tests.adapters.buyers import FORMS, model_of

from andon.adapters.pydantic_ai import repair
from andon.errors import BadInput
from andon.testing import FakeModel
from andon.transcript import IN_DOUBT, NOT_EXECUTED, NOT_STARTED, UNKNOWN, Done

LEDGER: Any = {"c1": Done("ch_1"), "c2": IN_DOUBT, "c3": NOT_STARTED}


def calls(*names: str) -> ModelResponse:
    wanted = [ToolCallPart("work", {}, name) for name in names]
    return ModelResponse(parts=[TextPart("One moment."), *wanted])


def person(text: str) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(text)])


def results_shown(messages: Any) -> dict[str, Any]:
    parts = [part for message in messages for part in message.parts]
    return {p.tool_call_id: p.content for p in parts if isinstance(p, ToolReturnPart)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("then", ["", "Are you there?"])
async def test_a_killed_conversation_continues(form: str, then: str, answered: bool) -> None:
    """The last answer was saved, or with the result of one of its calls; then a person speaks."""
    history: list[ModelMessage] = [person("buy"), calls("c1", "c2", "c3")]
    if answered:
        history.append(ModelRequest(parts=[ToolReturnPart("work", "so it is", "c2")]))
    if then:
        history.append(person(then))
    whole = repair(history, ledger=LEDGER)
    unknown = "so it is" if answered else UNKNOWN
    assert results_shown(whole) == {"c1": "ch_1", "c2": unknown, "c3": NOT_EXECUTED}
    outcomes = {
        p.tool_call_id: p.outcome for m in whole for p in m.parts if isinstance(p, ToolReturnPart)
    }
    unknown = "success" if answered else "interrupted"
    assert outcomes == {"c1": "success", "c2": unknown, "c3": "interrupted"}
    assert repair(whole, ledger=LEDGER) is whole
    with FakeModel(lambda _: "I am here.") as fake:
        one = Agent(model_of(form, fake.url))
        found = await one.run("And now?", message_history=whole)
        assert found.output == "I am here."
        assert [request.status for request in fake.requests] == [200]


def test_a_complete_history_is_returned_unchanged() -> None:
    result = ModelRequest(parts=[ToolReturnPart("work", "ok", "c1")])
    given: Any = ([], [person("hello")], [person("buy"), calls("c1"), result])
    for history in given:
        assert repair(history) is history


def test_a_call_that_has_not_started_may_stay_open_at_the_end() -> None:
    history: Any = [person("buy"), calls("c1", "c3"), person("so?"), calls("c1", "c3")]
    found = repair(history, ledger=LEDGER, policy="journal")
    assert [set(results_shown([message])) for message in found] == [
        set(),
        set(),
        {"c1", "c3"},  # the model has said something since
        set(),
        {"c1"},
    ]


def test_restart_removes_a_turn_if_none_of_its_calls_can_have_acted() -> None:
    first = person("buy")
    thinking = ModelResponse(parts=[ThinkingPart("Hm."), ToolCallPart("work", {}, "c3")])
    assert repair([first, thinking], ledger=LEDGER, policy="restart") == [first]
    mixed = repair([first, calls("c2", "c3")], ledger=LEDGER, policy="restart")
    assert [part.part_kind for part in mixed[1].parts] == ["text", "tool-call"]
    assert results_shown(mixed) == {"c2": UNKNOWN}


def test_a_message_that_replaced_the_result_of_a_tool_is_no_result() -> None:
    ledger: Any = {
        "c1": Done({"pydantic_ai": {"kind": "model_retry", "message": "at most 7"}}),
        "c2": Done({"pydantic_ai": {"kind": "approval_required", "metadata": None}}),
        "c3": Done("Undone.", error=True),
    }
    found = repair([person("buy"), calls("c1", "c2", "c3")], ledger=ledger)
    assert results_shown(found) == {"c1": "at most 7", "c2": NOT_EXECUTED, "c3": "Undone."}
    assert ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(list(found)))


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(BadInput, match="one of journal"):
        repair([], policy="perhaps")

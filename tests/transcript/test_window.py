"""A shortened transcript is accepted by the provider, and keeps the requested part."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.transcript import talks
from tests.transcript.judge import refusal

from andon import transcript
from andon.errors import BadInput
from andon.testing import FakeModel


@given(talks.talks, st.integers(0, 12), st.sampled_from(talks.FORMATS))
def test_a_shortened_transcript_is_accepted(talk: list[talks.Turn], keep: int, form: str) -> None:
    whole = talks.written(talk, form)
    found = list(transcript.shorten(whole, keep, format=form))
    begin = [one for one in whole[:2] if one.get("content") in ("begin", "be kind")]
    assert refusal(found, form) == ""
    assert transcript.check(found, form) == []
    assert found[: len(begin)] == begin
    assert len(found) <= len(begin) + keep or found == whole
    assert found[len(begin) :] == whole[len(whole) - (len(found) - len(begin)) :]


@given(talks.talks, st.sampled_from(talks.FORMATS))
def test_a_transcript_that_fits_stays_the_same_object(talk: list[talks.Turn], form: str) -> None:
    whole = talks.written(talk, form)
    assert transcript.shorten(whole, len(whole), format=form) is whole


def test_reasoning_stays_with_the_item_that_follows_it() -> None:
    turn = talks.Turn(True, True, 2, False, False, False, False, 0)
    whole = talks.written([turn] * 3, "responses")
    for keep in range(len(whole)):
        found = transcript.shorten(whole, keep, format="responses")
        assert len(found) == 1 or found[1]["type"] == "reasoning"


def test_no_more_messages_are_dropped_than_necessary() -> None:
    turn = talks.Turn(False, False, 1, False, False, False, False, 0)
    whole = talks.written([turn] * 4, "chat")
    found = transcript.shorten(whole, 5)
    assert list(found) == [*whole[:2], *whole[-4:]]


def test_a_broken_transcript_is_refused() -> None:
    turn = talks.Turn(False, False, 1, False, False, False, False, 0)
    with pytest.raises(BadInput, match="Repair it first"):
        transcript.shorten(talks.written([turn], "anthropic")[:-1], 1)
    with pytest.raises(BadInput, match="keep=-1"):
        transcript.shorten(talks.written([turn], "anthropic"), -1)


def ask(form: str, url: str, talk: list[Any]) -> Any:
    anthropic, openai = pytest.importorskip("anthropic"), pytest.importorskip("openai")
    if form == "anthropic":
        client = anthropic.Anthropic(base_url=url, api_key="fake")
        return client.messages.create(model="m", max_tokens=9, messages=talk)
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="fake")
    if form == "chat":
        return client.chat.completions.create(model="m", messages=talk)
    return client.responses.create(model="m", input=talk)


@pytest.mark.parametrize("form", talks.FORMATS)
def test_a_full_context_window_is_recognised_by_the_providers_error(form: str) -> None:
    talk = [{"role": "user", "content": "long " * 200}]
    with FakeModel(["never"], window=200) as fake, pytest.raises(Exception, match="400") as raised:
        ask(form, fake.url, talk)
    assert transcript.too_long(raised.value)
    assert not transcript.too_long(ValueError("something else"))

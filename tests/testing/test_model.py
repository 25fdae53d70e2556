"""The fake model speaks the providers' protocols: their own clients accept it and are refused."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from andon.testing import FakeModel, call
from andon.testing.model import chat, messages, responses

HEADERS = {"authorization": "Bearer fake", "anthropic-version": "2023-06-01"}
SCRIPT: list[Any] = [
    call("charge", amount=10, to="Zoë"),
    [call("mail"), call("log", text="x" * 40)],
    "All done.",
]
TEXT = "All done."
HELLO = {"role": "user", "content": "hello"}


@pytest.fixture
def model() -> Iterator[FakeModel]:
    with FakeModel(SCRIPT) as found:
        yield found


@pytest.fixture(scope="session")
def openai() -> Any:
    """The provider's own package; importing it takes a second."""
    return pytest.importorskip("openai")


@pytest.fixture(scope="session")
def anthropic() -> Any:
    return pytest.importorskip("anthropic")


@pytest.fixture
def open_ai(model: FakeModel, openai: Any) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{model.url}/v1", api_key="fake", max_retries=0) as client:
        yield client


@pytest.fixture
def claude(model: FakeModel, anthropic: Any) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=model.url, api_key="fake", max_retries=0) as client:
        yield client


# ── whole conversations, plain and streamed ───────────────────────────────────────────────────


def chat_turn(client: Any, talk: list[Any], *, stream: bool) -> Any:
    if not stream:
        return client.chat.completions.create(model="m", messages=talk).choices[0].message
    with client.chat.completions.stream(model="m", messages=talk) as events:
        for _ in events:
            pass
        return events.get_final_completion().choices[0].message


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_in_chat_completions(open_ai: Any, model: FakeModel, stream: bool) -> None:
    talk: list[Any] = [HELLO]
    called = []
    while True:
        message = chat_turn(open_ai, talk, stream=stream)
        if not message.tool_calls:
            break
        talk.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        for one in message.tool_calls:
            called.append((one.function.name, json.loads(one.function.arguments)))
            talk.append({"role": "tool", "tool_call_id": one.id, "content": "ok"})
    assert called == [
        ("charge", {"amount": 10, "to": "Zoë"}),
        ("mail", {}),
        ("log", {"text": "x" * 40}),
    ]
    assert message.content == TEXT
    assert [request.turn for request in model.requests] == [0, 1, 2]


def response_to(client: Any, *, stream: bool, **given: Any) -> Any:
    if not stream:
        return client.responses.create(model="m", **given)
    with client.responses.stream(model="m", **given) as events:
        for _ in events:
            pass
        return events.get_final_response()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kept", [False, True], ids=["sent whole", "kept by the server"])
def test_a_conversation_in_responses(open_ai: Any, stream: bool, kept: bool) -> None:
    talk: list[Any] = [HELLO]
    found = response_to(open_ai, input=talk, stream=stream)
    called = []
    while calls := [item for item in found.output if item.type == "function_call"]:
        talk += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in calls]
        called += [item.name for item in calls]
        results = [
            {"type": "function_call_output", "call_id": item.call_id, "output": "ok"}
            for item in calls
        ]
        talk += results
        given = {"input": results, "previous_response_id": found.id} if kept else {"input": talk}
        found = response_to(open_ai, stream=stream, **given)
    assert called == ["charge", "mail", "log"]
    assert found.output_text == TEXT


def message_of(client: Any, talk: list[Any], *, stream: bool) -> Any:
    given = {"model": "m", "max_tokens": 100, "messages": talk}
    if not stream:
        return client.messages.create(**given)
    with client.messages.stream(**given) as events:
        return events.get_final_message()


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_in_anthropic_messages(claude: Any, stream: bool) -> None:
    talk: list[Any] = [HELLO]
    found = message_of(claude, talk, stream=stream)
    called = []
    while found.stop_reason == "tool_use":
        calls = [block for block in found.content if block.type == "tool_use"]
        called += [(block.name, block.input) for block in calls]
        talk.append({"role": "assistant", "content": [one.model_dump() for one in calls]})
        results = [{"type": "tool_result", "tool_use_id": one.id, "content": "ok"} for one in calls]
        talk.append({"role": "user", "content": results})
        found = message_of(claude, talk, stream=stream)
    assert called == [
        ("charge", {"amount": 10, "to": "Zoë"}),
        ("mail", {}),
        ("log", {"text": "x" * 40}),
    ]
    assert (found.stop_reason, found.content[0].text) == ("end_turn", TEXT)


def test_the_same_conversation_is_answered_with_the_same_bytes(open_ai: Any) -> None:
    """An agent that repeats its request after a crash must find the same tool-call ids."""
    first, second = (
        open_ai.chat.completions.with_raw_response.create(model="m", messages=[HELLO]).text
        for _ in range(2)
    )
    assert first == second


def test_another_conversation_has_other_ids(open_ai: Any, claude: Any) -> None:
    """Two agents that share a model must not get the same ids for different calls."""
    others = [{"role": "user", "content": text} for text in ("for Ann", "for Bob")]
    ids = [
        [open_ai.chat.completions.create(model="m", messages=[one]) for one in others],
        [open_ai.responses.create(model="m", input=[one]) for one in others],
        [claude.messages.create(model="m", max_tokens=9, messages=[one]) for one in others],
    ]
    assert all(ann.id != bob.id for ann, bob in ids)
    [[ann, bob], [first, _], _] = ids
    assert ann.choices[0].message.tool_calls[0].id != bob.choices[0].message.tool_calls[0].id
    [call_of_ann] = first.output
    output = {"type": "function_call_output", "call_id": call_of_ann.call_id, "output": "1"}
    after = open_ai.responses.create(model="m", input=[output], previous_response_id=first.id)
    assert [one.name for one in after.output] == ["mail", "log"]


# ── orphans and misplaced results ─────────────────────────────────────────────────────────────


def refusal(url: str, body: bytes, headers: dict[str, str] = HEADERS) -> tuple[int, dict[str, Any]]:
    with pytest.raises(HTTPError) as refused:
        urlopen(Request(url, body, headers))
    with refused.value as answer:
        return answer.code, json.load(answer)


def chat_call(*names: str) -> dict[str, Any]:
    calls = [
        {"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for name in names
    ]
    return {"role": "assistant", "tool_calls": calls}


def chat_result(name: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": name, "content": "ok"}


CHAT_ORPHAN = (
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
    "'tool_call_id'. The following tool_call_ids did not have response messages: "
)
CHAT_STRAY = (
    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
    "'tool_calls'."
)
CHAT_TWICE = (
    "Invalid parameter: Duplicate value for 'tool_call_id' of 'a', in messages[2] and messages[3]."
)
CHAT_OTHER = (
    "Invalid parameter: 'tool_call_id' of 'x' not found in 'tool_calls' of previous message."
)


@pytest.mark.parametrize(
    ("talk", "said", "param"),
    [
        ([HELLO, chat_call("a")], CHAT_ORPHAN + "a", "messages.[2].role"),
        ([HELLO, chat_call("a"), HELLO], CHAT_ORPHAN + "a", "messages.[2].role"),
        ([chat_call("a", "b"), chat_result("a"), HELLO], CHAT_ORPHAN + "b", "messages.[2].role"),
        ([HELLO, chat_call("a"), HELLO, chat_result("a")], CHAT_ORPHAN + "a", "messages.[2].role"),
        ([HELLO, chat_result("a")], CHAT_STRAY, "messages.[1].role"),
        (
            [HELLO, chat_call("a"), chat_result("x")],
            CHAT_OTHER,
            "messages.[2].tool_call_id",
        ),
        (
            [HELLO, chat_call("a"), chat_result("a"), chat_result("a")],
            CHAT_TWICE,
            "messages.[3].tool_call_id",
        ),
    ],
)  # fmt: skip
def test_chat_completions_refuse_unpaired_tool_messages(
    model: FakeModel, talk: list[Any], said: str, param: str
) -> None:
    asked = json.dumps({"model": "m", "messages": talk}).encode()
    error = {"message": said, "type": "invalid_request_error", "param": param, "code": None}
    assert refusal(model.url + chat.PATH, asked) == (400, {"error": error})


RESPONSES_TWICE = (
    "Duplicate function_call_output for call_id 'a'. Each function_call must have exactly one "
    "matching function_call_output"
)


def item(kind: str, name: str) -> dict[str, Any]:
    more = {"name": "f", "arguments": "{}"} if kind == "function_call" else {"output": "ok"}
    return {"type": kind, "call_id": name, **more}


@pytest.mark.parametrize(
    ("talk", "said"),
    [
        ([HELLO, item("function_call", "a")], "No tool output found for function call a."),
        (
            [HELLO, item("function_call", "a"), item("function_call", "b"),
             item("function_call_output", "a"), HELLO],
            "No tool output found for function call b.",
        ),
        (
            [HELLO, item("function_call_output", "a")],
            "No tool call found for function call output with call_id a.",
        ),
        (
            [item("function_call_output", "a"), item("function_call", "a")],
            "No tool call found for function call output with call_id a.",
        ),
        (
            [item("function_call", "a"), *[item("function_call_output", "a")] * 2],
            RESPONSES_TWICE,
        ),
        (
            [HELLO, {"type": "reasoning", "id": "rs_1", "summary": []}, HELLO],
            "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
        ),
    ],
)  # fmt: skip
def test_responses_refuse_unpaired_outputs(model: FakeModel, talk: list[Any], said: str) -> None:
    asked = json.dumps({"model": "m", "input": talk}).encode()
    error = {"message": said, "type": "invalid_request_error", "param": "input", "code": None}
    assert refusal(model.url + responses.PATH, asked) == (400, {"error": error})


def test_an_orphan_on_the_server_cannot_be_dropped_by_the_client(openai: Any, open_ai: Any) -> None:
    first = open_ai.responses.create(model="m", input="hello")
    with pytest.raises(openai.BadRequestError, match="No tool output found"):
        open_ai.responses.create(model="m", input="go on", previous_response_id=first.id)
    with pytest.raises(openai.BadRequestError) as unknown:
        open_ai.responses.create(model="m", input="go on", previous_response_id="resp_x")
    assert unknown.value.code == "previous_response_not_found"


def uses(*names: str) -> dict[str, Any]:
    blocks = [{"type": "tool_use", "id": name, "name": "f", "input": {}} for name in names]
    return {"role": "assistant", "content": blocks}


def results(*names: str, before: str = "") -> dict[str, Any]:
    blocks: list[Any] = [{"type": "text", "text": before}] if before else []
    blocks += [{"type": "tool_result", "tool_use_id": name, "content": "ok"} for name in names]
    return {"role": "user", "content": blocks}


def unanswered(place: int, *names: str) -> str:
    return (
        f"messages.{place}: `tool_use` ids were found without `tool_result` blocks immediately "
        f"after: {', '.join(names)}. Each `tool_use` block must have a corresponding `tool_result` "
        "block in the next message."
    )


UNEXPECTED = (
    "messages.{}: unexpected `tool_use_id` found in `tool_result` blocks: {}. Each `tool_result` "
    "block must have a corresponding `tool_use` block in the previous message."
)
DOUBLE = (
    "messages.2.content.1: each tool_use must have a single result. Found multiple `tool_result` "
    "blocks with id: a"
)


@pytest.mark.parametrize(
    ("talk", "said"),
    [
        ([HELLO, uses("a")], unanswered(1, "a")),
        ([HELLO, uses("a"), HELLO], unanswered(2, "a")),
        ([HELLO, uses("a", "b"), results("a")], unanswered(2, "b")),
        ([HELLO, uses("a"), results("a", before="here:")], unanswered(2, "a")),
        ([HELLO, uses("a"), HELLO, results("a")], unanswered(2, "a")),
        ([results("a")], UNEXPECTED.format("0.content.0", "a")),
        ([HELLO, uses("a"), results("a", "b")], UNEXPECTED.format("2.content.1", "b")),
        (
            [HELLO, uses("a"), results("a", "a")],
            DOUBLE,
        ),
        (
            [HELLO, uses("a"), results("a"), uses("a"), results("a")],
            "messages.3.content.0: `tool_use` ids must be unique",
        ),
    ],
)
def test_anthropic_messages_refuse_unpaired_results(
    model: FakeModel, talk: list[Any], said: str
) -> None:
    asked = json.dumps({"model": "m", "max_tokens": 10, "messages": talk}).encode()
    status, body = refusal(model.url + messages.PATH, asked)
    assert (status, body["type"]) == (400, "error")
    assert body["error"] == {"type": "invalid_request_error", "message": said}
    assert body["request_id"].startswith("req_")


def test_a_refusal_raises_the_same_client_error_as_at_the_provider(
    openai: Any, open_ai: Any, anthropic: Any, claude: Any, model: FakeModel
) -> None:
    with pytest.raises(openai.BadRequestError, match="did not have response messages: a"):
        open_ai.chat.completions.create(model="m", messages=[HELLO, chat_call("a")])
    with pytest.raises(anthropic.BadRequestError, match="immediately after: a"):
        claude.messages.create(model="m", max_tokens=10, messages=[HELLO, uses("a")])
    assert [(one.status, bool(one.error)) for one in model.requests] == [(400, True)] * 2


# ── failures ──────────────────────────────────────────────────────────────────────────────────


def test_an_injected_failure_raises_the_matching_client_error(
    openai: Any, open_ai: Any, anthropic: Any, claude: Any, model: FakeModel
) -> None:
    model.fail(429)
    with pytest.raises(openai.RateLimitError) as limited:
        open_ai.chat.completions.create(model="m", messages=[HELLO])
    assert (limited.value.type, limited.value.code) == ("requests", "rate_limit_exceeded")
    model.fail(500)
    with pytest.raises(openai.InternalServerError):
        open_ai.responses.create(model="m", input="hello")
    model.fail(529)
    with pytest.raises(anthropic.InternalServerError) as overloaded:
        claude.messages.create(model="m", max_tokens=10, messages=[HELLO])
    assert overloaded.value.body["error"]["type"] == "overloaded_error"


def test_a_client_that_retries_survives_a_failure(claude: Any, model: FakeModel) -> None:
    for status in (529, 503):
        model.fail(status)
        patient = claude.with_options(max_retries=1)
        found = patient.messages.create(model="m", max_tokens=10, messages=[HELLO])
        assert found.stop_reason == "tool_use"
    assert [request.status for request in model.requests] == [529, 200, 503, 200]


def test_a_stream_that_breaks_off_is_noticed(openai: Any, open_ai: Any, model: FakeModel) -> None:
    model.cut(after=2)
    chunks = open_ai.chat.completions.create(model="m", messages=[HELLO], stream=True)
    assert next(chunks)
    assert next(chunks)
    with pytest.raises(openai.APIConnectionError):
        next(chunks)


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (chat.PATH, {}, 401),
        (responses.PATH, {}, 401),
        (messages.PATH, {}, 401),
        (messages.PATH, {"x-api-key": "k"}, 400),
        ("/v1/nothing", {"authorization": "k"}, 404),
    ],
)
def test_requests_with_a_wrong_path_or_key_are_refused(
    model: FakeModel, path: str, headers: dict[str, str], status: int
) -> None:
    code, body = refusal(model.url + path, b"{}", headers)
    assert code == status
    assert body["error"]["message"]


@pytest.mark.parametrize("body", [b"no json", b"[]", b"{}"])
@pytest.mark.parametrize("path", [chat.PATH, responses.PATH, messages.PATH])
def test_a_body_without_a_request_is_refused(model: FakeModel, path: str, body: bytes) -> None:
    assert refusal(model.url + path, body)[0] == 400


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (chat.PATH, {"messages": [{"role": "user", "tool_calls": [{}]}]}),
        (chat.PATH, {"messages": [{"role": "assistant", "tool_calls": 1}]}),
        (responses.PATH, {"input": 1}),
        (responses.PATH, {"input": [{"role": "user", "id": {}}]}),
        (messages.PATH, {"model": "m", "max_tokens": 1, "messages": True}),
    ],
)
def test_a_body_of_another_form_is_refused_and_gets_an_answer(
    model: FakeModel, path: str, body: dict[str, Any]
) -> None:
    status, error = refusal(f"{model.url}{path}", json.dumps(body).encode())
    assert (status, error["error"]["type"]) == (400, "invalid_request_error")


def test_an_error_of_the_script_is_reported_to_the_client(
    openai: Any, open_ai: Any, model: FakeModel
) -> None:
    """At once: a client that takes it for a network failure would retry again and again."""
    scripts: list[tuple[Any, str]] = [([7], "expected a text, a call"), (json.loads, "TypeError")]
    for script, said in scripts:
        model.script, asked = script, len(model.requests)
        patient = open_ai.with_options(max_retries=5)
        with pytest.raises(openai.InternalServerError, match=f"script of FakeModel.*{said}"):
            patient.chat.completions.create(model="m", messages=[HELLO])
        assert len(model.requests) == asked + 1


def test_a_script_may_be_a_function_of_the_request(open_ai: Any, model: FakeModel) -> None:
    model.script = lambda request: f"you said {request.body['messages'][-1]['content']}"
    found = open_ai.chat.completions.create(model="m", messages=[HELLO])
    assert found.choices[0].message.content == "you said hello"

"""Starting, watching and answering runs from a terminal."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
from tests.cli.terminal import Terminal, until


def test_a_run_is_started_waited_for_and_shown(andon: Terminal) -> None:
    with andon.worker():
        run_id = andon("start", "greet", "name=Ada", "--id", "g-1", "--label", "team=x")
        assert run_id == "g-1\n", "stdout has the id and nothing else"
        assert andon("wait", "g-1", "--timeout", "30") == '"hello Ada"\n'
    found = andon.json("show", "g-1")
    assert {
        "id": "g-1",
        "agent": "greet",
        "version": "1",
        "state": "succeeded",
        "attempt": 1,
        "fence": "1.1",
        "input": {"name": "Ada"},
        "result": "hello Ada",
        "error": None,
        "labels": {"team": "x"},
        "parent_id": None,
        "children": [],
        "effects": [],
        "asks": [],
        "waits": [],
    }.items() <= found.items()
    [step] = found["steps"]
    assert {"name": "say", "key": None, "state": "done", "attempts": 1}.items() <= step.items()
    assert found["created_at"] - 5 < step["started_at"] <= step["finished_at"]
    [attempt] = found["attempts"]
    assert attempt["number"] == 1
    assert attempt["ending"] == "succeeded"
    assert attempt["claimed_at"] <= attempt["ended_at"]
    page = andon("show", "g-1")
    for words in ("greet version 1", "succeeded", '"hello Ada"', '{"name": "Ada"}', "team=x"):
        assert words in page


def test_a_question_is_shown_with_the_command_that_answers_it(andon: Terminal) -> None:
    with andon.worker():
        andon.start("refunds", "orders=[1,2]", "--id", "r-7")
        until(lambda: andon.json("show", "r-7")["asks"], "the ask")
        until(lambda: andon.state("r-7") == "suspended", "the suspension")
        listed = andon("ps")
        assert "asks: Refund this much?" in listed
        assert "andon answer r-7 DECISION" in listed
        assert "andon answer r-7 DECISION" in andon("show", "r-7")
        assert (
            "andon answer r-7 DECISION" in andon.run("wait", "r-7", "--timeout", "0", code=3).stderr
        )
        refusal = andon.error("answer", "r-7", "perhaps", code=2)
        assert "approve, edit, reject, respond" in refusal
        assert "needs a value" in andon.error("answer", "r-7", "edit", code=2)
        edited = json.dumps({"order": 2, "amount": 7})
        told = andon.json("answer", "r-7", "edit", edited, "--by", "grace")
        assert told == {"run": "r-7", "ask": told["ask"], "decision": "edit", "by": "grace"}
        assert andon("wait", "r-7", "--timeout", "30") == '"done"\n'
    found = andon.json("show", "r-7")
    assert [(one["name"], one["key"], one["kind"], one["state"]) for one in found["effects"]] == [
        ("pay", "1", "idempotent", "confirmed"),
        ("pay", "2", "idempotent", "confirmed"),
    ]
    assert found["asks"][0]["answer"] == {
        "decision": "edit",
        "value": json.loads(edited),
        "by": "grace",
    }
    assert "answered by grace" in andon("show", "r-7")
    assert "no open ask" in andon.error("answer", "r-7", "approve", code=4)


def test_an_event_is_sent_once_by_its_id(andon: Terminal) -> None:
    with andon.worker():
        run_id = andon.start("listener")
        until(lambda: "waits for event go" in andon("ps"), "the wait")
        assert f"next: andon send {run_id} go" in andon.run("show", run_id).stderr
        assert andon.json("send", run_id, "other", "--id", "m-1")["new"] is True
        assert andon.json("send", run_id, "other", "--id", "m-1")["new"] is False
        assert andon("send", run_id, "go", '{"to": "sea"}') == "sent\n"
        assert json.loads(andon("wait", run_id, "--timeout", "30")) == {"to": "sea"}
    assert "succeeded" in andon.error("send", run_id, "go", code=1)


def test_an_answer_or_event_of_broken_json_is_taken_as_text_with_a_warning(
    andon: Terminal,
) -> None:
    with andon.worker():
        run_id = andon.start("refunds", "orders=[2]")
        until(lambda: andon.json("show", run_id)["asks"], "the question")
        assert "PAYLOAD looks like JSON" in andon.run("send", run_id, "go", '{"a":').stderr
        assert "looks like JSON" not in andon.run("send", run_id, "go", "plain").stderr
        assert "VALUE looks like JSON" in andon.run("answer", run_id, "edit", "[1,").stderr


def test_a_run_is_steered(andon: Terminal) -> None:
    with andon.worker():
        run_id = andon.start("listener")
        told = andon.run("steer", run_id, "faster", "--by", "grace")
        name = told.stdout.split()[1]
        assert told.stdout == f"recorded: {name} (add)\n"
        assert f"andon steer {run_id} --retract {name}" in told.stderr
        found = andon.json("steer", run_id, "--retract", name)
        assert (found["change"], found["of"], found["was"]) == ("retract", name, "faster")
        assert "no instruction is in force under the id 'nobody'" in andon.error(
            "steer", run_id, "--retract", "nobody", code=4
        )


def test_wait_exits_0_only_when_the_run_succeeded(andon: Terminal) -> None:
    with andon.worker():
        failed = andon.start("fails", "why=out of luck")
        done = andon.run("wait", failed, "--timeout", "30", code=1)
        assert done.stdout == ""
        assert "failed: ValueError: out of luck" in done.stderr
        assert f"andon show {failed}" in done.stderr
        found = andon.json("wait", failed, code=1)
        assert found["state"] == "failed"
        assert found["error"]["message"] == "out of luck"
        run_id = andon.start("listener")
        late = andon.run("wait", run_id, "--timeout", "0.2", code=3)
        assert "not over within 0.2 s" in late.stderr
        assert andon.json("wait", run_id, "--timeout", "0", code=3)["result"] is None


def test_ctrl_c_ends_the_waiting_and_not_the_run(local: Terminal) -> None:
    with local.worker():
        run_id = local.start("refunds", "orders=[9]")
        until(lambda: local.state(run_id) == "suspended", "the ask")
        with local.process("wait", run_id) as waiting:
            waiting.says("asks: Refund this much?")
            waiting.signal(signal.SIGINT)
            assert waiting.ends() == 130
        assert f"the run continues: andon show {run_id}" in waiting.text
        assert local.state(run_id) == "suspended"


def test_logs_are_followed_until_the_run_is_over(andon: Terminal) -> None:
    with andon.worker():
        run_id = andon.start("greet", "name=a\nb")
        lines = andon("logs", run_id, "-f", "--json").splitlines()
        assert [json.loads(line)["text"] for line in lines] == ["greeting a\nb"]
    [line] = andon.json("logs", run_id)
    assert line["level"] == "info"
    first, second = andon("logs", run_id).splitlines()
    assert first.endswith("info     greeting a")
    assert second == "    | b", "a second line cannot pass for a line of its own"
    quiet = andon.start("fails")
    assert "ctx.log" in andon.run("logs", quiet).stderr


def test_values_are_json_when_they_are_json_and_else_text(local: Terminal) -> None:
    with local.worker():
        words = {
            "number": "1.5",
            "big": "123456789012345678901234567890",
            "truth": "true",
            "list": "[1, [2]]",
            "quoted": '"7"',
            "words": "two words",
            "empty": "",
            "nan": "NaN",
            "brace": "{not json",
            "equals": "a=b",
            "nothing": "null",
        }
        run_id = local.start("echo", *(f"{name}={given}" for name, given in words.items()))
        assert json.loads(local("wait", run_id, "--timeout", "30")) == {
            "number": 1.5,
            "big": 123456789012345678901234567890,
            "truth": True,
            "list": [1, [2]],
            "quoted": "7",
            "words": "two words",
            "empty": "",
            "nan": "NaN",
            "brace": "{not json",
            "equals": "a=b",
            "nothing": None,
        }
        large = "x" * 1_000_000
        run_id = local("start", "echo", "--input", "-", input=json.dumps({"large": large})).strip()
        assert json.loads(local("wait", run_id, "--timeout", "30")) == {"large": large}
        assert len(local("show", run_id)) < 2000, "people are shown the beginning"
        assert local.json("show", run_id)["result"] == {"large": large}


def test_an_id_names_one_run_for_ever(local: Terminal) -> None:
    with local.worker():
        assert local.start("greet", "name=a", "--id", "one") == "one"
        assert local.start("greet", "name=a", "--id", "one") == "one"
        assert "another input" in local.error("start", "greet", "name=b", "--id", "one", code=1)


def test_start_waits_a_moment_for_a_worker_that_is_still_starting(andon: Terminal) -> None:
    with andon.process("work", "agents.py") as worker:
        done = andon.run("start", "greet", "--id", "early")
        worker.says("is ready")
        assert done.stdout == "early\n"
        assert andon("wait", "early", "--timeout", "30") == '"hello world"\n'


def test_an_unknown_agent_is_refused_with_the_known_ones(local: Terminal) -> None:
    assert "andon work FILE" in local.error("start", "greet", code=4)
    with local.worker("agents.py:greet", "agents.py:fails"):
        message = local.error("start", "great", code=4)
    assert "did you mean 'greet'?" in message
    assert "known: fails, greet" in message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("greet", "nmae=Ada"), "did you mean 'name'?"),
        (("refunds",), "missing argument 'orders'"),
        (("greet", "Ada"), "expected name=value"),
        (("greet", "=Ada"), "expected name=value"),
        (("greet", "name=a", "name=b"), "given twice"),
        (("greet", "--label", "x"), "expected name=value"),
        (("greet", "--at", "tomorrow"), "ISO 8601"),
        (("greet", "--at", "+5x"), "ISO 8601"),
        (("greet", "--at", "+nans"), "ISO 8601"),
        (("greet", "--priority", "high"), "whole number"),
        (("greet", "--id", ""), "run id"),
        (("greet", "--input", "nowhere.json"), "nowhere.json"),
        (("greet", "--priority", "99999999999"), "priority"),
    ],
)
def test_bad_input_is_refused_with_exit_2(
    arguments: tuple[str, ...], words: str, registered: Terminal
) -> None:
    assert words in registered.error("start", *arguments, code=2)


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    """A store that knows the agents, and has no worker."""
    folder = tmp_path_factory.mktemp("registered")
    terminal = Terminal(folder, f"sqlite:///{folder}/andon.db")
    with terminal.worker():
        pass
    return terminal


def test_broken_input_is_reported_as_broken(registered: Terminal) -> None:
    said = registered.error("start", "greet", "--input", "-", code=2, input='{"name": "x"')
    assert "expected a JSON object" in said
    assert "found what is not JSON: " in said


def test_input_that_is_not_an_object_or_not_text_is_refused(registered: Terminal) -> None:
    assert "JSON object" in registered.error("start", "echo", "--input", "-", code=2, input="[1]")
    Path(registered.folder, "latin.json").write_bytes(b'{"name": "\xe9"}')
    assert "JSON object" in registered.error("start", "echo", "--input", "latin.json", code=2)
    done = subprocess.run(
        [*registered._command("start", "echo"), b"name=\xff"],
        env=registered.environment,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert b"not Unicode" in done.stderr
    deep = "[" * 100_000
    refusal = registered.error("start", "echo", "--input", "-", code=2, input=f'{{"x": {deep}')
    assert "JSON object" in refusal


def test_a_run_can_start_later(registered: Terminal) -> None:
    for hour in ("+1h", "+3600"):
        run_id = registered.start("greet", "--at", hour)
        found = registered.json("show", run_id)
        assert found["state"] == "queued"
        assert 3500 < found["available_at"] - found["created_at"] < 3700
    run_id = registered.start("greet", "--at", "2099-01-01T00:00:00Z")
    assert registered.json("show", run_id)["available_at"] == 4070908800.0
    with registered.worker():
        assert "starts in" in registered("ps", "--state", "queued")


def test_a_queued_run_without_a_worker_to_carry_it_says_so(andon: Terminal) -> None:
    with andon.worker("agents.py:listener"):
        pass
    done = andon.run("start", "listener", "--id", "q-1")
    assert "no running worker serves listener (version 2.1)" in done.stderr
    assert "no running worker serves listener (version 2.1)" in andon("ps")
    until(lambda: "stranded" in andon("ps"), "the allowance for a restart")
    assert andon.state("q-1") == "stranded"
    assert [row["id"] for row in andon.json("ps", "--state", "stranded")] == ["q-1"]
    assert andon.json("ps", "--state", "queued") == []
    assert "andon work FILE" in andon.run("show", "q-1").stderr
    waited = andon.run("wait", "q-1", "--timeout", "0", code=3)
    assert waited.stderr.count("is stranded: no running worker serves listener (version 2.1)") == 1
    with andon.worker("agents.py:listener") as worker:
        until(lambda: "waits for event go" in andon("ps"), "the run being carried out")
        andon.start("listener", "--id", "q-2", "--at", "+1d")
        assert "starts in" in andon("ps", "--state", "queued")
        worker.signal(signal.SIGKILL)
        worker.ends()
        # No worker has declared it dead yet, and its lease still holds.
        listed = andon("ps", "--state", "queued")
        assert "starts in 24 h; no running worker serves listener (version 2.1)" in listed
        assert andon.state("q-2") == "queued", "it is not due yet"


def test_ps_filters_and_pages(registered: Terminal) -> None:
    ids = [registered.start("echo", f"n={n}", "--label", f"n={n % 2}") for n in range(3)]
    rows = registered.json("ps", "--agent", "echo")
    assert [row["id"] for row in rows] == ids[::-1], "newest first"
    assert set(rows[0]) >= {"id", "agent", "version", "state", "attempt", "age_seconds", "doing"}
    odd = registered.json("ps", "--label", "n=1")
    assert [row["id"] for row in odd] == [ids[1]]
    page = registered.run("ps", "--agent", "echo", "--limit", "2")
    assert f"--before {ids[1]}" in page.stderr
    rest = registered.json("ps", "--agent", "echo", "--limit", "2", "--before", ids[1])
    assert [row["id"] for row in rest] == [ids[0]]
    assert registered.json("ps", "--state", "failed") == []
    assert "expected one of queued" in registered.error("ps", "--state", "lost", code=2)
    assert "no runs" in registered.run("ps", "--agent", "nobody").stderr


def test_a_run_is_found_by_the_beginning_of_its_id(registered: Terminal) -> None:
    for run_id in ("alpha-1", "alpha-2", "beta"):
        registered.start("greet", "--id", run_id)
    assert registered.json("show", "bet")["id"] == "beta"
    assert registered.json("show", "@last")["id"] == "beta"
    ambiguous = registered.error("show", "alpha", code=4)
    assert "alpha-1" in ambiguous
    assert "alpha-2" in ambiguous
    assert "andon ps" in registered.error("show", "nothing", code=4)
    for command in ("logs", "wait", "verify"):
        registered.error(command, "nothing", code=4)
    registered.error("answer", "nothing", "approve", code=4)
    registered.error("send", "nothing", "go", code=4)


def test_children_are_shown_with_their_parent(andon: Terminal) -> None:
    with andon.worker():
        run_id = andon.start("parent")
        assert andon("wait", run_id, "--timeout", "30") == '"hello child"\n'
    [child] = andon.json("show", run_id)["children"]
    assert (child["agent"], child["state"]) == ("greet", "succeeded")
    assert andon.json("show", child["id"])["parent_id"] == run_id
    assert child["id"] in andon("show", run_id)


def test_wait_returns_when_the_run_asks(andon: Terminal) -> None:
    with andon.worker():
        andon("start", "refunds", "orders=[1, 2]", "--id", "r-7")
        said = andon("wait", "r-7", "--for", "ask", "--timeout", "30")
        assert "? Refund this much?" in said
        assert "andon answer r-7 DECISION" in said
        found = json.loads(andon("wait", "r-7", "--for", "ask", "--json"))
        assert [one["question"] for one in found["asks"]] == ["Refund this much?"]
        andon("answer", "r-7", "approve")
        andon("wait", "r-7", "--timeout", "30")
        over = andon.run("wait", "r-7", "--for", "ask", code=1)
        assert "run r-7 succeeded and has no open ask" in over.stderr
    andon("start", "refunds", "orders=[2]", "--id", "r-8")
    slow = andon.run("wait", "r-8", "--for", "ask", "--timeout", "0", code=3)
    assert "asked nothing within 0 s" in slow.stderr

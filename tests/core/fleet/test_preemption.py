"""Cloud preemption notices are recognised, and no other answer is taken for one."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from andon.core.fleet.preemption import (
    LEAST_SECONDS,
    Notice,
    grace,
    names_of_azure,
    of_azure,
    of_ec2,
    of_gce,
)

NOW = 1_505_722_800.0  # 2017-09-18T08:20:00Z


def azure(*events: dict[str, Any]) -> str:
    return json.dumps({"DocumentIncarnation": 3, "Events": list(events)})


def event(**changes: Any) -> dict[str, Any]:
    return {
        "EventId": "f020ba2e-3bc0-4c40-a10b-86575a9eabd5",
        "EventType": "Preempt",
        "ResourceType": "VirtualMachine",
        "Resources": ["ours"],
        "EventStatus": "Scheduled",
        "NotBefore": "Mon, 18 Sep 2017 08:20:30 GMT",
        **changes,
    }


# ── EC2 ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("action", ["terminate", "stop"])
def test_an_ec2_notice_says_the_action_and_its_time(action: str) -> None:
    body = json.dumps({"action": action, "time": "2017-09-18T08:22:00Z"})
    assert of_ec2(200, body, NOW) == Notice(f"EC2 announced: {action}", 120.0)


def test_an_ec2_hibernation_leaves_no_time() -> None:
    body = '{"action": "hibernate", "time": "2017-09-18T08:22:00Z"}'
    assert of_ec2(200, body, NOW) == Notice("EC2 announced: hibernate", 0.0)


def test_a_notice_whose_time_has_passed_leaves_no_time() -> None:
    notice = of_ec2(200, '{"action": "stop", "time": "2017-09-18T08:00:00Z"}', NOW)
    assert notice is not None
    assert notice.seconds_left == 0.0


@pytest.mark.parametrize("time", ["soon", "", None, 7, "2017-99-99T00:00:00Z"])
def test_a_notice_without_a_readable_time_is_still_a_notice(time: Any) -> None:
    notice = of_ec2(200, json.dumps({"action": "terminate", "time": time}), NOW)
    assert notice == Notice("EC2 announced: terminate", None)


def test_a_time_without_a_zone_is_read_as_utc() -> None:
    notice = of_ec2(200, '{"action": "stop", "time": "2017-09-18T08:22:00"}', NOW)
    assert notice is not None
    assert notice.seconds_left == 120.0


# ── GCE ───────────────────────────────────────────────────────────────────────────────────────


def test_a_gce_notice_is_the_word_true_and_gives_thirty_seconds() -> None:
    assert of_gce(200, "TRUE\n") == Notice("GCE announced: preempted", 30.0)


@pytest.mark.parametrize(("status", "body"), [(200, "FALSE"), (503, "TRUE"), (200, "")])
def test_any_other_gce_answer_is_no_notice(status: int, body: str) -> None:
    assert of_gce(status, body) is None


# ── Azure ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["Preempt", "Terminate"])
def test_an_azure_event_takes_the_machine_not_before_its_time(kind: str) -> None:
    found = of_azure(200, azure(event(EventType=kind)), NOW, {"ours"})
    assert found == Notice(f"Azure announced: {kind}", 30.0)


@pytest.mark.parametrize("kind", ["Freeze", "Reboot", "Redeploy", None, ["Preempt"]])
def test_an_azure_event_that_the_machine_survives_is_no_notice(kind: Any) -> None:
    assert of_azure(200, azure(event(EventType=kind)), NOW, {"ours"}) is None


def test_an_azure_event_for_another_machine_is_no_notice() -> None:
    assert of_azure(200, azure(event(Resources=["theirs"])), NOW, {"ours"}) is None
    assert of_azure(200, azure(event(Resources=["theirs"]), event()), NOW, {"ours"}) is not None


@pytest.mark.parametrize(("meant", "names"), [(["theirs"], ()), ([], {"ours"}), (7, {"ours"})])
def test_an_azure_event_that_may_mean_this_machine_is_a_notice(meant: Any, names: Any) -> None:
    assert of_azure(200, azure(event(Resources=meant)), NOW, names) is not None


def test_an_azure_event_that_has_begun_leaves_no_time() -> None:
    found = of_azure(200, azure(event(EventStatus="Started", NotBefore="")), NOW, {"ours"})
    assert found == Notice("Azure announced: Preempt", 0.0)


@pytest.mark.parametrize(
    "time", ["", None, "soon", "Mon, 19 Sep 99999999999999999999 18:29:47 GMT"]
)
def test_an_azure_event_without_a_readable_time_is_a_notice(time: Any) -> None:
    found = of_azure(200, azure(event(NotBefore=time)), NOW, {"ours"})
    assert found == Notice("Azure announced: Preempt", None)


@pytest.mark.parametrize("body", ['{"Events": 7}', '{"Events": [7, null]}', "{}"])
def test_azure_events_of_another_shape_are_no_notice(body: str) -> None:
    assert of_azure(200, body, NOW, ()) is None


# ── all ───────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(), st.text(), st.floats(0, 1e10))
def test_any_answer_is_read_without_an_error(status: int, body: str, now: float) -> None:
    for found in (of_ec2(status, body, now), of_gce(status, body), of_azure(status, body, now, ())):
        assert found is None or found.why


@pytest.mark.parametrize("body", ["[" * 100_000, "<html>", "[]", "null", '{"action": 1}', ""])
@pytest.mark.parametrize("status", [200, 404])
def test_an_unreadable_answer_is_no_notice(status: int, body: str) -> None:
    assert of_ec2(status, body, NOW) is None
    assert of_azure(status, body, NOW, ()) is None


@pytest.mark.parametrize(
    ("own", "left", "found"),
    [(25, 120, 25), (80, 30, 25), (25, 3, LEAST_SECONDS), (25, 0, LEAST_SECONDS), (25, None, 25)],
)
def test_the_drain_ends_before_the_machine_does(
    own: float, left: float | None, found: float
) -> None:
    assert grace(own, Notice("", left)) == found


def test_a_notice_does_not_lengthen_a_short_grace() -> None:
    assert grace(0.5, Notice("", 0.0)) == 0.5


@pytest.mark.parametrize(
    ("status", "body", "names"),
    [
        (200, '{"name": "ours", "vmId": "x"}', {"ours"}),
        (200, '{"name": ""}', set()),
        (200, '{"name": 7}', set()),
        (200, "{}", set()),
        (200, "[]", set()),
        (200, "<html>login</html>", set()),
        (200, "[" * 100_000, set()),
        (500, '{"name": "ours"}', set()),
    ],
)
def test_azure_metadata_gives_the_name_of_this_machine(
    status: int, body: str, names: set[str]
) -> None:
    assert names_of_azure(status, body) == names

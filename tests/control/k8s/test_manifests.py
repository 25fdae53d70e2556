"""Rendered manifests are valid, their numbers fit each other, and no argument is more than text."""

import configparser
import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.terminal import Terminal

from andon.control.k8s.manifests import Wanted, manifests, rendered
from andon.control.k8s.yaml import document
from andon.core.fleet.grace import fits
from andon.errors import BadInput
from andon.settings import load

ROOT = Path(__file__).parents[3]
# The first with a stable podFailurePolicy, and the newest with schemas available here.
VERSIONS = ["1.31", kubernetes_validate.latest_version()]


def read(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


def container(found: dict[str, Any]) -> dict[str, Any]:
    [one] = found["spec"]["template"]["spec"]["containers"]
    assert isinstance(one, dict)
    return one


def environment(found: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container(found)["env"] if "value" in one}


@pytest.mark.parametrize("kind", ["deployment", "job"])
def test_the_shipped_files_match_the_output_of_the_command(local: Terminal, kind: str) -> None:
    file = ROOT / "deploy" / "kubernetes" / f"{kind}.yaml"
    assert local("k8s", "render", "--grace", "80", "--kind", kind) == file.read_text("utf-8")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("grace", [1, 80, 86_400])
def test_kubernetes_schemas_accept_the_manifests(version: str, grace: int) -> None:
    found = read(rendered(Wanted(grace=grace), "all"))
    assert [one["kind"] for one in found] == ["Deployment", "Job"]
    for one in found:
        kubernetes_validate.validate(one, version, strict=True)


def test_the_schema_check_finds_a_wrong_manifest() -> None:
    [found] = read(rendered(Wanted(), "deployment"))
    container(found)["livenessProbe"]["periodSecond"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(found, VERSIONS[0], strict=True)


@pytest.mark.parametrize("kind", ["deployment", "job"])
def test_a_grace_of_eighty_seconds_gives_the_pod_ninety(kind: str) -> None:
    [found] = read(rendered(Wanted(grace=80), kind))
    assert found["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 90
    said = environment(found)
    assert said["ANDON_GRACE_SECONDS"] == "80"
    assert said["ANDON_ORCHESTRATOR_GRACE_SECONDS"] == "90"


@pytest.mark.parametrize("kind", ["deployment", "job"])
def test_andon_reads_the_environment_that_the_manifest_sets(kind: str, tmp_path: Path) -> None:
    [found] = read(rendered(Wanted(grace=7), kind))
    settings = load(environ=environment(found), folder=tmp_path)
    assert settings.grace_seconds == 7
    assert fits(settings.grace_seconds, settings.orchestrator_grace_seconds)
    # Otherwise Kubernetes sets ANDON_PORT for a service named andon, and nothing starts.
    assert found["spec"]["template"]["spec"]["enableServiceLinks"] is False


def test_a_rollout_never_has_fewer_workers() -> None:
    [found] = read(rendered(Wanted(replicas=5), "deployment"))
    assert found["spec"]["replicas"] == 5
    assert found["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert found["spec"]["selector"]["matchLabels"].items() <= (
        found["spec"]["template"]["metadata"]["labels"].items()
    )


def test_andon_is_process_1_and_is_asked_to_drain_before_the_signal() -> None:
    [found] = read(rendered(Wanted(), "deployment"))
    assert container(found)["command"][0] == "andon"
    assert "args" not in container(found)
    assert container(found)["lifecycle"]["preStop"]["exec"]["command"] == [
        "andon",
        "drain",
        "--self",
        "--no-wait",
    ]


def test_each_probe_asks_its_own_route() -> None:
    [found] = read(rendered(Wanted(health_port=9000), "deployment"))
    one = container(found)
    assert one["ports"] == [{"name": "health", "containerPort": 9000}]
    assert environment(found)["ANDON_HEALTH_PORT"] == "9000"
    for probe, path in (
        ("startupProbe", "/startupz"),
        ("readinessProbe", "/readyz"),
        ("livenessProbe", "/livez"),
    ):
        assert one[probe]["httpGet"] == {"path": path, "port": "health"}
        assert one[probe]["timeoutSeconds"] > 1, "a store that hangs is waited for"


def test_a_saved_run_is_no_failure_and_is_resumed() -> None:
    [found] = read(rendered(Wanted(), "job"))
    pod = found["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    rules = found["spec"]["podFailurePolicy"]["rules"]
    assert {rule["action"] for rule in rules} == {"Ignore"}
    assert rules[0]["onExitCodes"] == {
        "containerName": container(found)["name"],
        "operator": "In",
        "values": [75],
    }
    # The same run in every pod of this job, and another one when it is applied anew.
    assert container(found)["command"][-2:] == ["--id", "$(RUN_ID)"]
    [run_id] = [one for one in container(found)["env"] if one["name"] == "RUN_ID"]
    assert "controller-uid" in run_id["valueFrom"]["fieldRef"]["fieldPath"]


def test_the_store_comes_from_a_secret() -> None:
    [found] = read(rendered(Wanted(store_secret="my.secret:dsn"), "job"))
    [store] = [one for one in container(found)["env"] if one["name"] == "ANDON_STORE"]
    assert store["valueFrom"] == {"secretKeyRef": {"name": "my.secret", "key": "dsn"}}


# ── arguments ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "My-Agents"},
        {"name": "-a"},
        {"name": "a" * 64},
        {"name": ""},
        {"name": "a\nkind: Pod"},
        {"image": "a b"},
        {"image": ""},
        {"image": "x\n  privileged: true"},
        {"store_secret": "no-key"},
        {"store_secret": "name:"},
        {"store_secret": ":key"},
        {"store_secret": "name:a/b"},
        {"target": ""},
        {"target": "--help"},
        {"target": "a\nb"},
        {"target": "a\u2028b"},
    ],
    ids=str,
)
def test_an_invalid_name_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="expected"):
        Wanted(**wrong)


@given(st.text(st.characters(blacklist_categories=["C", "Zl", "Zp", "Zs"]), min_size=1))
def test_a_target_is_read_as_it_was_written(text: str) -> None:
    if text.startswith("-"):
        return
    wanted = Wanted(target=text)
    assert read(rendered(wanted, "all")) == manifests(wanted, "all")
    assert container(read(rendered(wanted, "job"))[0])["command"][2].replace("$$(", "$(") == text


def test_kubernetes_replaces_nothing_in_a_target() -> None:
    [found] = manifests(Wanted(target="$(HOME)/agents.py"), "deployment")
    assert container(found)["command"][2] == "$$(HOME)/agents.py"


@given(
    st.recursive(
        st.text(st.characters(codec="utf-8")).filter(str.isprintable)
        | st.integers()
        | st.booleans()
        | st.lists(st.sampled_from(["yes", "1", "a b", "", "null", "- x", "#"])),
        lambda inner: st.dictionaries(
            st.text(st.characters(codec="utf-8"), min_size=1).filter(str.isprintable),
            inner,
            min_size=1,
        ),
    ).filter(lambda found: isinstance(found, dict))
)
def test_a_document_survives_the_yaml_parser(found: dict[str, Any]) -> None:
    assert yaml.safe_load(document(found, {})) == found


def test_comments_change_nothing() -> None:
    found = {"a": [{"b": 1, "c": {"d": ["x"]}}, {"b": 2}]}
    text = document(found, {"a": "list", "a.b": "first\nof all", "a.c.d": "deep"})
    assert yaml.safe_load(text) == found
    assert len(re.findall(r"^ *# ", text, re.MULTILINE)) == 6


# ── the command ───────────────────────────────────────────────────────────────────────────────


def test_the_command_answers_in_json_too(local: Terminal) -> None:
    found = local.json("k8s", "render", "--kind", "job", "--name", "once")
    assert [one["metadata"]["name"] for one in found["manifests"]] == ["once"]


def test_a_wrong_argument_is_refused_and_the_expected_form_named(local: Terminal) -> None:
    assert "--name 'No!': expected" in local.error("k8s", "render", "--name", "No!", code=2)
    refused = local.run("k8s", "render", "--grace", "0", "--json", code=2).stderr
    assert json.loads(refused)["error"]["type"] == "Usage"


# ── systemd ───────────────────────────────────────────────────────────────────────────────────


def test_systemd_waits_as_long_as_a_drain_takes(tmp_path: Path) -> None:
    text = (ROOT / "deploy" / "systemd" / "andon.service").read_text("utf-8")
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text)
    service = unit["Service"]
    said = dict(re.findall(r"^Environment=(\w+)=(.*)$", text, re.MULTILINE))
    settings = load(environ=said, folder=tmp_path)
    assert float(service["TimeoutStopSec"]) == settings.orchestrator_grace_seconds
    assert fits(settings.grace_seconds, settings.orchestrator_grace_seconds)
    assert service["KillMode"] == "mixed"
    assert service["SuccessExitStatus"] == service["RestartForceExitStatus"] == "75"

"""Settings: the nearest source wins, and an invalid value is refused with its source."""

import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from andon.errors import BadInput
from andon.settings import Settings, load

NUMBERS = [
    name for name in Settings.__struct_fields__ if not isinstance(getattr(Settings(), name), str)
]
WHOLE = ["concurrency", "interruption_limit", "health_port", "restart_limit"]
# Settings in which 0 has a meaning: only a value below it is refused.
LEAST = {"health_port": -1, "orchestrator_grace_seconds": 0, "step_seconds": 0}
MORE_THAN_0 = [name for name in NUMBERS if name not in LEAST]


def load_from(
    folder: Path,
    *,
    given: dict[str, Any] | None = None,
    environ: dict[str, str] | None = None,
    toml: str | None = None,
) -> Settings:
    if toml is not None:
        (folder / "andon.toml").write_text(toml, "utf-8")
    return load(given, environ=environ or {}, folder=folder)


def refusal(folder: Path, **sources: Any) -> str:
    with pytest.raises(BadInput) as refused:
        load_from(folder, **sources)
    return str(refused.value)


def test_without_any_source_the_defaults_hold(tmp_path: Path) -> None:
    assert load_from(tmp_path) == Settings()


@pytest.mark.parametrize("told", list(product((False, True), repeat=3)), ids=str)
def test_argument_precedes_environment_precedes_file_precedes_default(
    told: tuple[bool, bool, bool], tmp_path: Path
) -> None:
    argument, environment, file = told
    settings = load_from(
        tmp_path,
        given={"concurrency": 1} if argument else {},
        environ={"ANDON_CONCURRENCY": "2"} if environment else {},
        toml="concurrency = 3" if file else "",
    )
    heard = [number for number, said in zip((1, 2, 3), told, strict=True) if said]
    assert settings.concurrency == (heard or [Settings().concurrency])[0]


def test_each_setting_is_taken_from_its_own_nearest_source(tmp_path: Path) -> None:
    settings = load_from(
        tmp_path,
        given={"store": "sqlite:///a.db", "poll_seconds": None},  # None: not given
        environ={"ANDON_POLL_SECONDS": "0.25", "ANDON_GRACE_SECONDS": "", "HOME": "/root"},
        toml='store = "sqlite:///b.db"\nlease_seconds = 5\ngrace_seconds = 2.5',
    )
    assert settings == Settings(
        store="sqlite:///a.db", poll_seconds=0.25, lease_seconds=5.0, grace_seconds=2.5
    )
    assert isinstance(settings.lease_seconds, float)


def test_by_default_the_environment_and_the_file_in_the_folder_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "andon.toml").write_text("concurrency = 3", "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANDON_LEASE_SECONDS", "4")
    settings = load()
    assert (settings.concurrency, settings.lease_seconds) == (3, 4.0)


@pytest.mark.parametrize("name", ["ANDON_FAULTS", "ANDON_BY"])
def test_environment_variables_that_are_no_settings_are_ignored(name: str, tmp_path: Path) -> None:
    assert load_from(tmp_path, environ={name: "x"}) == Settings()


def test_settings_cannot_be_changed_after_they_were_built() -> None:
    with pytest.raises(AttributeError, match="cannot be changed"):
        Settings().concurrency = 2  # type: ignore[misc]


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("said", "where"),
    [
        ({"given": {"conurrency": 2}}, "the arguments"),
        ({"environ": {"ANDON_CONURRENCY": "2"}}, "the environment"),
        ({"toml": "conurrency = 2"}, "{folder}/andon.toml"),
    ],
)
def test_a_misspelt_setting_is_refused_with_the_closest_name(
    said: dict[str, Any], where: str, tmp_path: Path
) -> None:
    assert refusal(tmp_path, **said) == (
        f"unknown setting 'conurrency' in {where.format(folder=tmp_path)}; "
        "did you mean 'concurrency'?"
    )


def test_a_setting_without_a_similar_name_is_refused_with_all_names(tmp_path: Path) -> None:
    text = refusal(tmp_path, environ={"ANDON_XYZZY": "1"})
    assert text.startswith("unknown setting 'xyzzy' in the environment; known: alert_command, ")
    assert all(name in text for name in Settings.__struct_fields__)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["many", "", [1], {"a": 1}, True])
def test_a_value_that_is_not_a_number_is_refused(name: str, value: Any, tmp_path: Path) -> None:
    or_time = " or a time like 90s or 5m" if name.endswith("_seconds") else ""
    assert refusal(tmp_path, given={name: value}) == (
        f"setting {name!r} in the arguments: expected a number{or_time}, found {value!r}"
    )


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90.0), ("5m", 300.0), ("1.5h", 5400.0)])
def test_a_time_is_written_as_everywhere_else(text: str, seconds: float, tmp_path: Path) -> None:
    (tmp_path / "andon.toml").write_text(f'lease_seconds = "{text}"')
    assert load(environ={}, folder=tmp_path).lease_seconds == seconds
    assert load(environ={"ANDON_GRACE_SECONDS": text}, folder=tmp_path).grace_seconds == seconds


@pytest.mark.parametrize("name", MORE_THAN_0)
@pytest.mark.parametrize("value", ["0", "-1"])
def test_zero_and_negative_values_are_refused(name: str, value: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, environ={f"ANDON_{name.upper()}": value}) == (
        f"setting {name!r} in the environment: expected more than 0, found {value!r}"
    )


@pytest.mark.parametrize(("name", "least"), LEAST.items())
def test_a_setting_that_may_be_0_refuses_negative_values(
    name: str, least: int, tmp_path: Path
) -> None:
    assert getattr(load_from(tmp_path, given={name: least}), name) == least
    assert refusal(tmp_path, given={name: least - 1}) == (
        f"setting {name!r} in the arguments: expected at least {least}, found {least - 1}"
    )


@pytest.mark.parametrize("value", ["ec2", "gce", "azure", "auto"])
def test_only_a_known_cloud_is_accepted(value: str, tmp_path: Path) -> None:
    assert load_from(tmp_path, environ={"ANDON_PREEMPTION": value}).preemption == value
    assert refusal(tmp_path, environ={"ANDON_PREEMPTION": value.upper()}) == (
        "setting 'preemption' in the environment: expected ec2, gce, azure, auto, or nothing; "
        f"found {value.upper()!r}"
    )


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_time_too_large_for_any_clock_is_refused(name: str, value: str, tmp_path: Path) -> None:
    assert f"setting {name!r} in" in refusal(tmp_path, environ={f"ANDON_{name.upper()}": value})


@pytest.mark.parametrize("name", [name for name in NUMBERS if name not in WHOLE])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_and_infinity_of_toml_are_refused(name: str, value: float, tmp_path: Path) -> None:
    wanted = "expected at least 0" if name in LEAST else "expected more than 0"
    assert wanted in refusal(tmp_path, toml=f"{name} = {value}")


@pytest.mark.parametrize("value", [7, ["sqlite:///a.db"], {"url": "x"}])
def test_a_store_that_is_not_text_is_refused(value: Any, tmp_path: Path) -> None:
    assert refusal(tmp_path, given={"store": value}) == (
        f"setting 'store' in the arguments: expected text, found {value!r}"
    )


@pytest.mark.parametrize(
    "broken",
    [b"concurrency = ", b"\xff\xfe", b"a = 1\na = 2", b"a = " + b"[" * 3000, b"a = " + b"9" * 5000],
    ids=lambda broken: repr(broken[:16]),
)
def test_a_broken_file_is_refused_by_its_name(broken: bytes, tmp_path: Path) -> None:
    (tmp_path / "andon.toml").write_bytes(broken)
    assert refusal(tmp_path).startswith(f"{tmp_path}/andon.toml: expected TOML, found: ")


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("value", ["inf", "2.7"])
def test_a_count_that_is_not_a_whole_number_is_refused(
    name: str, value: str, tmp_path: Path
) -> None:
    assert "expected a " in refusal(tmp_path, toml=f"{name} = {value}")


@pytest.mark.parametrize(
    ("name", "known"), [("lost_contact", "stop, continue"), ("on_stall", "restart, show")]
)
def test_a_policy_that_does_not_exist_is_refused(name: str, known: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, given={name: "hope"}) == (
        f"setting {name!r} in the arguments: expected {known}; found 'hope'"
    )


def test_variables_of_the_supervisor_are_accepted_and_are_no_settings(tmp_path: Path) -> None:
    names = ("SUPERVISOR", "SUPERVISOR_FD", "CONTAINMENT", "PING_FD", "STACKS", "RUN", "COMMAND")
    load_from(tmp_path, environ={f"ANDON_{name}": "x" for name in (*names, "HOME")})

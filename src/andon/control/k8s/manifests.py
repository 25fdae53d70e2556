"""Builds the manifests of a Deployment of workers and of a Job for one run.

The grace periods of worker, pod and probes are computed here from one number, so that they agree.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from andon.control.k8s.yaml import document
from andon.core.fleet.grace import MARGIN_SECONDS, PRE_STOP_SECONDS, stop_period
from andon.errors import BadInput

KINDS = ("deployment", "job", "all")
# EX_TEMPFAIL: the run is saved, but unfinished.
SAVED = 75
# RFC 1123: a label names objects, a subdomain names secrets.
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,500}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The options of `andon k8s render`."""

    grace: int = 80
    image: str = "registry.example/agents:1"
    name: str = "agents"
    target: str = "agents.py"
    store_secret: str = "andon-store:url"  # noqa: S105
    replicas: int = 3
    health_port: int = 8080

    def __post_init__(self) -> None:
        _expect(_LABEL, self.name, "--name", "at most 63 of a-z, 0-9 and -, like my-agents")
        _expect(_IMAGE, self.image, "--image", "an image, like registry.example/agents:1")
        secret, colon, key = self.store_secret.partition(":")
        wanted = "NAME:KEY of a secret, like andon-store:url"
        _expect(_SUBDOMAIN, secret, "--store-secret", wanted)
        _expect(_KEY, key if colon else "", "--store-secret", wanted)
        if not self.target or not self.target.isprintable() or self.target.startswith("-"):
            raise BadInput(f"--target {self.target!r}: expected FILE or MODULE, like agents.py")


def _expect(pattern: re.Pattern[str], text: str, option: str, wanted: str) -> None:
    if not pattern.fullmatch(text):
        raise BadInput(f"{option} {text!r}: expected {wanted}")


def manifests(wanted: Wanted, kind: str) -> list[dict[str, Any]]:
    """The objects as Kubernetes reads them."""
    made = {"deployment": deployment, "job": single_run}
    return [make(wanted) for name, make in made.items() if kind in (name, "all")]


def rendered(wanted: Wanted, kind: str) -> str:
    """The objects as YAML, with comments that explain surprising values."""
    parts = [
        f"# andon k8s render --grace {wanted.grace} --kind {found['kind'].lower()}\n"
        + document(found, remarks(wanted, found["kind"]))
        for found in manifests(wanted, kind)
    ]
    return "---\n".join(parts)


def deployment(wanted: Wanted) -> dict[str, Any]:
    """A Deployment of workers; one that has drained exits with 0 and is replaced."""
    labels = {"app.kubernetes.io/name": wanted.name}
    worker = {
        "name": "worker",
        "image": wanted.image,
        "command": ["andon", "work", _literal(wanted.target)],
        "env": [*_environment(wanted), _named("ANDON_HEALTH_PORT", str(wanted.health_port))],
        "ports": [{"name": "health", "containerPort": wanted.health_port}],
        "lifecycle": {"preStop": {"exec": {"command": ["andon", "drain", "--self", "--no-wait"]}}},
        "startupProbe": _probe("/startupz", period=2, failures=60),
        "readinessProbe": _probe("/readyz", period=5, failures=1),
        "livenessProbe": _probe("/livez", period=10, failures=3),
        "securityContext": _SECURITY,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": wanted.name, "labels": labels},
        "spec": {
            "replicas": wanted.replicas,
            "selector": {"matchLabels": labels},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
            },
            "template": {
                "metadata": {"labels": labels},
                "spec": {**_pod(wanted), "containers": [worker]},
            },
        },
    }


def single_run(wanted: Wanted) -> dict[str, Any]:
    """A Job that executes one run; the next pod continues a run that a pod leaves unfinished."""
    labels = {"app.kubernetes.io/name": wanted.name}
    uid = "metadata.labels['batch.kubernetes.io/controller-uid']"
    once = {
        "name": "run",
        "image": wanted.image,
        "command": ["andon", "run", _literal(wanted.target), "--id", "$(RUN_ID)"],
        "env": [
            *_environment(wanted),
            {"name": "RUN_ID", "valueFrom": {"fieldRef": {"fieldPath": uid}}},
        ],
        "securityContext": _SECURITY,
    }
    exits = {"containerName": "run", "operator": "In", "values": [SAVED]}
    moved = [{"type": "DisruptionTarget", "status": "True"}]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": wanted.name, "labels": labels},
        "spec": {
            "backoffLimit": 4,
            "podFailurePolicy": {
                "rules": [
                    {"action": "Ignore", "onExitCodes": exits},
                    {"action": "Ignore", "onPodConditions": moved},
                ]
            },
            "template": {
                "metadata": {"labels": labels},
                "spec": {"restartPolicy": "Never", **_pod(wanted), "containers": [once]},
            },
        },
    }


_SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _pod(wanted: Wanted) -> dict[str, Any]:
    return {
        "terminationGracePeriodSeconds": stop_period(wanted.grace),
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
    }


def _environment(wanted: Wanted) -> Iterator[dict[str, Any]]:
    secret, _, key = wanted.store_secret.partition(":")
    yield {"name": "ANDON_STORE", "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
    yield _named("ANDON_GRACE_SECONDS", str(wanted.grace))
    yield _named("ANDON_ORCHESTRATOR_GRACE_SECONDS", str(stop_period(wanted.grace)))


def _named(name: str, text: str) -> dict[str, Any]:
    return {"name": name, "value": text}


def _literal(text: str) -> str:
    """Escape $(NAME), which Kubernetes would replace in commands."""
    return text.replace("$(", "$$(")


def _probe(path: str, *, period: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "health"},
        "periodSeconds": period,
        "timeoutSeconds": 3,
        "failureThreshold": failures,
    }


def remarks(wanted: Wanted, kind: str) -> dict[str, str]:
    """Comments for the YAML, by the path of the key that each stands above."""
    pod = "spec.template.spec"
    secret, _, key = wanted.store_secret.partition(":")
    before = "preStop, which counts too" if kind == "Deployment" else "a slow start of the drain"
    return {
        "spec.backoffLimit": (
            f"The container exits with 0: done. {SAVED}: it was asked to stop and saved the run;\n"
            "the next pod continues it, which is no failure. Anything else is one: at most so many."
        ),
        "spec.strategy": "A new worker is ready before an old one is stopped.",
        f"{pod}.terminationGracePeriodSeconds": (
            f"{wanted.grace} s to drain + {PRE_STOP_SECONDS} s for {before}"
            f" + {MARGIN_SECONDS} s to exit."
        ),
        f"{pod}.enableServiceLinks": (
            "A service that is called andon would put ANDON_PORT and more into the environment,\n"
            "where every ANDON_ name is a setting."
        ),
        f"{pod}.containers.command": "No shell: andon is process 1 and gets the signals itself.",
        f"{pod}.containers.env": (
            "PostgreSQL: pods do not share a file.\n"
            f"kubectl create secret generic {secret} --from-literal={key}=postgresql://…"
        ),
        f"{pod}.containers.lifecycle": (
            "Starts the drain and returns; SIGTERM follows while it runs."
        ),
        f"{pod}.containers.livenessProbe": (
            "Fails if the event loop or the connection to the store hangs, not if the store is "
            "down."
        ),
    }

"""Metrics in the text format of Prometheus, version 0.0.4."""

from collections.abc import Iterable, Mapping
from math import inf, isnan
from typing import NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Family(NamedTuple):
    """All samples of one metric. `kind` is gauge or counter."""

    name: str
    kind: str
    help: str
    samples: tuple[tuple[Mapping[str, str], float], ...]


def one(name: str, kind: str, text: str, value: float) -> Family:
    """Return a family with a single value."""
    return Family(name, kind, text, (({}, value),))


def render(families: Iterable[Family]) -> str:
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {_escape(family.help)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        lines += [
            f"{family.name}{_labels(labels)} {_number(value)}" for labels, value in family.samples
        ]
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{_escape(text, quoted=True)}"' for name, text in labels.items())
    return f"{{{','.join(pairs)}}}"


def _escape(text: str, *, quoted: bool = False) -> str:
    found = text.replace("\\", "\\\\").replace("\n", "\\n")
    return found.replace('"', '\\"') if quoted else found


def _number(value: float) -> str:
    if isnan(value):
        return "NaN"
    if value in (inf, -inf):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(float(value))

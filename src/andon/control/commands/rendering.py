"""Commands that write files for those who run andon."""

from typing import Any

import click

from andon.control import output
from andon.control.cli import asked, cli, everywhere


@cli.group()
@everywhere
def k8s() -> None:
    """Kubernetes manifests with grace periods and probes that fit."""


@k8s.command()
@click.option(
    "--grace",
    type=click.IntRange(1, 86_400),
    default=80,
    show_default=True,
    metavar="S",
    help="How long a worker drains; the pod's period is computed from it.",
)
@click.option("--image", help="With andon and the agents in it.")
@click.option("--name", help="Of the objects.")
@click.option("--target", metavar="MODULE_OR_FILE[:NAME]", help="What the workers serve.")
@click.option("--store-secret", metavar="NAME:KEY", help="The secret with the store's URL.")
@click.option(
    "--kind",
    type=click.Choice(("deployment", "job", "all")),
    default="all",
    show_default=True,
    help="Workers for a queue, or one run.",
)
@click.option("--replicas", type=click.IntRange(0, 10_000), metavar="N", help="How many workers.")
@click.option("--health-port", type=click.IntRange(1, 65_535), metavar="N", help="For probes.")
@everywhere
def render(kind: str, **given: Any) -> None:
    """Print the manifests: andon k8s render --grace 80 | kubectl apply -f -"""
    from andon.control import kubernetes

    wanted = kubernetes.Wanted(**{name: word for name, word in given.items() if word is not None})
    if asked().json:
        output.document({"manifests": kubernetes.manifests(wanted, kind)})
    else:
        output.say(kubernetes.rendered(wanted, kind).rstrip("\n"))

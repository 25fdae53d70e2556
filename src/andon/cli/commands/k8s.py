"""Commands that write files for operators."""

from math import ceil
from typing import Any

import click

from andon.cli import options
from andon.cli.app import CommandGroup, cli, print_answer, takes_global_options


@cli.group(cls=CommandGroup)
@takes_global_options
def k8s() -> None:
    """Write Kubernetes manifests with fitting grace periods."""


@k8s.command()
@options.seconds(
    "--grace",
    least=1,
    most=86_400,
    default="80s",
    help="How long a drain may take; the pod's grace period is computed from it.",
)
@click.option("--image", help="Container image with andon and the agents.")
@click.option("--name", metavar="NAME", help="Name of the Kubernetes objects.")
@click.option(
    "--target", metavar="MODULE_OR_FILE[:NAME]", help="The file or module that the workers serve."
)
@click.option("--store-secret", metavar="NAME:KEY", help="The secret with the store's URL.")
@click.option(
    "--kind",
    type=click.Choice(("deployment", "job", "all")),
    default="all",
    show_default=True,
    help="Workers for a queue, or one run.",
)
@options.number("--replicas", least=0, most=10_000, help="How many workers.")
@options.number("--health-port", least=1, most=65_535, help="Port of the probes.")
@takes_global_options
def render(kind: str, grace: float, **given: Any) -> None:
    """Print the manifests: andon k8s render --grace 80 | kubectl apply -f -"""
    from andon.control.k8s import manifests

    wanted = manifests.Wanted(
        grace=ceil(grace), **{name: word for name, word in given.items() if word is not None}
    )
    print_answer(
        {"manifests": manifests.manifests(wanted, kind)},
        manifests.rendered(wanted, kind).rstrip("\n"),
    )

"""Commands that write files for operators."""

from math import ceil
from typing import Any

import click

from andon.cli import options, output
from andon.cli.app import CommandGroup, asked, cli, everywhere


@cli.group(cls=CommandGroup)
@everywhere
def k8s() -> None:
    """Write Kubernetes manifests with fitting grace periods."""


@k8s.command()
@click.option(
    "--grace",
    type=options.Duration(1, 86_400),
    default="80s",
    show_default=True,
    metavar="TIME",
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
@click.option("--replicas", type=options.Whole(0, 10_000), metavar="N", help="How many workers.")
@click.option(
    "--health-port", type=options.Whole(1, 65_535), metavar="N", help="Port of the probes."
)
@everywhere
def render(kind: str, grace: float, **given: Any) -> None:
    """Print the manifests: andon k8s render --grace 80 | kubectl apply -f -"""
    from andon.control.k8s import manifests

    wanted = manifests.Wanted(
        grace=ceil(grace), **{name: word for name, word in given.items() if word is not None}
    )
    if asked().json:
        output.document({"manifests": manifests.manifests(wanted, kind)})
    else:
        output.say(manifests.rendered(wanted, kind).rstrip("\n"))

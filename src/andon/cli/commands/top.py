"""The command that shows the fleet live."""

import sys
from typing import Any

from andon.cli import options, output
from andon.cli.app import cli, make_settings, print_answer, query, takes_global_options, wants_json


@cli.command()
@options.of_agent
@options.label
@takes_global_options
def top(agent: str | None, label: str | None) -> None:
    """Show the fleet, live.

    Lists the runs that execute, stop or wait for a person, and the workers. Keys: j/k or arrows
    select a run, Enter shows it, q or Ctrl-C leaves. Without a terminal it prints one picture and
    exits.
    """
    show(agent, label)


def show(agent: str | None, label: str | None) -> None:
    """Show the fleet live on a terminal; elsewhere, or with --json, once."""
    from andon.cli import args
    from andon.cli.top import terminal

    which: dict[str, Any] = {"agent": agent}
    which["label"] = args.pair(label, "label") if label else None
    if terminal.interactive() and not wants_json():
        from andon.cli.top import screen as live

        live.run(make_settings().store, which)
        return
    from andon.cli.table import room
    from andon.cli.top import frame
    from andon.control.overview import overview

    def print_frame(found: dict[str, Any]) -> None:
        for line in frame.frame(found, frame.Size(columns=room(sys.stdout)), selected=None):
            output.say(line)

    print_answer(query(overview, **which), print_frame)

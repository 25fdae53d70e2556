"""The run of a command: a program that does not use andon itself, started by `andon exec`."""

import json
import shlex
from collections.abc import Sequence

from andon.core.journal import Entry, EntryKind
from andon.core.text import clean, command

VERSION = "command"


def again(run_id: str, agent: str, argv: Sequence[str]) -> str:
    """The command line that continues the run of a command."""
    return command("exec", options=("--id", run_id, "--name", agent, "--", *argv))


def called(start: Entry | None) -> str:
    """The command that a run executes, read from its start entry."""
    if start is None or start.body is None or start.kind != EntryKind.START:
        return "its command"
    return clean(shlex.join(json.loads(start.body)["argv"]), 200)

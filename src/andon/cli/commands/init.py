"""The command that writes a first agent."""

from pathlib import Path

import click

from andon.cli.app import advise, cli, print_answer, takes_global_options
from andon.core.text import clean


@cli.command()
@click.argument("folder", required=False, default=".")
@takes_global_options
def init(folder: str) -> None:
    """Write a first agent, its test and andon.toml.

    Here, or into FOLDER. Existing files are never overwritten: then nothing is written.
    """
    import shlex

    from andon.cli import first_project

    written = first_project.write(Path(folder))
    found = {"folder": str(Path(folder).absolute()), "files": list(first_project.FILES)}
    print_answer(found, "\n".join(f"wrote {clean(path)}" for path in written))
    go = "" if Path(folder) == Path() else f"cd {shlex.quote(clean(folder))} && "
    advise(f"next: {go}andon run agent.py name=Ada")
    advise("then: andon crashtest agent.py")
    advise(f"then: {first_project.test_command()}")

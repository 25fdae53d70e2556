"""The command that writes a first agent."""

from pathlib import Path

import click

from andon.cli import output
from andon.cli.app import advise, asked, cli, everywhere
from andon.core.text import clean


@cli.command()
@click.argument("folder", required=False, default=".")
@everywhere
def init(folder: str) -> None:
    """Write a first agent, its test and andon.toml.

    Here, or into FOLDER. Existing files are never overwritten: then nothing is written.
    """
    import shlex

    from andon.cli import first_project

    written = first_project.write(Path(folder))
    if asked().json:
        output.document(
            {"folder": str(Path(folder).absolute()), "files": list(first_project.FILES)}
        )
        return
    for path in written:
        output.say(f"wrote {clean(path)}")
    go = "" if Path(folder) == Path() else f"cd {shlex.quote(clean(folder))} && "
    advise(f"next: {go}andon run agent.py name=Ada")
    advise("then: andon crashtest agent.py")
    advise(f"then: {first_project.test_command()}")

"""Loads agents from users' files and modules.

A file is imported as Python would run it, with its folder on the import path. Its module keeps its
own name unless that name is taken: an agent file called queue.py must not replace `queue` for
everybody.
"""

import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

import andon
from andon.errors import AndonError, BadInput, NotFound
from andon.runtime.agent import Agent
from andon.runtime.processes import attribution
from andon.runtime.worker.peers import mark_of, this_process

_OURS = Path(andon.__file__).parent


def load(target: str) -> list[Agent]:
    """Return the agents that `target` names: FILE or MODULE, or either with :NAME."""
    source, name = _split(target)
    is_file = source.endswith(".py") or os.sep in source or Path(source).is_file()
    module = _import_file(source) if is_file else _import_module(source)
    agents = [
        (variable, found) for variable, found in vars(module).items() if isinstance(found, Agent)
    ]
    if not agents:
        public = sum(not name.startswith("_") for name in vars(module))
        raise BadInput(
            f"{source}: expected at least one agent, found none among the {public} names "
            "of the module. An agent is a function marked with @andon.agent."
        )
    if name is None:
        return _once([agent for _, agent in agents])
    chosen = [agent for variable, agent in agents if name in (variable, agent.name)]
    if not chosen:
        known = ", ".join(sorted({agent.name for _, agent in agents}))
        raise NotFound(f"{source}: there is no agent {name!r}; it has: {known}")
    return _once(chosen)


def only(agents: list[Agent]) -> Agent:
    """Return the agent of a command that executes a single one."""
    if len(agents) != 1:
        names = ", ".join(sorted(agent.name for agent in agents))
        raise BadInput(f"expected one agent, found {len(agents)}: {names}. Say which: FILE:NAME")
    return agents[0]


def load_to_execute(target: str) -> list[Agent]:
    """Load agents in a worker, which then owns the processes that their code starts at import."""
    attribution.follow()
    attribution.marks_of(mark_of(this_process()), put=True)
    return load(target)


def _once(agents: list[Agent]) -> list[Agent]:
    return list({id(agent): agent for agent in agents}.values())


def _split(target: str) -> tuple[str, str | None]:
    source, colon, name = target.rpartition(":")
    if not colon or Path(target).is_file() or os.sep in name:
        return target, None
    if not source or not name:
        raise BadInput(f"{target!r}: expected FILE or MODULE, or one of them with :NAME")
    return source, name


def _import_file(source: str) -> ModuleType:
    path = Path(source)
    if path.is_dir():
        raise BadInput(f"{source}: expected a Python file, found a folder")
    if not path.is_file():
        raise BadInput(f"{source}: there is no such file")
    path = path.resolve()
    _importable_from(path.parent)
    name = path.stem
    if name in sys.modules or name in sys.stdlib_module_names:
        name = f"andon_agents_{len(sys.modules)}_{name}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadInput(f"{source}: expected a Python file, ending in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _broken(source, error) from error
    return module


def _import_module(source: str) -> ModuleType:
    _importable_from(Path.cwd())
    parts = source.split(".")
    names = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    try:
        if all(part.isidentifier() for part in parts):
            return importlib.import_module(source)
    except (Exception, SystemExit) as error:
        if not isinstance(error, ModuleNotFoundError) or error.name not in names:
            raise _broken(source, error) from error
    raise BadInput(
        f"{source}: there is no module of that name here. To serve a file, write its path, "
        "like agents.py"
    )


def _importable_from(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _broken(source: str, error: BaseException) -> AndonError:
    """Describe an error in the user's code: one line, with the frames of their code as a note.

    An error that andon raises itself, such as a missing extra, needs only the line.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and not frame.filename.startswith("<frozen importlib")
    ]
    if isinstance(error, SystemExit):
        what = (
            f"it ended the program (exit {error.code}) while it was imported. Put the code that "
            "starts the program under: if __name__ == '__main__':"
        )
    elif isinstance(error, AndonError):
        theirs = [frame for frame in frames if not Path(frame.filename).is_relative_to(_OURS)]
        where = f"{Path(theirs[-1].filename).name}, line {theirs[-1].lineno}: " if theirs else ""
        where = where.removeprefix(f"{Path(source).name}, ")
        return AndonError(f"{source} could not be imported: {where}{error}")
    else:
        what = traceback.format_exception_only(error)[-1].strip()
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        what += f". Is it installed where andon is? {sys.executable} -m pip install {package}"
    broken = AndonError(f"{source} could not be imported: {what}")
    shown = traceback.format_list(frames)
    if isinstance(error, SyntaxError):
        shown += traceback.format_exception_only(error)[:-1]
    if shown:
        broken.add_note("".join(["Traceback (most recent call last):\n", *shown]).rstrip())
    return broken

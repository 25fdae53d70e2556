"""What a crash test works in: a folder, stores, an environment, a way to find the agent."""

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from inspect import CO_NESTED
from pathlib import Path
from typing import Any

from andon.errors import AndonError, BadInput
from andon.runtime.agent import Agent
from andon.store.postgres.driver import driver
from andon.testing.crash import forker

Hook = Callable[[Path], object]


class HookFailed(BadInput):
    """A command did not end as it has to; `found` is what it did."""

    def __init__(self, command: str, found: str, do: str = "") -> None:
        super().__init__(f"{command} {found}{do}")
        self.found = found


# A command that looks at a folder takes less; one that hangs holds up the test for good.
HOOK_SECONDS = 120.0


def command(agent: Agent) -> list[str]:
    """What starts the process that imports the agent: by its module, else by its file."""
    code = getattr(agent.function, "__code__", None)
    if code is None or not Path(code.co_filename).is_file() or code.co_flags & CO_NESTED:
        raise BadInput(
            f"agent {agent.name!r}: expected one at the top level of a file, so that the processes "
            "of the test can import it"
        )
    module, file = str(agent.function.__module__), str(code.co_filename)
    source = module if _is_there(module, file) else file
    return forker.command(source, agent.name, [part or os.getcwd() for part in sys.path])


def _is_there(module: str, file: str) -> bool:
    """Whether somebody who imports the module gets that file."""
    try:
        # Not what is loaded under that name: a file may have been given any.
        look = importlib.util.find_spec if "." in module else PathFinder.find_spec
        spec = look(module)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None and Path(spec.origin) == Path(file)


def environment(folder: Path) -> dict[str, str]:
    """Nothing of the real home and store."""
    own = {name: text for name, text in os.environ.items() if not name.startswith("ANDON_")}
    return {**own, "ANDON_HOME": str(folder / "home"), "ANDON_STORE": _unused(folder)}


def _unused(folder: Path | str) -> str:
    return f"sqlite:///{folder}/imported.db"


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """A store that is opened by an import meanwhile is none of the real ones."""
    configured = os.environ.get("ANDON_STORE")
    with tempfile.TemporaryDirectory(prefix="andon-crashtest-") as own:
        os.environ["ANDON_STORE"] = _unused(own)
        try:
            yield
        finally:
            del os.environ["ANDON_STORE"]
            if configured is not None:
                os.environ["ANDON_STORE"] = configured


@contextlib.contextmanager
def folder(keep: Path | str | None) -> Iterator[Path]:
    """A folder for everything; removed after the test, unless somebody wants to look at it."""
    if keep is None:
        own = Path(tempfile.mkdtemp(prefix="andon-crashtest-"))
        try:
            yield own
        finally:
            shutil.rmtree(own, ignore_errors=True)
        return
    kept = Path(keep).absolute()
    kept.mkdir(parents=True, exist_ok=True)
    if any(kept.iterdir()):
        raise BadInput(f"{kept}: expected a folder that is empty or not there")
    yield kept


@contextlib.contextmanager
def stores(url: str | None) -> Iterator[Callable[[Path], str]]:
    """Makes an empty store for each run."""
    if url is None:
        yield lambda folder: f"sqlite:///{folder}/andon.db"
        return
    if not url.startswith(("postgresql://", "postgres://")):
        raise BadInput(
            f"store {url!r}: expected postgresql://… of a scratch database. Without it, each run "
            "has an SQLite file of its own"
        )
    _refuse_used(url)

    def anew(folder: Path) -> str:
        _execute(url, "DROP SCHEMA IF EXISTS andon CASCADE")
        return url

    yield anew
    _execute(url, "DROP SCHEMA IF EXISTS andon CASCADE")


def _refuse_used(url: str) -> None:
    """It will be emptied, again and again."""
    found = _execute(url, "SELECT count(*) FROM pg_namespace WHERE nspname = 'andon'")
    if found and found[0][0]:
        raise BadInput(
            "store: expected a scratch database without a schema `andon`, found one. It would be "
            "emptied for each run: give an empty database, or drop the schema yourself"
        )


def _execute(url: str, sql: Any) -> list[Any]:
    psycopg = driver()
    try:
        with psycopg.connect(url, autocommit=True) as db:
            found = db.execute(sql)
            return found.fetchall() if found.description else []
    except psycopg.OperationalError as error:
        raise AndonError(f"the scratch database does not answer: {error}") from error


def hook(given: Hook | str | None, what: str) -> Hook | None:
    """A function, or a command for the shell."""
    if not isinstance(given, str):
        return given

    def command(folder: Path) -> str:
        environ = {**os.environ, "OLDPWD": str(Path.cwd())}
        with subprocess.Popen(  # noqa: S602 (it is what the user typed)
            given,
            shell=True,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
            text=True,
            errors="backslashreplace",
        ) as shell:
            try:
                printed, said = shell.communicate(timeout=HOOK_SECONDS)
            except BaseException as error:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(shell.pid, signal.SIGKILL)  # with all that it has started
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                found = f"did not end in {HOOK_SECONDS:.0f} s"
                raise HookFailed(f"--{what} {given!r}", found) from None
        if shell.returncode != 0:
            why = said.strip() or printed.strip() or "it said nothing"
            raise HookFailed(
                f"--{what} {given!r}",
                f"ended with {shell.returncode}: {why}",
                ". It has to end with 0: append `; true` if it may fail",
            )
        return printed.strip()

    return command

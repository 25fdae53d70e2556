"""The surroundings of a crash test: scratch folders and stores, environment, imports and hooks."""

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
    """A hook command that failed; `found` says how."""

    def __init__(self, command: str, found: str, do: str = "") -> None:
        super().__init__(f"{command} {found}{do}")
        self.found = found


# A hook that checks a folder takes less; one that hangs would block the test for ever.
HOOK_SECONDS = 120.0


def command(agent: Agent) -> list[str]:
    """Return the command of the forker, which imports the agent by module or else by file."""
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
    """Whether importing the module would load that file."""
    try:
        # Not sys.modules: a file may have been loaded under any name.
        look = importlib.util.find_spec if "." in module else PathFinder.find_spec
        spec = look(module)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None and Path(spec.origin) == Path(file)


def environment(folder: Path) -> dict[str, str]:
    """Return the environment without the user's real home and store."""
    own = {name: text for name, text in os.environ.items() if not name.startswith("ANDON_")}
    return {**own, "ANDON_HOME": str(folder / "home"), "ANDON_STORE": _unused(folder)}


def _unused(folder: Path | str) -> str:
    return f"sqlite:///{folder}/imported.db"


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Inside the block, a store that an import opens is a scratch store."""
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
    """Provide a folder for the test and remove it afterwards, unless the user keeps it."""
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
    """Provide a function that makes an empty store for each run."""
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
    """Refuse a database with andon's schema: the test empties it for each run."""
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
    """Turn a shell command into a function; return a function as it is."""
    if not isinstance(given, str):
        return given

    def command(folder: Path) -> str:
        environ = {**os.environ, "OLDPWD": str(Path.cwd())}
        with subprocess.Popen(  # noqa: S602 (the user typed it)
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

"""Reads the Markdown pages of the project and executes their commands.

A code block may be marked by a comment on the line before it:

    <!-- file: NAME -->   the block is a complete file of that name
    <!-- run -->          the `$ ` lines of the block are executed, one after the other
    <!-- run: postgres --> the same, with ANDON_STORE naming an empty PostgreSQL database
    <!-- paste -->        the block is typed into a shell as one piece
    <!-- prints -->       and the block is the output of that shell

The lines below a command are its output. They are compared by their words: numbers, ids and
times differ from one execution to the next, and `…` stands for more of the same.
"""

import contextlib
import os
import pty
import re
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    page
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if not page.name.startswith(".")
)
LIMIT_SECONDS = 90.0
# A worker in the background is waited for: a reader of the page sees its message, too.
_WORKER = re.compile(r"\bandon work [^#]*&\s*(#.*)?$")
READY = "is ready"
# A reader repeats these commands until the output is there; they only read.
LOOKS = ("cat ", "andon ps", "andon show", "andon logs")

_FENCE = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
# Terminal escape codes: colours, and bracketed paste.
_CODES = re.compile(r"\x1b\[[?\d;]*[A-Za-z]")
# Words without a digit: those with one, and names of the machine, differ between executions.
_WORD = re.compile(r"[A-Za-z_]{2,}")


@dataclass(frozen=True)
class Block:
    """A code block."""

    page: Path
    line: int
    language: str
    text: str
    mark: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, found.start("text")) + 1,
            found["language"],
            found["text"],
            found["mark"] or "",
        )
        for found in _FENCE.finditer(text)
    ]


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return _FENCE.sub("", page.read_text("utf-8"))


def links(page: Path) -> list[str]:
    """The targets of all links that lead to files of this repository."""
    found: list[str] = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    return [target for target in found if "://" not in target]


def anchors(page: Path) -> set[str]:
    """The names that headings can be linked by."""
    titles: list[str] = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def entries(page: Path) -> set[str]:
    """The documented names: headings and first table cells, by their code marks or their text."""
    text = prose(page)
    heads: list[str] = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    heads += re.findall(r"^\| *(.+?) *\|", text, re.MULTILINE)
    found = {head.strip("*` ") for head in heads}
    for head in heads:
        for code in re.findall(r"`([^`]+)`", head):
            found |= {code, code.partition("(")[0].rpartition(".")[2]}
        found |= {word.strip("*` ") for word in re.split(r"[,/]", head)}
    return found


# ── executing ─────────────────────────────────────────────────────────────────────────────────


@dataclass
class Command:
    """A line that a reader types, and the lines that are printed below it."""

    line: str
    expected: list[str] = field(default_factory=list)

    def missing(self, printed: str) -> list[str]:
        """The expected lines of which some word was not printed."""
        words = set(_WORD.findall(printed))
        return [line for line in self.expected if not words.issuperset(_words(line))]


def _words(line: str) -> set[str]:
    # Numbers, ids and paths differ each time; an ellipsis stands for more of the same.
    plain = " ".join(
        word for word in line.split("…", maxsplit=1)[0].split() if not re.search(r"[\d/]", word)
    )
    return set(_WORD.findall(re.sub(r"by \w+", "by", plain)))


def commands(block: Block) -> list[Command]:
    found: list[Command] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], [READY] if _WORKER.search(line) else []))
        elif line.strip():
            found[-1].expected.append(line)
    return found


def environment(folder: Path, **environ: str) -> dict[str, str]:
    """The environment of a reader: `andon` on PATH, a home of its own."""
    programs = folder / ".bin"
    programs.mkdir()
    (programs / "andon").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m andon "$@"\n')
    (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANDON_")}
    # Unbuffered, a print is several writes, between which another process may print.
    kept.pop("PYTHONUNBUFFERED", None)
    return {
        **kept,
        "ANDON_HOME": str(folder / ".home"),  # a halt on a page concerns this home only
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        "PYTHONUTF8": "1",
        **environ,
    }


class Shell:
    """A bash in which the commands of a page are typed."""

    def __init__(self, folder: Path, **environ: str) -> None:
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=folder,
            env=environment(folder, **environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=False,
        )
        self._typed = 0
        self._printed = ""
        self._type("set -m")  # as in a terminal: a job in the background is its own process group

    def __enter__(self) -> "Shell":
        return self

    def __exit__(self, *_: object) -> None:
        for pid in descendants(self._bash.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        self._bash.kill()
        self._bash.wait()
        for stream in (self._bash.stdin, self._bash.stdout):
            assert stream is not None
            stream.close()

    def execute(self, command: Command) -> str:
        """Type the line and return what was printed; fail if it differs from the page."""
        until = time.monotonic() + LIMIT_SECONDS
        seen = ""
        while True:
            seen += self._type(command.line)
            while command.missing(seen) and not command.line.startswith(LOOKS):
                assert time.monotonic() < until, self._complaint(command, seen)
                seen += self._read(0.2)
            if not command.missing(seen):
                return seen
            assert time.monotonic() < until, self._complaint(command, seen)
            time.sleep(0.1)
            seen = ""

    @staticmethod
    def _complaint(command: Command, seen: str) -> str:
        return f"$ {command.line}\nexpected: {command.missing(seen)}\nprinted:\n{seen}"

    def _type(self, line: str) -> str:
        assert self._bash.stdin is not None
        self._typed += 1
        end = f"-- {self._typed} is done --"
        self._bash.stdin.write(f"{line}\necho '{end}'\n".encode())
        self._bash.stdin.flush()
        until = time.monotonic() + LIMIT_SECONDS
        printed = ""
        while end not in printed:
            assert time.monotonic() < until, f"$ {line}\ndoes not end; printed:\n{printed}"
            printed += self._read(1.0)
        return printed.replace(end, "")

    def _read(self, seconds: float) -> str:
        assert self._bash.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._bash.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                return ""
        return os.read(self._bash.stdout.fileno(), 65536).decode(errors="replace")


def descendants(pid: int) -> Iterator[int]:
    """Every process below this one, the youngest first."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from descendants(int(child))
        yield int(child)


def follow(page: Path, folder: Path, **environ: str) -> str:
    """Execute every marked block of a page in order; returns all that was printed."""
    printed = ""
    (folder / "examples").symlink_to(ROOT / "examples")  # a reader has a clone
    with Shell(folder, **environ) as shell:
        for block in blocks(page):
            kind, _, name = block.mark.partition(": ")
            if kind == "file":
                (folder / name).write_text(block.text)
            elif kind == "run":
                for command in commands(block):
                    printed += f"$ {command.line}\n{shell.execute(command)}"
    return printed


def paste(page: Path, folder: Path, *shell: str) -> str:
    """Paste the marked blocks into a shell at once; returns what it printed until its end.

    `shell` runs in a terminal, as a person's does; by default it is a bash that reads a script.
    """
    for block in blocks(page):
        if block.mark.startswith("file: "):
            (folder / block.mark.removeprefix("file: ")).write_text(block.text)
    text = "".join(block.text for block in blocks(page) if block.mark == "paste")
    if not shell:
        done = subprocess.run(
            ["bash"],
            input=text.encode(),
            cwd=folder,
            env=environment(folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        return done.stdout.decode()
    return _in_terminal(shell, f"{text}exit\n", folder)


def _in_terminal(shell: tuple[str, ...], text: str, folder: Path) -> str:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe(shell[0], shell, environment(folder))
    try:
        os.write(terminal, text.encode())
        return _until_closed(terminal)
    finally:
        for one in descendants(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, 9)
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(terminal)


def _until_closed(terminal: int) -> str:
    printed, until = b"", time.monotonic() + LIMIT_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(terminal, selectors.EVENT_READ)
        while True:
            assert selector.select(until - time.monotonic()), printed.decode(errors="replace")
            try:
                found = os.read(terminal, 65536)
            except OSError:  # no process has it open any more
                found = b""
            if not found:
                return _CODES.sub("", printed.decode(errors="replace"))
            printed += found


def promised(page: Path) -> list[str]:
    """The lines that pasted blocks print, in order."""
    return [
        line for block in blocks(page) if block.mark == "prints" for line in block.text.splitlines()
    ]

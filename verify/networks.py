"""Two network namespaces and a cable: a worker in one, the way to a database in the other.

Everything is created here and deleted again; only the addresses of the two ends are used. Run as a
program, this module is the proxy in the database's namespace: it passes bytes on to a socket file,
which no network can cut.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE, THERE = "10.231.77.1", "10.231.77.2"  # inside the two namespaces only


@dataclass(frozen=True)
class Cable:
    """The two ends, by the names of their namespaces."""

    database: str
    worker: str
    port: int

    @property
    def inside(self) -> tuple[str, ...]:
        """The prefix that runs a command in the worker's network."""
        return ("ip", "netns", "exec", self.worker)

    def url(self, database: str) -> str:
        return f"postgresql://postgres@{HERE}:{self.port}/{database}"

    def cut(self) -> None:
        """Nothing passes in either direction, and neither end is notified."""
        ip("-n", self.database, "link", "set", "cable", "down")

    def cut_one_way(self) -> None:
        """The worker's packets arrive; the answers do not."""
        ip("-n", self.database, "route", "add", "blackhole", f"{THERE}/32")

    def mend(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            ip("-n", self.database, "route", "del", "blackhole", f"{THERE}/32")
        ip("-n", self.database, "link", "set", "cable", "up")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def refuse() -> str:
    """Why this host gives us no network namespaces."""
    if shutil.which("ip") is None:
        return "iproute2 is not installed"
    if os.geteuid():
        return "not root"
    tried = subprocess.run(
        ["unshare", "--net", "ip", "link", "add", "cable", "type", "veth", "peer", "name", "end"],
        capture_output=True,
        check=False,
    )
    return tried.stderr.decode().strip()


@contextlib.contextmanager
def cabled(socket: Path, port: int) -> Iterator[Cable]:
    """A cable whose other end leads to the server behind `socket`."""
    found = Cable(f"andon-db-{os.getpid()}", f"andon-worker-{os.getpid()}", port)
    made = []
    try:
        for name in (found.database, found.worker):
            ip("netns", "add", name)
            made.append(name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", found.database, "link", "add", "cable", "type", "veth", "peer", "name", "cable",
           "netns", found.worker)  # fmt: skip
        for name, address in ((found.database, HERE), (found.worker, THERE)):
            ip("-n", name, "addr", "add", f"{address}/30", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
        with passing_on(found, socket):
            yield found
    finally:
        for name in made:
            ip("netns", "del", name)


@contextlib.contextmanager
def passing_on(cable: Cable, socket: Path) -> Iterator[None]:
    process = subprocess.Popen(
        ["ip", "netns", "exec", cable.database, sys.executable, __file__, str(cable.port), socket],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        if not process.stdout.readline():
            raise AssertionError("the way to the database did not open")
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def serve(port: int, socket: str) -> None:
    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            other_reader, other_writer = await asyncio.open_unix_connection(socket)
            pumps = {
                asyncio.create_task(pump(reader, other_writer)),
                asyncio.create_task(pump(other_reader, writer)),
            }
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for one in pumps:
                one.cancel()
            other_writer.close()
        writer.close()

    server = await asyncio.start_server(pass_on, HERE, port)
    sys.stdout.write("open\n")
    sys.stdout.flush()
    await server.serve_forever()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while found := await reader.read(65_536):
            writer.write(found)
            await writer.drain()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2]))

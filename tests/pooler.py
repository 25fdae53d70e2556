"""A transaction-mode connection pooler for tests: as hostile as pgbouncer may ever be.

A client owns a server connection (a *server*) only until the server says it is idle again
(ReadyForQuery with status ``I``). The next message of that client always goes to a different
server, so anything left in a session really is lost: named prepared statements, ``SET``,
``LISTEN``, temporary tables, session advisory locks. As in a real pooler such state is not undone
either: it stays on the server and the next client to borrow it will find it there.

Simplifications: no TLS, trust authentication only, ``client_encoding`` is always UTF8, the other
start-up parameters that pgbouncer tracks are accepted and ignored, and the pool is not limited:
one more server is opened when no other one is free, so no client ever waits.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import defaultdict, deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Self

_CANCEL, _SSL, _GSS = 80877102, 80877103, 80877104
_ACCEPTED = {"user", "database", "client_encoding", "application_name"} | {
    "datestyle",
    "timezone",
    "standard_conforming_strings",
}
_GONE = (EOFError, OSError)  # what reading from a closed connection raises


class _Refused(Exception):
    """The connection cannot be served; carries the ErrorResponse frame for the client."""


@dataclass(eq=False)
class _Server:
    """A connection to the server, and the client that owns it for the current transaction."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    key: bytes = b""  # BackendKeyData, needed to cancel
    greeting: bytes = b""  # the ParameterStatus frames
    client: _Client | None = None


@dataclass(eq=False)
class _Client:
    """A connection of the program under test."""

    writer: asyncio.StreamWriter
    account: tuple[str, str] = ("", "")  # user and database: servers are shared within one
    key: bytes = field(default_factory=lambda: secrets.token_bytes(8))
    server: _Server | None = None
    last: _Server | None = None
    may_send: asyncio.Event = field(default_factory=asyncio.Event)


class Pooler:
    """A pooler in front of ``upstream_host:port``, on a free port of 127.0.0.1, in its own thread.

    ``servers`` server connections are opened for each (user, database) at the first login, and
    lent out in turn. ``user`` and ``database`` only serve to build :attr:`url`. A stopped pooler
    can be started again and keeps its port.
    """

    def __init__(
        self,
        upstream_host: str,
        port: int,
        servers: int = 2,
        *,
        user: str = "postgres",
        database: str = "postgres",
    ) -> None:
        self.transactions = 0
        """How often a server was given back."""
        self.round_trips = 0
        """How often a client sent Query, Sync or Flush, that is: had to wait for an answer."""
        self._upstream = (upstream_host, port)
        self._servers = servers
        self._user, self._database = user, database
        self._port = 0
        self._free: dict[tuple[str, str], deque[_Server]] = defaultdict(deque)
        self._clients: dict[bytes, _Client] = {}
        self._thread: threading.Thread | None = None
        self._pumps: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The URL that clients connect to."""
        return f"postgresql://{self._user}@127.0.0.1:{self._port}/{self._database}"

    def start(self) -> Self:
        """Listen; returns when clients can connect."""
        ready: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="pooler", daemon=True)
        self._thread.start()
        self._port = ready.result()
        return self

    def stop(self) -> None:
        """Close every connection, of clients and of servers, and end the thread."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self, ready: Future[int]) -> None:
        try:
            asyncio.run(self._main(ready))
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    async def _main(self, ready: Future[int]) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        self._free.clear()
        server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        ready.set_result(server.sockets[0].getsockname()[1])
        await self._stopping.wait()
        server.close()  # asyncio.run cancels the tasks, and they close their connections

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = _Client(writer)
        try:
            if await self._login(client, reader):
                await self._serve(client, reader)
        except _Refused as refused:
            writer.write(refused.args[0])
        except (*_GONE, asyncio.CancelledError):  # a cancelled handler would be logged as an error
            pass
        finally:
            self._clients.pop(client.key, None)
            if client.server is not None:  # mid-transaction: let it roll back
                client.server.writer.close()
            writer.close()

    async def _login(self, client: _Client, reader: asyncio.StreamReader) -> bool:
        """Answer the start-up packets; False if the connection only carried a cancel request."""
        while True:
            length = int.from_bytes(await reader.readexactly(4), "big")
            packet = await reader.readexactly(length - 4)
            code = int.from_bytes(packet[:4], "big")
            if code not in (_SSL, _GSS):
                break
            client.writer.write(b"N")
        if code == _CANCEL:
            await self._cancel(packet[4:])
            return False
        words = packet[4:-2].decode().split("\0")
        options = dict(zip(words[::2], words[1::2], strict=True))
        for name in options:
            if name.lower() not in _ACCEPTED:
                raise _Refused(_error("08P01", f"unsupported startup parameter: {name}"))
        client.account = (options["user"], options.get("database", options["user"]))
        free = self._free[client.account]
        while len(free) < self._servers:
            free.append(await self._connect(client.account))
        self._clients[client.key] = client
        client.may_send.set()
        hello = _message(b"R", bytes(4)) + free[0].greeting + _message(b"K", client.key)
        client.writer.write(hello + _message(b"Z", b"I"))
        return True

    async def _serve(self, client: _Client, reader: asyncio.StreamReader) -> None:
        """Forward the client's messages, each transaction to another server."""
        while True:
            await client.may_send.wait()
            kind, frame = await _read(reader)
            if kind == b"X":
                return
            if client.server is None:
                if kind in b"dcf":  # the rest of a COPY that the server has already refused
                    continue
                await self._attach(client)
                assert client.server is not None
            if kind in b"QSFH":
                self.round_trips += 1
                if kind != b"H":  # ReadyForQuery will come: nothing may overtake it
                    client.may_send.clear()
            client.server.writer.write(frame)
            await client.server.writer.drain()

    async def _attach(self, client: _Client) -> None:
        """Lend the client the server that was idle longest, but never its own last one."""
        free = self._free[client.account]
        server = next((each for each in free if each is not client.last), None)
        if server is None:
            server = await self._connect(client.account)
        else:
            free.remove(server)
        server.client, client.server, client.last = client, server, server

    async def _connect(self, account: tuple[str, str]) -> _Server:
        """Open one more connection to the server."""
        try:
            server = _Server(*await asyncio.open_connection(*self._upstream))
        except OSError as error:
            raise _Refused(_error("08006", f"no connection to the server: {error}")) from None
        try:
            await self._authenticate(server, account)
        except BaseException:
            server.writer.close()
            raise
        pump = asyncio.create_task(self._pump(server, self._free[account]))
        self._pumps.add(pump)
        pump.add_done_callback(self._pumps.discard)
        return server

    async def _authenticate(self, server: _Server, account: tuple[str, str]) -> None:
        user, database = account
        options = f"user\0{user}\0database\0{database}\0client_encoding\0UTF8\0\0"
        server.writer.write(_packet(3 << 16, options.encode()))
        kind = b""
        while kind != b"Z":
            kind, frame = await _read(server.reader)
            if kind == b"E":
                raise _Refused(frame)
            if kind == b"R" and any(frame[5:]):
                raise _Refused(_error("28000", "this pooler only knows trust authentication"))
            if kind == b"S":
                server.greeting += frame
            if kind == b"K":
                server.key = frame[5:]

    async def _pump(self, server: _Server, free: deque[_Server]) -> None:
        """Forward the server's messages, and take the server back when it is idle."""
        try:
            while True:
                kind, frame = await _read(server.reader)
                client = server.client
                if client is None:  # a notification without a recipient
                    continue
                client.writer.write(frame)
                if kind == b"Z" and frame[5:] == b"I":
                    server.client = client.server = None
                    self.transactions += 1
                    free.append(server)
                if kind in b"ZGW":  # the answer is complete, or the server waits for COPY data
                    client.may_send.set()
                if not client.writer.is_closing():
                    await client.writer.drain()
        except _GONE:
            pass
        finally:
            if server in free:
                free.remove(server)
            if server.client is not None:
                server.client.writer.close()
                server.client.may_send.set()
            server.writer.close()

    async def _cancel(self, key: bytes) -> None:
        """Pass a cancel request on to the server that its client is using now."""
        client = self._clients.get(key)
        if client is not None and client.server is not None:
            reader, writer = await asyncio.open_connection(*self._upstream)
            writer.write(_packet(_CANCEL, client.server.key))
            await reader.read()  # until the server has dealt with it
            writer.close()


async def _read(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Read one message; returns its type and all of its bytes."""
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(int.from_bytes(head[1:], "big") - 4)


def _packet(code: int, body: bytes) -> bytes:
    return (len(body) + 8).to_bytes(4, "big") + code.to_bytes(4, "big") + body


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body


def _error(code: str, text: str) -> bytes:
    return _message(b"E", f"SFATAL\0VFATAL\0C{code}\0M{text}\0\0".encode())

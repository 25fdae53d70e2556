"""A small HTTP server in threads of its own, independent of the worker's event loop.

It serves one request per connection. No client can block it: a request must be complete in time, at
most `MOST` connections are served at once, and when all are taken the slowest is cut.
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from andon.errors import Refused

log = logging.getLogger("andon")

MOST = 16
# Limit for reading a whole request, and for sending a whole answer.
PATIENCE_SECONDS = 3.0
LARGEST_BYTES = 8192

REASONS = {
    200: "OK",
    202: "Accepted",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class HttpRequest(NamedTuple):
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]  # names in lower case
    peer: str  # the client's address
    own: str  # our address that it connected to


class Response(NamedTuple):
    status: int
    body: str
    kind: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


class Unreadable(Exception):
    """The bytes received are not a valid request."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


Answer = Callable[[HttpRequest], Response]
Complain = Callable[[int, str], Response]


class Server:
    """Listens from construction on; `port` is the port in use."""

    def __init__(self, host: str, port: int, answer: Answer, complain: Complain) -> None:
        self._answer, self._complain = answer, complain
        self._socket = _listening(host, port)
        self._socket.settimeout(0.5)
        self.port: int = self._socket.getsockname()[1]
        self._lock = threading.Lock()
        self._slots = threading.Semaphore(MOST)
        self._reading: dict[socket.socket, None] = {}  # request still incomplete, oldest first
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="andon-health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept
        self._thread.join(PATIENCE_SECONDS)
        self._socket.close()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                connection, peer = self._socket.accept()
            except TimeoutError:
                continue
            except OSError:  # closed, or out of descriptors, which passes
                self._ended.wait(0.1)
                continue
            if not self._slots.acquire(blocking=False):
                self._cut_oldest()
                if not self._slots.acquire(timeout=PATIENCE_SECONDS):
                    connection.close()
                    continue
            with self._lock:
                self._reading[connection] = None
            served = threading.Thread(
                target=self._serve, args=(connection, peer[0]), name="andon-probe", daemon=True
            )
            try:
                served.start()
            except RuntimeError:  # out of threads: drop this connection
                self._leave(connection)

    def _cut_oldest(self) -> None:
        with self._lock:
            for connection in self._reading:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                return

    def _serve(self, connection: socket.socket, peer: str) -> None:
        try:
            with contextlib.suppress(OSError):
                self._exchange(connection, peer)
        finally:
            self._leave(connection)

    def _leave(self, connection: socket.socket) -> None:
        with self._lock:
            self._reading.pop(connection, None)
        connection.close()
        self._slots.release()

    def _exchange(self, connection: socket.socket, peer: str) -> None:
        whole = True
        method = "GET"
        try:
            request = _read(connection, peer, time.monotonic() + PATIENCE_SECONDS)
            if request is None:
                return
            method = request.method
            whole = method in ("GET", "HEAD")
            with self._lock:
                self._reading.pop(connection, None)
            response = self._answer(request)
        except Unreadable as unreadable:
            response, whole = self._complain(unreadable.status, str(unreadable)), False
        except Exception:
            log.exception("health: andon failed to answer")
            response = self._complain(500, "andon failed to answer; its log says why")
        connection.settimeout(PATIENCE_SECONDS)
        connection.sendall(_written(response, with_body=method != "HEAD"))
        if not whole:
            _discard(connection)


def _listening(host: str, port: int) -> socket.socket:
    found: object = "no such port"
    if port <= 65535:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # "::" means every address of the machine, IPv4 included.
        both = host == "::" and socket.has_dualstack_ipv6()
        try:
            return socket.create_server(
                (host, port), family=family, backlog=MOST, dualstack_ipv6=both
            )
        except OSError as error:
            found = error
    raise Refused(
        f"health port {port} at {host}: expected one to listen on, found: {found}. "
        "Choose another, or 0 for any: --health-port 0"
    )


def _read(connection: socket.socket, peer: str, until: float) -> HttpRequest | None:
    """Read the head of a request; None if the client has closed the connection."""
    received = b""
    while b"\r\n\r\n" not in received and b"\n\n" not in received:
        if len(received) > LARGEST_BYTES:
            raise Unreadable(431, f"a request head may have {LARGEST_BYTES} bytes")
        left = until - time.monotonic()
        try:
            connection.settimeout(max(left, 0.001))
            more = connection.recv(4096) if left > 0 else None
        except TimeoutError:
            more = None
        if more is None:
            raise Unreadable(408, f"a request has to be complete in {PATIENCE_SECONDS:g} s")
        if not more:
            return None
        received += more
    own: str = connection.getsockname()[0]
    return parse(received.decode("latin-1"), peer, own)


def parse(text: str, peer: str, own: str) -> HttpRequest:
    """Parse the head of a request."""
    head = text.replace("\r\n", "\n").partition("\n\n")[0]
    first, *lines = head.split("\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
        raise Unreadable(400, "expected a request like: GET /readyz HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, found = line.partition(":")
        if not colon or not name or name != name.strip():
            raise Unreadable(400, "expected headers like: Host: localhost")
        headers[name.lower()] = found.strip()
    try:
        target = urlsplit("//_" + words[1])
        query = dict(parse_qsl(target.query, keep_blank_values=True, max_num_fields=20))
    except ValueError:
        raise Unreadable(400, "expected a path like: /readyz") from None
    return HttpRequest(words[0], target.path, query, headers, peer, own)


def _written(response: Response, *, with_body: bool) -> bytes:
    body = response.body.encode()
    lines = [
        f"HTTP/1.1 {response.status} {REASONS[response.status]}",
        f"Content-Type: {response.kind}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *(f"{name}: {found}" for name, found in response.headers),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (body if with_body else b"")


def _discard(connection: socket.socket) -> None:
    """Read what is still coming: else the kernel resets the connection and the answer is lost."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(0.2)
        for _ in range(16):
            if not connection.recv(4096):
                return

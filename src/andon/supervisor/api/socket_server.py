"""The socket for users: HTTP or JSON lines, by the first bytes. It never blocks the loop.

    {"do": "halt"}             or the bare word: halt
    POST /halt HTTP/1.1        acted on as soon as its first line is there

Clients may be slow, many or hostile. Requests and unsent answers have size limits. When there are
too many clients, the server closes the one that has waited longest without a request.
"""

import os
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from andon.host.json_lines import encoded, parsed
from andon.supervisor.poll import READ, WRITE, PollLoop

MOST_CONNECTIONS = 256
MOST_ASKED = 65_536
MOST_OWED = 4_194_304
IDLE_SECONDS = 10.0
BODY_SECONDS = 0.1  # how long to read the rest of a halt request, which the halt does not need
ROUTES = {"POST /halt": "halt", "GET /status": "status", "POST /upgrade": "upgrade"}
_METHODS = (b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"OPTIONS ", b"PATCH ")


class Connection:
    """One client connection."""

    def __init__(self, owner: "SocketServer", own: socket.socket) -> None:
        self._owner, self._socket = owner, own
        self.fd = own.fileno()
        self.since = time.monotonic()
        self.waits = False  # a request is being carried out
        self._asked, self._owed = bytearray(), bytearray()
        self._http, self._ending = False, False
        self.peer = _peer(own)

    def ready(self, event: int) -> None:
        if event & WRITE:
            self._push()
        if event & ~WRITE and not self._ending:
            self._take()

    def _take(self) -> None:
        try:
            content = self._socket.recv(MOST_ASKED)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        self._asked += content
        if not content:
            self._asked += b"\n"  # half closed: the request is complete
        self.look(over=not content)
        if not content and not self.waits:
            self._ending = True
            self._push()
        elif not content:
            self._owner.loop.change(self.fd, 0)  # it only waits for its answer now
        elif len(self._asked) > MOST_ASKED:
            self.refuse(f"expected a request of at most {MOST_ASKED} bytes")

    def look(self, *, over: bool = False) -> None:
        """Act on the requests received so far."""
        if self._http or self._asked.startswith(_METHODS):
            self._http = True
            self._look_http(over)
            return
        while b"\n" in self._asked and not self.waits and not self._ending:
            line, _, rest = bytes(self._asked).partition(b"\n")
            self._asked[:] = rest
            if line.strip():
                self._act(line.strip())

    def _act(self, line: bytes) -> None:
        message = parsed(line)
        if message is None and line.isalpha():
            message = {"do": line.decode().lower()}
        if message is None:
            self.answer({"error": 'expected a JSON line such as {"do": "halt"}'})
            return
        self._ask(message)

    def _ask(self, message: dict[str, Any]) -> None:
        self.waits = True
        self._owner.asked(message, self)

    def _look_http(self, over: bool) -> None:
        """Act on a complete request; a halt waits for its headers at most `BODY_SECONDS`."""
        if self.waits or b"\n" not in self._asked:
            return
        head, _, body = bytes(self._asked).replace(b"\r\n", b"\n").partition(b"\n\n")
        first, *headers = head.decode("latin-1").split("\n")
        request = " ".join(first.split()[:2]).partition("?")[0]
        whole = b"\n\n" in bytes(self._asked).replace(b"\r\n", b"\n")
        whole = whole and len(body) >= _length(headers)
        late = time.monotonic() - self.since > BODY_SECONDS and request == "POST /halt"
        if not (whole or over or late):
            return
        self._asked.clear()
        if request not in ROUTES:
            self.answer({"error": f"expected one of {', '.join(ROUTES)}", "http": 404})
            return
        self._ask({**(parsed(body) or {}), "do": ROUTES[request]})

    def answer(self, message: dict[str, Any], *, last: bool = True) -> None:
        """Send one JSON line or a whole HTTP response; HTTP gets only the last message."""
        if self._socket.fileno() < 0:
            return
        if not self._http:
            self._owed += encoded(message)
        elif last:
            self._owed += _response(message)
            self._ending = True
        if last:
            self.waits, self.since = False, time.monotonic()
        if len(self._owed) > MOST_OWED:
            self.close()
            return
        self._push()

    def refuse(self, why: str) -> None:
        self._asked.clear()
        self.answer({"error": why, "http": 413})
        self._ending = True
        self._push()

    def _push(self) -> None:
        try:
            while self._owed:
                sent = self._socket.send(self._owed[:MOST_ASKED])
                del self._owed[:sent]
        except BlockingIOError:
            self._owner.loop.change(self.fd, WRITE | (0 if self._ending else READ))
            return
        except OSError:
            self.close()
            return
        if self._ending and not self.waits:
            self.close()
        elif self._socket.fileno() >= 0:
            self._owner.loop.change(self.fd, READ)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._owner.forget(self)
            self._socket.close()


class SocketServer:
    """The listening socket and its clients."""

    def __init__(
        self,
        loop: PollLoop,
        listener: socket.socket,
        asked: Callable[[dict[str, Any], Connection], None],
    ) -> None:
        self.loop, self.listener, self.asked = loop, listener, asked
        self._clients: dict[int, Connection] = {}
        self._reserve = _spare()
        listener.setblocking(False)
        loop.watch(listener.fileno(), self._accept)

    def _accept(self, _event: int) -> None:
        for _ in range(64):  # per turn
            try:
                own, _ = self.listener.accept()
            except BlockingIOError:
                return
            except OSError:  # no descriptors left: free the reserved one to turn a client away
                self._send_away()
                return
            own.setblocking(False)
            if len(self._clients) >= MOST_CONNECTIONS:
                self._make_room()
            client = Connection(self, own)
            self._clients[client.fd] = client
            self.loop.watch(client.fd, client.ready)

    def _make_room(self) -> None:
        idle = [client for client in self._clients.values() if not client.waits]
        min(idle or self._clients.values(), key=lambda client: client.since).close()

    def _send_away(self) -> None:
        if self._clients:
            self._make_room()
            return
        if self._reserve >= 0:
            os.close(self._reserve)
        with suppress(OSError):
            self.listener.accept()[0].close()
        self._reserve = _spare()

    def tick(self, now: float) -> None:
        for client in list(self._clients.values()):
            try:
                client.look()
            except Exception:  # noqa: BLE001 (an error in one must not end the others)
                client.close()
            if not client.waits and now - client.since > IDLE_SECONDS:
                client.close()

    def forget(self, client: Connection) -> None:
        self.loop.forget(client.fd)
        self._clients.pop(client.fd, None)

    def close(self) -> None:
        for client in list(self._clients.values()):
            client.close()
        self.loop.forget(self.listener.fileno())
        self.listener.close()
        if self._reserve >= 0:
            os.close(self._reserve)


def listen(path: str) -> socket.socket:
    """Listen on a socket that only its owner may reach; replaces an old one at that path."""
    own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with suppress(FileNotFoundError):
        os.unlink(path)
    before = os.umask(0o177)
    try:
        own.bind(path)
    finally:
        os.umask(before)
    own.listen(128)
    return own


def _spare() -> int:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _peer(own: socket.socket) -> str:
    try:
        found = own.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, _ = struct.unpack("3i", found)
    except OSError:
        return ""
    return f"uid {uid}, pid {pid}"


def _length(headers: list[str]) -> int:
    for header in headers:
        name, _, value = header.partition(":")
        digits = value.strip()
        if name.strip().lower() == "content-length" and digits.isascii() and digits.isdigit():
            return min(int(digits), MOST_ASKED) if len(digits) < 10 else MOST_ASKED
    return 0


def _response(message: dict[str, Any]) -> bytes:
    status = message.get("http") or (400 if "error" in message else 200)
    message = {name: value for name, value in message.items() if name != "http"}
    words = {200: "OK", 404: "Not Found", 413: "Content Too Large"}
    body = encoded(message)
    head = f"HTTP/1.1 {status} {words.get(status, 'Bad Request')}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + body

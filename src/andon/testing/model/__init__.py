"""A fake model: a local server that answers, and refuses, as the providers do.

It follows a script, indexed by the number of model turns in the request: like a model, it keeps no
state. So an agent that continues after a crash gets the same answer to the same conversation, with
the same ids, and one that has lost a turn gets that turn again. A conversation with an orphaned
tool call or a misplaced result is answered with the provider's own status and error body.
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import msgspec

from andon.testing.model import chat, messages, responses
from andon.testing.model.wire import ModelRefusal, ModelToolCall, Turn, digest, turn_of

FORMATS: dict[str, Any] = {one.PATH: one for one in (chat, responses, messages)}
Script = Sequence[str | ModelToolCall | Turn | Sequence[ModelToolCall]] | Callable[["Request"], Any]
SCRIPT = "script_error"  # no provider's error type: a retry would not help
_MESSAGES = {
    429: "Rate limit reached for requests",
    500: "The server had an error while processing your request",
    529: "Overloaded",
}


class Request(msgspec.Struct, kw_only=True):
    """A request, and how it was answered."""

    path: str
    body: dict[str, Any]
    turn: int = 0  # how many turns of the model it contains
    status: int = 200
    error: str = ""


class FakeModel:
    """`with FakeModel([call("charge", amount=10), "done"]) as model:`; clients take `model.url`."""

    def __init__(self, script: Script, *, window: int | None = None) -> None:
        """`window`: the most tokens, of four bytes each, in a request; more is refused."""
        self.script, self.window = script, window
        self.requests: list[Request] = []
        self._kept: responses.Kept = {}
        self._lock = threading.Lock()
        self._fail: list[int] = []
        self._cut: list[int] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Connection)
        self._server.daemon_threads = True
        self._server.model = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), name="fake-model", daemon=True
        )
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def environ(self) -> dict[str, str]:
        """Environment variables that point the providers' own clients at this server."""
        return {
            "OPENAI_BASE_URL": f"{self.url}/v1",
            "OPENAI_API_KEY": "fake",
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": "fake",
        }

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def fail(self, status: int, *, times: int = 1) -> None:
        """Answer the next requests with this status, in the provider's words."""
        with self._lock:
            self._fail += [status] * times

    def cut(self, after: int) -> None:
        """Break off the next streamed answer after this many events."""
        with self._lock:
            self._cut.append(after)

    def answer(
        self, path: str, headers: Mapping[str, str], raw: bytes
    ) -> tuple[int, dict[str, Any], Any]:
        """Return status, body and, for a stream, its events."""
        form = FORMATS.get(path)
        if form is None:
            facts = chat.error_body(404, f"Invalid URL (POST {path})")
            return 404, facts, None
        request = Request(path=path, body={})
        try:
            whole, events = self._take(form, request, headers, raw)
        except ModelRefusal as refused:
            request.status, request.error = refused.status, refused.message
            body = form.error_body(refused.status, refused.message, refused.kind, **refused.facts)
            return refused.status, body, None
        finally:
            with self._lock:
                self.requests.append(request)
        return 200, whole, events

    def _take(
        self, form: Any, request: Request, headers: Mapping[str, str], raw: bytes
    ) -> tuple[dict[str, Any], Any]:
        _refuse_strangers(form, headers)
        try:
            request.body = json.loads(raw)
        except ValueError:
            raise ModelRefusal("We could not parse the JSON body of your request.") from None
        if not isinstance(request.body, dict):
            raise ModelRefusal("The body of the request must be a JSON object.")
        request.turn = self._checked(form, request.body)
        if self.window is not None and len(raw) // 4 > self.window:
            raise form.too_long(len(raw) // 4, self.window)
        with self._lock:
            if self._fail:
                status = self._fail.pop(0)
                raise ModelRefusal(
                    _MESSAGES.get(status, "This request cannot be answered"), status=status
                )
        turn = self._turn(request)
        with self._lock:
            conversation = digest(form.conversation(request.body, self._kept))
            turn = msgspec.structs.replace(turn, conversation=conversation)
            whole = form.answer(request.body, turn, self._kept)
        streams = bool(request.body.get("stream"))
        return whole, self._streamed(form, request, whole) if streams else None

    def _checked(self, form: Any, body: dict[str, Any]) -> int:
        try:
            turns: int = form.check(body, self._kept)
        except (AttributeError, LookupError, TypeError) as error:  # not a documented form
            found = f"{type(error).__name__}: {error}"
            raise ModelRefusal(
                f"Invalid request: it is not of the form expected ({found})."
            ) from None
        return turns

    def _streamed(
        self, form: Any, request: Request, whole: dict[str, Any]
    ) -> tuple[list[tuple[str, Any]], bool]:
        """Return the events, and whether they are complete."""
        events = list(form.events(request.body, whole))
        with self._lock:
            kept = self._cut.pop(0) if self._cut else len(events)
        return events[:kept], kept >= len(events)

    def _turn(self, request: Request) -> Turn:
        try:
            if callable(self.script):
                return turn_of(self.script(request), request.turn)
            if request.turn < len(self.script):
                return turn_of(self.script[request.turn], request.turn)
        except Exception as error:
            # An answer shows the error to the script's author where the client asks; without one
            # the client would assume a broken network.
            found = f"the script of FakeModel raised {type(error).__name__}: {error}"
            raise ModelRefusal(found, SCRIPT, status=500) from error
        return Turn(text="done", number=request.turn)


def call(name: str, /, **arguments: Any) -> ModelToolCall:
    """Return a turn of a script in which the model calls this tool."""
    return ModelToolCall(name, arguments)


def _refuse_strangers(form: Any, headers: Mapping[str, str]) -> None:
    if form is messages:
        if "x-api-key" not in headers and "authorization" not in headers:
            raise ModelRefusal("x-api-key header is required", status=401)
        if "anthropic-version" not in headers:
            raise ModelRefusal("anthropic-version: header is required")
    elif "authorization" not in headers:
        raise ModelRefusal("You didn't provide an API key.", status=401)


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        """Log nothing: nobody reads it."""

    def do_POST(self) -> None:
        model: FakeModel = self.server.model  # type: ignore[attr-defined]
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): text for name, text in self.headers.items()}
        status, body, events = model.answer(self.path.partition("?")[0], headers, raw)
        try:
            if events is None:
                self._whole(status, body)
            else:
                self._stream(*events)
        except (BrokenPipeError, ConnectionResetError):  # the client was killed
            self.close_connection = True

    def _whole(self, status: int, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        again = status in (408, 409, 429) or status >= 500
        again = again and body.get("error", {}).get("type") != SCRIPT
        self.send_header("x-should-retry", "true" if again else "false")
        self.end_headers()
        self.wfile.write(raw)

    def _stream(self, events: list[tuple[str, Any]], whole: bool) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for kind, facts in events:
            named = f"event: {kind}\n" if kind else ""
            text = facts if isinstance(facts, str) else json.dumps(facts)
            raw = f"{named}data: {text}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(raw), raw))
            self.wfile.flush()
        if whole:
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.close_connection = True  # broken off: the client must notice

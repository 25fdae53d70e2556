"""Every parser of external input, with good inputs to start from.

A parser is fed bytes. It may accept them: the accepted value must then be the same when it is
written down and read again. Or it may refuse them with an error of its own. Any other result is a
violation.
"""

import contextlib
import io
import json
import math
import os
import random
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from tests.chaos import agents
from tests.runtime.fakes import FakeWorker
from tests.transcript import talks
from tests.transcript.judge import refusal
from tests.transcript.test_fuzz import RecordingLedger, judge, results

from andon import transcript
from andon.cli import app, args
from andon.control.runs import run_start
from andon.control_process.channel import Channel
from andon.core import duration, latch
from andon.core.fleet import preemption
from andon.core.journal import Entry, chain, check_chain
from andon.core.values import value
from andon.errors import AndonError, Corrupt
from andon.host import home
from andon.host.json_lines import parsed
from andon.runtime.health import http_server
from andon.runtime.health.probes import Health
from andon.runtime.requests import requests
from andon.settings import Settings, load
from andon.store import open_store
from andon.supervisor import spec
from andon.supervisor.api.socket_server import SocketServer
from andon.supervisor.poll import PollLoop
from andon.transcript import IN_DOUBT, NOT_STARTED, Done, Policy

REFUSALS = (AndonError, http_server.Unreadable)
Feed = Callable[[bytes], str]  # returns what is wrong, or nothing; raises a refusal


@dataclass(frozen=True)
class Parser:
    name: str
    seeds: list[bytes]
    feed: Feed
    weight: float = 1.0  # how many inputs it gets, compared with the others


def text(content: bytes) -> str:
    """As Python represents bytes that are no text: file names, arguments, the environment."""
    return content.decode("utf-8", "surrogateescape")


# ── settings and typed input ──────────────────────────────────────────────────────────────────────


def settings_file(folder: Path) -> Feed:
    def feed(content: bytes) -> str:
        (folder / "andon.toml").write_bytes(content)
        found = load(environ={}, folder=folder)
        return _kept(found)

    return feed


def settings_environment(content: bytes) -> str:
    name, _, given = text(content).partition("=")
    return _kept(load(environ={f"ANDON_{name}": given}, folder=Path("/nonexistent")))


def _kept(found: Settings) -> str:
    again = load(vars(found) if hasattr(found, "__dict__") else _fields(found), environ={},
                 folder=Path("/nonexistent"))  # fmt: skip
    return "" if again == found else f"accepted as {found}, read again as {again}"


def _fields(found: Any) -> dict[str, Any]:
    return {name: getattr(found, name) for name in found.__dataclass_fields__}


def typed(content: bytes) -> str:
    words = text(content).split("\x1f")
    found = args.arguments(words[1:], words[0] or None)
    with contextlib.suppress(AndonError):  # typed input need not be storable
        raw = value.encode(found, "the input")
        if value.encode(value.decode(raw), "the input") != raw:
            return f"{found!r:.200} is stored as something else"
    return ""


def times(content: bytes) -> str:
    if not 0 <= (duration.seconds(text(content)) or 0) < float("inf"):
        return "a time that is none was accepted"
    found = args.moment(text(content), 1e9)
    return "" if abs(found) < float("inf") else "a moment that is none was accepted"


def command(folder: Path) -> Feed:
    """The whole command line, in a folder with its own store; only commands that start nothing."""
    store = f"sqlite:///{folder}/andon.db"
    run_start.REGISTRATION_SECONDS = 0.0  # for an agent that no worker carries
    with contextlib.closing(open_store(store)) as opened:
        requests.start(opened, agents.waiting, (), id="r-7", labels={"a": "b"})
    waits = {"pause", "cancel", "kill", "wait"}  # for others, unless an option says not to
    allowed = {"ps", "show", "start", "send", "answer", "wait", "pause", "resume", "cancel", "kill",
               "limit", "queues", "dead", "receipts", "events", "verify", "versions", "logs",
               "deploys", "workers", "compensate", "redrive", "migrate"}  # fmt: skip

    def feed(content: bytes) -> str:
        words = text(content).split("\x1f")
        at_once = words[0] not in waits or "--no-wait" in words or _limit(words) < 1
        if words[0] not in allowed or not at_once or {"watch", "--follow", "-f"} & set(words):
            return ""
        os.environ["ANDON_STORE"] = store
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = app.run(words)
        if "defect of andon" in err.getvalue() or "Traceback" in err.getvalue():
            return err.getvalue()[-600:]
        return "" if code in range(6) else f"exit code {code}"

    return feed


def _limit(words: list[str]) -> float:
    """The limit on how long a command waits; any value that is not a time is refused at once."""
    if "--timeout" not in words:
        return math.inf
    given = words[words.index("--timeout") + 1 :]
    with contextlib.suppress(ValueError):
        return float(given[0]) if given else 0.0
    return 0.0


# ── stored values ─────────────────────────────────────────────────────────────────────────────────


def body(content: bytes) -> str:
    try:
        found = value.decode(content.decode())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""  # an attempt is stranded by it
    with contextlib.suppress(AndonError):
        raw = value.encode(found, "a value")
        if value.decode(raw.decode()) != found:
            return "a value is not what it was"
    return ""


def journal(content: bytes) -> str:
    """Entries that were altered are not accepted as the original ones."""
    try:
        found = msgspec.json.decode(content, type=list[Entry])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    try:
        head = check_chain(found, run_id="r")
    except (Corrupt, OverflowError, ValueError, msgspec.EncodeError):
        return ""
    good = _entries()
    same = found == good[: len(found)]
    return "" if same else f"other entries have a good chain, up to {head[:12]}"


def _entries() -> list[Entry]:
    found: list[Entry] = []
    previous = "0" * 64
    for seq, (kind, state, what) in enumerate(
        [("start", "done", "{}"), ("step", "done", "[1, 2.5]"), ("effect", "started", "{}"),
         ("effect", "confirmed", '"paid"'), ("end", "succeeded", "null")]
    ):  # fmt: skip
        entry = Entry(seq=seq, kind=kind, state=state, name="it", body=what, fence=1, at=12.5)
        entry.place, entry.digest = f":{seq}", "abc"
        previous = entry.hash = chain(previous, entry)
        found.append(entry)
    return found


def transcripts(content: bytes) -> str:
    """A conversation chosen by these bytes, whole and broken, is repaired for the strict server.

    The repair loses nothing, and claims nothing that the ledger does not know.
    """
    chance = random.Random(content)
    talk = [_turn(chance) for _ in range(chance.randint(1, 5))]
    damage = [
        (chance.choice(talks.BREAKS), chance.randint(0, 15), chance.randint(0, 15))
        for _ in range(chance.randint(1, 5))
    ]
    drawn = chance.choices([Done, NOT_STARTED, IN_DOUBT, None], k=chance.randint(1, 4))
    ledger = drawn if chance.random() < 0.8 else None
    form, policy = chance.choice(talks.FORMATS), chance.choice(list(Policy))
    valid = talks.written(talk, form)
    if why := refusal(valid, form):
        return f"a whole transcript is refused: {why}"
    for given in (valid, talks.broken(valid, damage)):
        try:
            judge(given, form, ledger, policy)
        except AssertionError as error:
            return f"{policy} of {json.dumps(given)[:600]}: {str(error)[:300] or 'it is not so'}"
    whole = talks.BREAK_OFF not in (hurt for hurt, _, _ in damage)
    return (
        ""
        if ledger is None
        else _guessed(given, form, RecordingLedger(ledger), policy, whole=whole)
    )


def _guessed(
    given: talks.Messages, form: str, book: RecordingLedger, policy: Policy, *, whole: bool
) -> str:
    """Changes that a repair makes to a call without knowing that it may.

    A call is run only if it has certainly not begun and the model has said nothing since. It is
    removed only if it cannot have acted. A result goes to the call that it belongs to.
    """
    before = {name: book(_named(name)) for name in _called(given)}
    try:
        found = transcript.repair(given, format=form, ledger=book, policy=policy)
    except transcript.Unrepairable:
        return ""
    said = f"{policy} of {json.dumps(given)[:600]}"
    last = max((n for n, one in enumerate(given) if _speaks(one)), default=-1)
    for call in found.to_run:
        if policy is not Policy.JOURNAL or book.said[call.id] is not NOT_STARTED:
            return f"{said}: {call.id} is run, of which is known: {book.said[call.id]}"
        if form != "responses" and call.message < last:
            return f"{said}: {call.id} is run, and the model has gone on since"
    for name in before.keys() - {_first(one) for one in _called(found.messages)}:
        if before[name] is not NOT_STARTED and (whole or before[name] is not None):
            return f"{said}: {name} is taken away, of which is known: {before[name]}"
    for name, texts in results(found.messages, form).items():
        own = f"result of {_first(name)}."
        if any(one.startswith("result of call") and one != own for one in texts):
            return f"{said}: {name} has the result of another call: {texts}"
    return ""


def _called(talk: Any) -> set[str]:
    """The ids of the calls that are not the provider's own."""
    found = [one for one in talks.calls(list(talk)) if "act" in json.dumps(one)]
    return {str(one.get("call_id", one.get("id"))) for one in found} - {""}


def _first(name: str) -> str:
    """The id before another call took it."""
    return re.sub("_[0-9]+$", "", name)


def _named(name: str) -> transcript.Call:
    return transcript.Call(name, "act", None, 0)


def _speaks(message: dict[str, Any]) -> bool:
    return message.get("role") == "assistant"


def _turn(chance: random.Random) -> talks.Turn:
    thinks, speaks, serves, custom, backwards, nested = (chance.random() < 0.5 for _ in range(6))
    calls, after = chance.randint(0, 3), chance.randint(0, 2)
    return talks.Turn(thinks, speaks, calls, serves, custom, backwards, nested, after)


# ── the latch, the supervisor and its sockets ─────────────────────────────────────────────────────


def latched(content: bytes) -> str:
    for whole in (True, False):
        found = latch.judge(content, whole=whole)
        latch.describe(latch.with_stop(found, ""))
        if latch.judge(latch.record(found)).pulled != found.pulled:
            return f"{found} is another thing when it is written down"
        *lines, torn = content.split(b"\n")
        lines = [line for line in (lines if whole else lines[1:]) if line.strip()]
        pulls, clears = (_newest(word, lines) for word in ("pulled", "cleared"))
        doubtful = torn or not lines or parsed(lines[-1]) is None
        if not found.pulled and (doubtful or pulls > clears):
            return "it is free, and should not be"
        # By people who have not seen the newest pull, or that STOP was touched since.
        late = (found.epoch - 1, found.stop), (found.epoch, f"{found.stop} and another")
        if found.pulled and not all(latch.may_clear(found, *seen) for seen in late):
            return "it is lifted by somebody who has not seen all of it"
    return ""


def _newest(word: str, lines: list[bytes]) -> int:
    found = [said.get(word) for said in map(parsed, lines) if said is not None]
    return max((one for one in found if type(one) is int and 0 <= one < 2**53), default=-1)


def specification(content: bytes) -> str:
    reader, writer = os.pipe()
    with contextlib.closing(os.fdopen(writer, "wb")) as file:
        file.write(content[:60_000])
    spec.read(reader)
    return ""


def registered(folder: Path) -> Feed:
    """Files in the home of a host: its registered processes, and the receipts left there."""
    place = str(folder / "register")
    home.make(place)

    def feed(content: bytes) -> str:
        for path in ("run/x.json", "state/x.receipt", "state/x.json"):
            Path(place, path).parent.mkdir(exist_ok=True)
            Path(place, path).write_bytes(content)
        for entry in home.entries(place):
            home.is_gone(entry)
        found = home.take_receipt(place, "x")
        return "" if isinstance(found, dict) else f"a receipt that is {found!r:.80}"

    return feed


def people(content: bytes) -> str:
    """The people's socket, through a real socket; a supervisor's orders are not carried out."""
    asked: list[dict[str, Any]] = []
    failed: list[Exception] = []
    loop = PollLoop(failed.append)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\0andon-fuzz-" + os.urandom(6).hex())
    listener.listen(1)

    def answer(message: dict[str, Any], client: Any) -> None:
        asked.append(message)
        client.answer({"error": "not here"})

    own = SocketServer(loop, listener, answer)
    client = socket.socket(socket.AF_UNIX)
    try:
        client.connect(listener.getsockname())
        client.setblocking(False)
        with contextlib.suppress(OSError):
            client.send(content)
            client.shutdown(socket.SHUT_WR)
        for _ in range(6):
            loop.turn(0)
        own.tick(0.0)
        if failed:
            return f"the supervisor failed: {failed[0]!r}"
        with contextlib.suppress(OSError):
            client.recv(65_536)
    finally:
        client.close()
        own.close()
    return "" if all(isinstance(one, dict) for one in asked) else "an order that is none"


def wire(content: bytes) -> str:
    """From the supervisor to its control process."""
    ours, theirs = socket.socketpair()
    heard: list[dict[str, Any]] = []
    own = Channel(ours.detach(), lambda: None, heard.append)
    with theirs:
        theirs.settimeout(5)
        own.start()
        theirs.sendall(content + b"\n" + b'{"event": "end"}\n')
    own._thread.join(10)
    own._socket.close()
    if own._thread.is_alive():
        return "the thread that reads hangs"
    return "" if heard[-1:] == [{"event": "end"}] else "the message after it was not received"


# ── HTTP ──────────────────────────────────────────────────────────────────────────────────────────


def request(content: bytes) -> str:
    http_server.parse(content.decode("latin-1"), "127.0.0.1", "127.0.0.1")
    return ""


@contextlib.contextmanager
def probes() -> Iterator[Feed]:
    """A real server for probes."""
    worker = FakeWorker()
    server = Health(worker)

    def feed(content: bytes) -> str:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
            with contextlib.suppress(OSError):
                client.sendall(content + b"\r\n\r\n")
                client.shutdown(socket.SHUT_WR)
            answer = b""
            with contextlib.suppress(ConnectionError):
                while part := client.recv(65_536):
                    answer += part
        status = answer[9:12].decode("latin-1")
        if answer and (
            not answer.startswith(b"HTTP/1.1 ") or int(status) not in http_server.REASONS
        ):
            return f"the answer is {answer[:80]!r}"
        return "andon failed to answer" if status == "500" else ""

    try:
        yield feed
    finally:
        server.close()
        worker.close()


def notices(content: bytes) -> str:
    """A cloud's notices about a machine that it takes away."""
    said = content.decode("utf-8", "replace")
    for status in (200, 404):
        preemption.of_ec2(status, said, 1e9)
        preemption.of_gce(status, said)
        preemption.of_azure(status, said, 1e9, {"me"})
        preemption.names_of_azure(status, said)
    return ""


def every(folder: Path) -> list[Parser]:
    """All that need no server."""
    good = msgspec.json.encode(_entries())
    pull = latch.record(latch.Pulled(pulled=True, epoch=3, at=5.0, by="ann", why="so", order="o"))
    lift = latch.record(latch.Pulled(pulled=False, epoch=3, at=6.0, by="ann"))
    child = {"name": "a", "kind": "worker", "argv": ["/bin/true"], "env": {"A": "b"}, "uid": 1}
    supervisor = {"home": "/h", "children": [child], "settings": {"watchdog_seconds": 10.0}}
    entry = {"id": "x", "kind": "worker", "pid": 5, "start_ticks": 7, "boot": "b", "socket": None}
    words = [b'{"do": "status"}\n', b"status\n", b'{"do": "kill", "child": "a", "pid": 5}\n',
             b"POST /halt HTTP/1.1\r\nContent-Length: 14\r\n\r\n{\"why\": \"so\"}\n",
             b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n"]  # fmt: skip
    toml = (
        b'store = "sqlite:///x.db"\nlease_seconds = 30.0\nconcurrency = 10\nlost_contact = "stop"\n'
    )
    lines = [b"ps\x1f--all", b"start\x1fagent\x1fa=1\x1f--id\x1fx\x1f--label\x1fa=b\x1f--at\x1f+5m",
             b"answer\x1fr-7\x1fedit\x1f{\"a\": 1}", b"send\x1fr-7\x1fgo\x1f1", b"show\x1fr-7",
             b"wait\x1fr-7\x1f--timeout\x1f0", b"limit\x1fqueue\x1fq\x1f--rate\x1f5/m",
             b"pause\x1f--agent\x1fa\x1f--no-wait", b"receipts\x1fr", b"verify\x1fr-7"]  # fmt: skip
    http = [
        b"GET /readyz?a=b HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /shutdown HTTP/1.1\r\nA: b\r\n\r\n",
    ]
    ec2 = b'{"action": "terminate", "time": "2026-01-01T00:00:00Z"}'
    azure = json.dumps({"Events": [{"EventType": "Preempt", "Resources": ["me"],
                                    "NotBefore": "Mon, 19 Sep 2026 18:29:47 GMT"}]})  # fmt: skip
    return [
        Parser("settings file", [toml], settings_file(folder)),
        Parser("settings environment", [b"LEASE_SECONDS=5", b"STORE=x"], settings_environment),
        Parser("arguments", [b'{"a": 1}\x1fb=[1, 2]\x1fc=x', b"\x1fname=value"], typed),
        Parser("times", [b"30s", b"+5m", b"2026-01-31T14:00:00Z"], times),
        Parser("command line", lines, command(folder), 0.1),
        Parser("stored values", [b'{"a": [1, 2.5, null, "x"]}', b'"text"', b"12"], body),
        Parser("journal", [good], journal),
        Parser("transcripts", [b"talk", b"another"], transcripts),
        Parser("latch", [pull, pull + lift, lift], latched),
        Parser("spec", [json.dumps(supervisor).encode()], specification),
        Parser("register", [json.dumps(entry).encode(), b"{}"], registered(folder), 0.3),
        Parser("people's socket", words, people, 0.5),
        Parser("wire", [b'{"event": "hello", "supervisor": {}}\n'], wire, 0.1),
        Parser("HTTP request", http, request),
        Parser("cloud notices", [ec2, azure.encode(), b"TRUE"], notices),
    ]  # fmt: skip

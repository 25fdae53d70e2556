"""The next halt gets through, whatever is sent to the people's socket."""

import json
import os
import socket
import stat

import pytest
from tests.supervisor.harness import Supervised, until

HOSTILE = [
    b"\x00" * 1000,
    b"\xff\xfe{}\n",
    b"{" * 60_000 + b"\n",
    b"[" * 50_000 + b"]" * 10 + b"\n",
    b'{"do": 5}\n{"do": null}\n{"do": {"do": "halt"}}\n[]\n7\n"halt"\n',
    b'{"do": "kill"}\n{"do": "kill", "child": {}}\n{"do": "term", "child": "one", "grace": "x"}\n',
    b'{"do": "kill", "pid": -1}\n{"do": "freeze", "pid": 1e300}\n',
    b'{"do": "go", "child": "one"}\n{"do": "cleared", "epoch": 0}\n{"do": "contact"}\n',
    b"GET / HTTP/1.1\r\n\r\n",
    b"POST /halt/now HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
    b"PUT /halt HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"POST /status HTTP/1.1\r\nContent-Length: \xb2\r\n\r\nx",
    b"POST /status HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\nx",
    b"GET " + b"a" * 200_000,
    b"x" * 200_000,
    b"",
]


@pytest.fixture
def own(supervised: Supervised) -> Supervised:
    supervised.start(supervised.child("one", "stubborn"))
    supervised.is_ready("one")
    return supervised


@pytest.mark.parametrize("content", HOSTILE, ids=lambda content: repr(content[:24]))
def test_an_invalid_request_changes_nothing(own: Supervised, content: bytes) -> None:
    with own.connect() as client:
        try:
            client.sendall(content)
            client.shutdown(socket.SHUT_WR)
            while client.recv(65536):
                pass
        except (BrokenPipeError, ConnectionResetError):
            pass
    found = own.status()
    assert found["held"] is False
    assert (found["children"][0]["state"], found["children"][0]["starts"]) == ("running", 1)
    assert own.halt()["proved"]


def test_an_unknown_word_is_answered_with_the_known_ones(own: Supervised) -> None:
    assert "expected one of halt, status" in own.ask({"do": "dance"})["error"]
    status, found = own.http("GET", "/halt")
    assert (status, found["error"]) == (
        404,
        "expected one of POST /halt, GET /status, POST /upgrade",
    )
    assert own.http("GET", "/status")[1]["status"]["children"][0]["child"] == "one"


def test_only_its_owner_reaches_the_socket(own: Supervised) -> None:
    assert stat.S_IMODE(os.stat(own.address).st_mode) == 0o600


def test_thousands_of_idle_clients_keep_no_other_client_out(own: Supervised) -> None:
    idle = []
    for _ in range(1500):
        client = socket.socket(socket.AF_UNIX)
        client.setblocking(False)
        try:
            client.connect(own.address)
        except BlockingIOError:
            client.close()
            continue
        idle.append(client)
    assert len(idle) > 100
    assert own.status()["held"] is False
    assert len(os.listdir(f"/proc/{own.pid}/fd")) < 400
    assert own.halt()["proved"]
    for client in idle:
        client.close()


def test_clients_that_send_byte_by_byte_or_never_read_delay_no_other(own: Supervised) -> None:
    slow, unread = own.connect(), own.connect()
    slow.sendall(b'{"do": "sta')
    unread.setblocking(False)
    sent = 0
    try:
        while sent < 2_000_000:
            sent += unread.send(b'{"do": "status"}\n' * 1000)
    except (BlockingIOError, BrokenPipeError, ConnectionResetError):
        pass
    assert own.status()["held"] is False
    slow.sendall(b'tus"}\n')
    with slow.makefile("rb") as file:
        assert "status" in json.loads(file.readline())
    assert own.halt()["proved"]
    slow.close()
    unread.close()


def test_a_halt_works_when_descriptors_run_out(supervised: Supervised) -> None:
    own = supervised.start(supervised.child("one", "stubborn"), files=40)
    own.is_ready("one")
    idle = [own.connect() for _ in range(60)]
    assert own.halt()["proved"]
    assert own.marked() == []
    for client in idle:
        client.close()


def test_many_halts_at_once_all_get_the_same_receipt(own: Supervised) -> None:
    clients = [own.connect() for _ in range(40)]
    for client in clients:
        client.sendall(b'{"do": "halt"}\n')
    found = set()
    for client in clients:
        with client.makefile("rb") as file:
            lines = [json.loads(file.readline()) for _ in range(1)]
            while "receipt" not in lines[-1]:
                lines.append(json.loads(file.readline()))
        found.add((lines[-1]["receipt"]["id"], lines[-1]["receipt"]["epoch"]))
        client.close()
    assert len(found) == 1
    until(lambda: not own.marked())

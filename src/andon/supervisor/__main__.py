"""Entry point of a supervisor process: `python -m andon.supervisor --spec-fd N`."""

import json
import os
import signal
import socket
import sys
from typing import Any

from andon.errors import AndonError
from andon.host import home as homes
from andon.host.descriptors import open_standard
from andon.supervisor import upgrade
from andon.supervisor.api.socket_server import listen
from andon.supervisor.spec import GRADES, Spec, parse, read
from andon.supervisor.supervisor import Supervisor, raise_file_limit
from andon.supervisor.trees.tree import Mechanism, choose

USAGE = "usage: python -m andon.supervisor --spec-fd N   (started by `andon up` and `andon run`)"


def main(words: list[str]) -> int:
    if words == ["--check"]:
        return 0
    open_standard()
    match words:
        case ["--spec-fd", number] if number.isdigit():
            return _begin(int(number))
        case ["--resume-fd", number] if number.isdigit():
            return _resume(int(number))
        case _:
            _complain(USAGE)
            return 2


def _begin(fd: int) -> int:
    try:
        spec = read(fd)
    except (AndonError, OSError) as error:
        _complain(f"andon: {error}")
        return 2
    mechanism = _choose(spec, quick=False)
    wrong = unmet(spec.require, mechanism)
    if wrong:
        mechanism.close()
        _complain(wrong)
        return 2
    name = "s" + os.urandom(5).hex()
    own = Supervisor(spec, mechanism, name)
    raise_file_limit()
    own.halt_state.begin()
    try:
        own.open(_listener(spec.home, name))
    except OSError as error:  # signals and files still work
        own.say("supervisor", f"no socket: {error}; halt by SIGUSR1 or {spec.home}/STOP")
    own.begin()
    return own.run()


def _resume(fd: int) -> int:
    with os.fdopen(fd, "rb") as file:
        state: dict[str, Any] = json.loads(file.read())
    spec = parse(state["spec"])
    own = Supervisor(spec, _choose(spec, quick=True), state["id"])
    upgrade.recall(own, state)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    own.turn()  # handle what ended between the two images
    return own.run()


def _choose(spec: Spec, *, quick: bool) -> Mechanism:
    uids = {child.uid for child in spec.children if child.uid is not None}
    return choose(want_uid=uids.pop() if len(uids) == 1 else None, quick=quick)


def unmet(require: dict[str, str], mechanism: Mechanism) -> str:
    """Return which required grade this host cannot meet; empty if it meets all."""
    for what, wanted in sorted(require.items()):
        found = mechanism.grades.get(what)
        if found is None or wanted not in GRADES:
            known = ", ".join(sorted(name for name in mechanism.grades if name != "by"))
            return (
                f"andon: --require {what}={wanted}: expected one of {known} with a grade of "
                f"{', '.join(reversed(GRADES))}"
            )
        if GRADES.index(found) < GRADES.index(wanted):
            return (
                f"andon: not started: expected {what} of grade {wanted} or better, found {found} "
                f"(by {mechanism.grades.get('by', '?')}). `andon doctor` says what this host "
                f"lacks; or require {what}={found}"
            )
    return ""


def _listener(home: str, name: str) -> socket.socket:
    path = homes.socket_path(home, name)
    if len(os.fsencode(path)) > homes.LONGEST_SOCKET:
        folder = f"/tmp/andon-{os.geteuid()}"  # noqa: S108 (checked: it belongs to us alone)
        os.makedirs(folder, 0o700, exist_ok=True)
        if homes.foreign(folder) or os.path.islink(folder):
            raise OSError(f"{path} is too long for a socket, and {folder} is not ours")
        path = os.path.join(folder, f"{name}.sock")
    return listen(path)


def _complain(text: str) -> None:
    os.write(2, text.encode("utf-8", "replace") + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Requests of the control process and of users; each may arrive twice without harm."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from andon.supervisor.api.socket_server import Connection
from andon.supervisor.children.child import Child
from andon.supervisor.halt.kill import TreeKill
from andon.supervisor.status import status

if TYPE_CHECKING:
    from andon.supervisor.supervisor import Supervisor

Answer = Callable[[dict[str, Any]], None]
PEOPLE = ("halt", "status", "upgrade", "kill", "freeze", "thaw", "term")


class RequestHandler:
    """Carries out the requests that a supervisor receives."""

    def __init__(self, own: "Supervisor") -> None:
        self._own = own
        self._requests: dict[str, Callable[[dict[str, Any], Answer], None]] = {
            "contact": lambda _message, _answer: own.in_contact(),
            "here": lambda message, _answer: own.watchdog.control_ping(int(message["turn"])),
            "halt": self._halt,
            "cleared": self._cleared,
            "fleet": self._fleet,
            "status": lambda _message, answer: answer({"status": status(own)}),
            "upgrade": lambda _message, answer: own.upgrading.ask(answer),
        }
        self._child_requests: dict[str, Callable[[Child, dict[str, Any], Answer], None]] = {
            "go": self._go,
            "refuse": self._refuse,
            "kill": self._kill,
            "freeze": self._freeze,
            "thaw": self._thaw,
            "term": self._term,
        }

    def from_control(self, message: dict[str, Any]) -> None:
        def answer(reply: dict[str, Any]) -> None:
            # Success is reported as an event, so only errors and status need an answer.
            if "error" in reply or "status" in reply:
                self._own.channel.send("answer", to=message.get("do"), **reply)

        self._carry_out({"via": "control", **message}, answer)

    def from_people(self, message: dict[str, Any], client: Connection) -> None:
        if message.get("do") not in PEOPLE:
            client.answer({"error": f"expected one of {', '.join(PEOPLE)}", "http": 404})
            return
        by = _text(message.get("by")) or client.peer

        def answer(reply: dict[str, Any]) -> None:
            client.answer(reply, last="progress" not in reply)

        self._carry_out({**message, "by": by, "via": _text(message.get("via")) or "socket"}, answer)

    def _carry_out(self, message: dict[str, Any], answer: Answer) -> None:
        """Carry out a request; one of a newer control process is ignored."""
        do = _text(message.get("do"))
        try:
            if do in self._requests:
                self._requests[do](message, answer)
            elif do in self._child_requests:
                child = self._find(message, answer)
                if child is not None:
                    self._child_requests[do](child, message, answer)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            answer({"error": f"the order was not understood: {error}"})

    def _halt(self, message: dict[str, Any], answer: Answer) -> None:
        words = {name: _text(message.get(name)) for name in ("by", "why", "via", "order")}
        self._own.halt_state.halt(**words, answer=answer)

    def _fleet(self, message: dict[str, Any], _answer: Answer) -> None:
        self._own.halt_state.report_progress(_order(message), dict(message["known"]))

    def _cleared(self, message: dict[str, Any], answer: Answer) -> None:
        """Lift the latch as a person did in the store; a newer pull on this host holds."""
        by, why = _text(message.get("by")), _text(message.get("why"))
        refusal = self._own.halt_state.cleared(int(message["epoch"]), by, why)
        if refusal:
            answer({"error": refusal})

    def _find(self, message: dict[str, Any], answer: Answer) -> Child | None:
        name, pid = message.get("child"), message.get("pid")
        for child in self._own.children:
            if child.name == name if name is not None else pid and child.pid == pid:
                if not pid or child.pid in (0, pid):
                    return child
                why = f"{child.name} is another process by now: {child.pid}, not {pid}"
                answer({"error": why, "order": _order(message)})
                return None
        known = ", ".join(child.name for child in self._own.children)
        answer({"error": f"no child {name or pid!r}; there are: {known}", "order": _order(message)})
        return None

    def _go(self, child: Child, message: dict[str, Any], _answer: Answer) -> None:
        if child.state == "waiting":
            child.run = _text(message.get("run")) or child.run
            given = message.get("env") or {}
            child.env.update({str(name): str(value) for name, value in given.items()})
            self._own.lifecycle.start(child)

    def _refuse(self, child: Child, message: dict[str, Any], _answer: Answer) -> None:
        if child.state == "waiting":
            self._own.lifecycle.refuse(child, _text(message.get("why")) or "refused")

    def _kill(self, child: Child, message: dict[str, Any], answer: Answer) -> None:
        def done(kill: TreeKill) -> None:
            self._own.report_killed(kill)
            answer({"killed": kill.targets[0].describe() | {"order": kill.order}})

        if child.alive:
            child.asked, child.order = "kill", _order(message)
        elif child.kind == "command" and child.state == "waiting":
            self._own.lifecycle.refuse(child, "killed before it was started")
        elif child.kind == "command" and child.state == "resting":
            child.state, child.due = "ended", None
        self._own.kill([child], done, order=_order(message), why="kill")

    def _freeze(self, child: Child, message: dict[str, Any], answer: Answer) -> None:
        self._set_frozen(child, message, answer, "frozen")

    def _thaw(self, child: Child, message: dict[str, Any], answer: Answer) -> None:
        self._set_frozen(child, message, answer, "thawed")

    def _set_frozen(self, child: Child, message: dict[str, Any], answer: Answer, what: str) -> None:
        if child.tree is None or child.state not in ("running", "frozen"):
            answer({"error": f"{child.name} is {child.state}: it cannot be {what}"})
            return
        done = child.tree.freeze() if what == "frozen" else child.tree.thaw()
        if not done:
            answer({"error": f"{child.name} could not be {what}", "order": _order(message)})
            return
        child.state = "frozen" if what == "frozen" else "running"
        self._own.watchdog.restart(child)
        grade = self._own.grades(child).get("pause", "none")
        event = {"child": child.name, "order": _order(message), "grade": grade}
        self._own.save()
        self._own.say(child.name, what)
        self._own.channel.send(what, **event)
        answer({what: event})

    def _term(self, child: Child, message: dict[str, Any], answer: Answer) -> None:
        grace = message.get("grace")
        seconds = self._own.limits.grace_seconds if grace is None else float(grace)
        self._own.lifecycle.term(child, seconds, "term", _order(message))
        answer({"term": {"child": child.name, "until": time.time() + seconds}})


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _order(message: dict[str, Any]) -> str:
    return str(message.get("order") or "")

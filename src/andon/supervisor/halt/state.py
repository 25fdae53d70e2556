"""The halt state of a supervisor: how a halt begins and ends, and what the latch allows meanwhile.

Every caller gets the receipt of the pull that holds, whichever way it asks and however often. Only
a person lifts the latch; this module never does so by itself.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from andon.core.latch import Pulled
from andon.host import home as homes
from andon.host.latch import Latch
from andon.points import point
from andon.supervisor.halt.kill import HostHalt, TreeKill
from andon.supervisor.halt.priority import raise_priority, reset_priority
from andon.supervisor.spec import OVER
from andon.supervisor.status import halt_line

if TYPE_CHECKING:
    from andon.supervisor.supervisor import Supervisor

Answer = Callable[[dict[str, Any]], None]
MOST_LISTENING = 256


class HaltState:
    """The supervisor's latch, the halt in progress, and the receipt of the last one."""

    def __init__(self, own: "Supervisor") -> None:
        self._own = own
        self.latch = Latch(own.spec.home)
        self.current: HostHalt | None = None  # until nothing is left
        self.receipt: dict[str, Any] | None = None
        self.held = False
        self._fleet: dict[str, Any] = {}  # the store's progress with the pull that holds
        self._listening: deque[Answer] = deque(maxlen=MOST_LISTENING)

    def begin(self) -> None:
        self.held = self.latch.init().pulled

    def halt(
        self,
        by: str = "",
        why: str = "",
        via: str = "",
        order: str = "",
        *,
        answer: Answer | None = None,
    ) -> None:
        """Kill everything but the control process, and keep it stopped."""
        halt = HostHalt(self.latch, by, why, via, order)
        if self._is_halted():
            self._pull_again(halt)
        elif self.current is None:
            self.current = halt
            self._begin(halt)
        elif order and order != self.current.order:
            self.current.orders.append(order)
        if answer is not None:
            self._answer(answer)

    def _answer(self, answer: Answer) -> None:
        """Send the receipt to a caller, now or when nothing is left."""
        self._listening.append(answer)
        if self.current is None or self.current.answered:
            answer({"receipt": self.receipt})
            if self._fleet:
                answer({"fleet": self._fleet})
            return
        self.current.answers.append(answer)
        answer({"progress": "latched", "ms": self.current.latched_ms})

    def _is_halted(self) -> bool:
        """Whether our receipt is for the pull that holds."""
        if not self.held or self.receipt is None:
            return False
        return (self.current is None or self.current.answered) and self._known(self.look())

    def _pull_again(self, halt: HostHalt) -> None:
        """Keep the receipt, and record this pull: a later clear must have seen it too."""
        assert self.receipt is not None
        if halt.via == "control":
            self._report(self.receipt, halt.order or self.receipt["id"])
        elif halt.order != self.receipt["id"]:
            halt.pull(again=True)

    def _begin(self, halt: HostHalt) -> None:
        own = self._own
        raise_priority()
        halt.pull()
        point("halt:latched")
        self.held = True
        for child in own.supervised:
            if child.tree is None and child.state not in OVER:
                own.lifecycle.hold(child)
            if child.alive:
                child.asked, child.order, child.deadline = "halt", halt.order, None
        targets = [child for child in own.supervised if child.tree is not None]
        point("halt:killing")
        halt.kill = own.kill(targets, self._ended, order=halt.order, why="halt", fleet=True)
        point("halt:killed")

    def _ended(self, _kill: TreeKill) -> None:
        """Settle the halt: nothing is left, or the time is over.

        After an overrun the kill calls this again once nothing is left.
        """
        halt, own = self.current, self._own
        if halt is None:
            return
        reset_priority()
        self.receipt = receipt = halt.receipt()
        if receipt["proved"]:
            point("halt:verified")
            self.current = None
        own.save()
        homes.leave_receipt(own.spec.home, own.id, receipt)
        own.say("supervisor", halt_line(receipt))
        for order in dict.fromkeys([receipt["id"], *halt.orders]):
            self._report(receipt, order)
        halt.answered = True
        answers, halt.answers = halt.answers, []
        for answer in answers:
            answer({"receipt": receipt})

    def report_progress(self, order: str, known: dict[str, Any]) -> None:
        """Pass the store's progress on to every caller that still listens."""
        self._fleet = {**known, "pull": order}
        for answer in self._listening:
            answer({"fleet": self._fleet})
        if known.get("over"):
            self._listening.clear()

    def _report(self, receipt: dict[str, Any], order: str) -> None:
        facts = {name: receipt[name] for name in ("epoch", "by", "why", "via")}
        self._own.channel.send("halted", order=order, **facts, receipt=receipt)

    def tick(self) -> None:
        found = self.look()
        if found.pulled and self.current is None and not (self.held and self._known(found)):
            self.halt(by=found.by, why=found.why, via=found.via or "latch")
        elif not found.pulled and self.held and self._lifted(found):
            self.release()

    def look(self) -> Pulled:
        try:
            return self.latch.read()
        except Exception as error:  # noqa: BLE001 (an error inside a check is a refusal)
            return Pulled(pulled=True, unreadable=f"{type(error).__name__}: {error}")

    def _known(self, found: Pulled) -> bool:
        """Whether this is the pull we obeyed, and not a newer one made after that was lifted."""
        return self.receipt is None or found.order in ("", self.receipt["id"])

    def holds(self) -> bool:
        return self.held or self.look().pulled

    def why(self) -> str:
        found = self.look()
        by = f" by {found.by}" if found.by else ""
        why = found.unreadable or f"pulled{by}, epoch {found.epoch}"
        home = self._own.spec.home
        return f"the halt latch in {home} is on ({why}). To lift it: andon reauthorize"

    def cleared(self, epoch: int, by: str, why: str) -> str:
        """Lift the latch because a person did so through the store; return why not, or "".

        A newer pull on this host keeps holding.
        """
        if self.look().pulled:
            lifted = self.latch.clear(epoch, by, why)
            if lifted.pulled:
                return f"the latch is not lifted: {lifted.refused or 'a newer pull holds'}"
        elif self.receipt is not None and epoch < int(self.receipt["epoch"]):
            return f"the latch is not lifted: a newer pull holds, epoch {self.receipt['epoch']}"
        self.release()
        return ""

    def _lifted(self, found: Pulled) -> bool:
        """Whether the disk lifts our pull; one that never reached the disk is not lifted there."""
        return self.receipt is None or found.epoch >= int(self.receipt["epoch"])

    def release(self) -> None:
        """Let workers start again; commands stay stopped."""
        if self.held and self.current is None:
            self.held, self._fleet = False, {}
            self._own.say("supervisor", "the latch is lifted; workers are started again")

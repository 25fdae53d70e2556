"""`andon kill`, `pause` and `cancel`: writes the order first and does everything else after it.

Until the order is in the store, only the standard library, the definition of an order and the
database driver are imported (tests/test_imports.py).
"""

from __future__ import annotations

import contextlib
import sys

from andon.cli import output, stop_options
from andon.control.stop.target import StopTarget, build_order, find_target, give, pair
from andon.core.stop import StopKind
from andon.core.text import clean, command, sentence
from andon.core.values.struct import Struct
from andon.errors import BadInput, NotFound
from andon.host.user import named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from andon.store.messages.stops import Order, StopRow

PROVED, NOT_PROVED = 0, 3
# Time for the proof, on top of the time that the current step has.
PROOF_SECONDS = 5.0
HARD_SECONDS = 10.0
# If the store has not answered by now, point the operator to `andon halt`.
AWAY_SECONDS = 0.9
ANOTHER_WAY = "andon halt needs no store: it stops everything on this host at once"


class StopRequest(Struct):
    """One stop command as it was typed; the options in stop_options fill these fields."""

    kind: StopKind
    run: str | None
    agent: str | None
    label: str | None
    fleet: bool
    wait_seconds: float | None
    no_wait: bool
    by: str | None
    why: str
    store: str | None
    json: bool
    within: float = 0.0
    spare_worker: bool = False
    end_worker: bool = False

    @property
    def proof_seconds(self) -> float:
        """How long to wait for the proof."""
        if self.no_wait:
            return 0.0
        if self.wait_seconds is not None:
            return self.wait_seconds
        return self.within + PROOF_SECONDS if self.within else HARD_SECONDS

    @property
    def spare(self) -> bool | None:
        """Whether to spare the worker's process; None if the command line does not say."""
        return self.spare_worker if self.spare_worker or self.end_worker else None

    def note(self, text: str) -> None:
        """Print progress. A closed pipe must not delay the kill."""
        if not self.json:
            with contextlib.suppress(OSError):
                output.note(text)


def main(arguments: Sequence[str]) -> int | None:
    """Return the exit code; None if the words need click's parser, and then nothing was done."""
    given = stop_options.read(arguments[0], arguments[1:])
    if given is None:
        return None
    output.prepare()
    try:
        code = stop(StopRequest(kind=StopKind(arguments[0]), **given))
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 (explain() handles them)
        from andon.cli.app import explain

        return explain(error, as_json=given["json"])
    return code


def stop(request: StopRequest) -> int:
    """Give the order, wait for its proof and print the receipt; return the exit code."""
    from andon.settings import load
    from andon.store import open_store

    if request.spare_worker and request.end_worker:
        raise BadInput("expected --spare-worker or --end-worker, found both: say one of them")
    label = pair(request.label, "label") if request.label is not None else None
    settings = load({"store": request.store})
    with contextlib.ExitStack() as stack:
        with _hint_at_halt(request, settings.store, "Nothing was stopped."):
            store = open_store(settings.store, create=False, reserved=True)
            stack.callback(store.close)
            target = find_target(store, request.run, request.agent, label, fleet=request.fleet)
        order = _order(request, target)
        with _interruptible(request, store, order) as given:
            again = "Give the order again: if it was written already, it is not repeated."
            with _hint_at_halt(request, settings.store, again):
                row = give(store, order)
            given.append(row.id)
            outcomes = _wait_for_proof(request, store, row, settings.patience_seconds)
        return _print_receipt(request, store, row.id, outcomes)


def _order(request: StopRequest, target: StopTarget) -> Order:
    return build_order(
        request.kind,
        target,
        within=request.within,
        by=named(request.by),
        why=request.why,
        via="command line",
        spare=request.spare,
    )


@contextlib.contextmanager
def _hint_at_halt(request: StopRequest, url: str, then: str) -> Iterator[None]:
    """If the store does not answer soon, tell the operator about the way that needs no store."""
    import threading

    from andon.errors import StoreError

    def hint() -> None:
        from andon.host.home import without_password

        where = clean(without_password(url))
        request.note(f"waiting for the store {where}. In a hurry: {ANOTHER_WAY}")

    timer = threading.Timer(AWAY_SECONDS, hint)
    timer.daemon = True
    timer.start()
    try:
        yield
    except StoreError as error:
        what = sentence(str(error))
        raise type(error)(f"{what} {then} In a hurry: {ANOTHER_WAY}") from error
    finally:
        timer.cancel()


def _wait_for_proof(
    request: StopRequest, store: Any, row: StopRow, patience_seconds: float
) -> dict[str, Any]:
    """Wait for the proof or the time limit; return the outcome of each kill on this host."""
    from andon.control.changes import Patience
    from andon.control.stop.proof import StopProof

    mark = output.symbol("stopping")
    proof = StopProof(store, row, lambda text: request.note(f"{mark} {text}"))
    patience = Patience(
        patience_seconds,
        lambda error: request.note(f"{sentence(clean(error))} Waiting for the store."),
    )
    proof.wait(request.proof_seconds, patience)
    return proof.killer.tried


def _print_receipt(request: StopRequest, store: Any, stop_id: str, outcomes: dict[str, Any]) -> int:
    from andon.cli.views import receipt_view
    from andon.control.stop import receipts

    found = receipts.receipt(store, stop_id)
    if request.json:
        output.document(found)
    else:
        receipt_view.receipt(found, outcomes, request.proof_seconds)
        if receipts.has_ended_the_last_worker(store, found):
            request.note(f"no worker is left. {output.START_ONE}")
    return PROVED if found["verdict"] in ("proved", "nothing") else NOT_PROVED


@contextlib.contextmanager
def _interruptible(request: StopRequest, store: Any, order: Order) -> Iterator[list[str]]:
    """On Ctrl-C stop waiting and name the receipt; the stop itself continues."""
    given = [order.id]  # the order may turn out to have joined an earlier stop
    try:
        yield given
    except KeyboardInterrupt:
        from andon.control.stop import receipts

        with contextlib.suppress(NotFound):  # the order was not given yet
            found = receipts.receipt(store, given[-1])
            show = command("show", found["id"])
            request.note(f"stopped waiting; the stop continues: {show}")
            if request.json:
                output.document(found)
        raise

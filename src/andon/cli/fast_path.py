"""`andon kill`, `pause` and `cancel`: writes the order first and does everything else after it.

Until the order is in the store, only the standard library, the definition of an order and the
database driver are imported (tests/test_imports.py).
"""

from __future__ import annotations

import contextlib
import sys

from andon.cli import output, stop_options
from andon.control.stop import target
from andon.core.stop import StopKind
from andon.core.text import clean, command, sentence
from andon.core.values.struct import Struct
from andon.errors import BadInput, NotFound
from andon.host.user import named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from andon.settings import Settings
    from andon.store.messages.stops import StopRow

PROVED, NOT_PROVED = 0, 3
# Time for the proof, on top of the time that the current step has.
PROOF_SECONDS = 5.0
HARD_SECONDS = 10.0
# If the store has not answered by now, point the operator to `andon halt`.
AWAY_SECONDS = 0.9
ANOTHER_WAY = "andon halt needs no store: it stops everything on this host at once"


def main(arguments: Sequence[str]) -> int | None:
    """Return the exit code; None if the words need click's parser, and then nothing was done."""
    said = stop_options.read(arguments[0], arguments[1:])
    if said is None:
        return None
    output.prepare()
    try:
        code = stop(arguments[0], **said)
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 (explain() handles them)
        from andon.cli.app import explain

        return explain(error, as_json=said["json"])
    return code


class Stop(Struct):
    """The options of one stop, except its target."""

    kind: StopKind
    within: float
    limit: float  # how long to wait for the proof
    by: str
    why: str
    json: bool
    spare: bool | None = None

    def tell(self, text: str) -> None:
        """Print progress. A closed pipe must not delay the kill."""
        if not self.json:
            with contextlib.suppress(OSError):
                output.note(text)


def stop(
    verb: str,
    *,
    run: str | None,
    agent: str | None,
    label: str | None,
    fleet: bool,
    wait_seconds: float | None,
    no_wait: bool,
    by: str | None,
    why: str,
    store: str | None,
    json: bool,
    within: float = 0.0,
    spare_worker: bool = False,
    end_worker: bool = False,
) -> int:
    """Give the order and wait for its proof; return the exit code."""
    from andon.settings import load
    from andon.store import open_store

    limit = 0.0 if no_wait else wait_seconds
    if limit is None:
        limit = within + PROOF_SECONDS if within else HARD_SECONDS
    if spare_worker and end_worker:
        raise BadInput("expected --spare-worker or --end-worker, found both: say one of them")
    asked = Stop(
        kind=StopKind(verb),
        within=within,
        limit=limit,
        by=named(by),
        why=why,
        json=json,
        spare=spare_worker if spare_worker or end_worker else None,
    )
    pair = target.pair(label, "label") if label is not None else None
    settings = load({"store": store})
    with contextlib.ExitStack() as stack:
        with _perhaps_away(asked, settings.store, "Nothing was stopped."):
            opened = open_store(settings.store, create=False, reserved=True)
            stack.callback(opened.close)
            whom = target.meant(opened, run, agent, pair, fleet=fleet)
        return _stop(asked, opened, whom, settings)


@contextlib.contextmanager
def _perhaps_away(asked: Stop, url: str, then: str) -> Iterator[None]:
    """If the store does not answer soon, tell the operator about the way that needs no store."""
    import threading

    from andon.errors import StoreError

    def tell() -> None:
        from andon.host.home import without_password

        where = clean(without_password(url))
        asked.tell(f"waiting for the store {where}. In a hurry: {ANOTHER_WAY}")

    timer = threading.Timer(AWAY_SECONDS, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    except StoreError as error:
        what = sentence(str(error))
        raise type(error)(f"{what} {then} In a hurry: {ANOTHER_WAY}") from error
    finally:
        timer.cancel()


def _stop(asked: Stop, store: Any, whom: target.Whom, settings: Settings) -> int:
    order = target.order_for(
        asked.kind, whom, within=asked.within, by=asked.by, why=asked.why, via="command line"
    ).but(spare=asked.spare)
    with _interruptible(asked, store, order.id) as known:
        again = "Give the order again: if it was written already, it is not repeated."
        with _perhaps_away(asked, settings.store, again):
            row = target.give(store, order)
        known.append(row.id)
        outcomes = _wait(asked, store, row, settings.patience_seconds)
    from andon.cli.views import receipt_view
    from andon.control.stop import receipts

    found = receipts.receipt(store, row.id)
    if asked.json:
        output.document(found)
    else:
        receipt_view.receipt(found, outcomes, asked.limit)
        _tell_if_alone(asked, store, found)
    return PROVED if found["verdict"] in ("proved", "nothing") else NOT_PROVED


def _tell_if_alone(asked: Stop, store: Any, found: dict[str, Any]) -> None:
    """Print how to start a worker if the stop ended the last one and no supervisor restarts it."""
    ended = [
        line
        for line in found["targets"]
        if line["process"] and line["process"]["alive"] is False and not line["supervisor"]
    ]
    if ended:
        from andon.control.runs.runs import Surroundings

        if not Surroundings(store).live:
            asked.tell(f"no worker is left. {output.START_ONE}")


def _wait(asked: Stop, store: Any, row: StopRow, patience_seconds: float) -> dict[str, Any]:
    """Wait until the proof or the time limit; return the outcomes of ending processes here."""
    from andon.control.changes import Patience
    from andon.control.stop.proof import StopProof

    mark = output.symbol("stopping")
    stopping = StopProof(store, row, lambda text: asked.tell(f"{mark} {text}"))
    patience = Patience(
        patience_seconds,
        lambda error: asked.tell(f"{sentence(clean(error))} Waiting for the store."),
    )
    stopping.wait(asked.limit, patience)
    return stopping.enders.tried


@contextlib.contextmanager
def _interruptible(asked: Stop, store: Any, stop_id: str) -> Iterator[list[str]]:
    """On Ctrl-C stop waiting and name the receipt; the stop itself continues."""
    known = [stop_id]  # the order may turn out to have joined an earlier stop
    try:
        yield known
    except KeyboardInterrupt:
        from andon.control.stop import receipts

        with contextlib.suppress(NotFound):  # the order was not given yet
            found = receipts.receipt(store, known[-1])
            show = command("show", found["id"])
            asked.tell(f"stopped waiting; the stop continues: {show}")
            if asked.json:
                output.document(found)
        raise

"""A worker is killed while it carries out an order: the order holds, and its receipt is true."""

import signal

import pytest
from tests.chaos import agents, laws
from tests.chaos.fleet import Site, until

from andon.core.stop import StopKind
from andon.points import POINTS
from andon.runtime.requests import requests

STOP = [name for name in POINTS if name.startswith("stop:")]
SETTINGS = {"poll_seconds": 0.1, "grace_seconds": 5.0}
BECOMES = {"pause": "paused", "cancel": "cancelled", "kill": "killed"}
# A run that is returned has not ended, so no end of it is reported.
PASSED = [
    (kind, name) for name in STOP for kind in BECOMES if (kind == "kill") or name != "stop:ended"
]


@pytest.mark.parametrize(("kind", "name"), PASSED)
def test_a_run_is_stopped_although_its_worker_is_killed_while_it_obeys(
    site: Site, kind: str, name: str
) -> None:
    site.start(agents.held, run="held")
    worker = site.worker(settings=SETTINGS, faults=f"{name}=kill")
    until(lambda: site.count("step", "held/step-1"), "the held step")
    receipt_id = requests.order(site.store, StopKind(kind), "held", by="ana")
    if kind == "pause":
        until(
            lambda: worker.status is not None or _acknowledged(site, receipt_id),
            "the acknowledgement",
        )
        site.set_flag("go")  # the step in hand ends
    assert worker.wait() == -signal.SIGKILL, site.errors[-3000:]
    other = site.worker(settings=SETTINGS)
    until(lambda: _proved(site, receipt_id), "the proof")
    assert site.state("held") == BECOMES[kind]
    done = site.count("step", "held/step-2")
    assert done == 0, "nothing of it was executed after the order"
    if kind != "cancel":
        site.set_flag("go")
        requests.resume(site.store, "held")
        site.finish()
        assert laws.result(site.store, "held") == [0, 2, 4]
        assert not laws.broken(site.store, site.folder, ["held"])
    other.kill()


def _acknowledged(site: Site, receipt_id: str) -> bool:
    return {row.stage for row in site.store.targets(receipt_id)} == {"acknowledged"}


def _proved(site: Site, receipt_id: str) -> bool:
    """A kill is proved only once its process is gone; the worker's word alone is not enough."""
    found = requests.receipt(site.store, receipt_id)
    return found.order.closed_at is not None and found.proved

"""Whether a run may go on in a process: decided without a store, a worker or any code of a run."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from andon.errors import Stopped
from andon.runtime.attempt.branch import Tasks
from andon.runtime.attempt.exit import Exit
from andon.runtime.attempt.replay_order import Turns
from andon.store.messages.stops import StopNotice


def an_exit(**host: Any) -> Exit:
    tasks = Tasks()
    worker: Any = SimpleNamespace(draining=False, operations=0, **host)
    return Exit(worker, tasks, Turns(tasks))


def an_order(kind: str, *, hard: bool = False) -> StopNotice:
    return StopNotice(
        stop_id="rcp_1", kind=kind, target="run:r", run_id="r", worker="w", fence=1, hard=hard
    )


async def test_the_first_reason_stands_and_only_a_kill_replaces_it() -> None:
    leaving, left = an_exit(), []
    leaving.on_leave = lambda: left.append(leaving.reason)
    leaving.leave("suspended")
    leaving.leave("drained")
    assert (leaving.reason, left) == ("suspended", ["suspended"])
    leaving.leave("killed")
    assert (leaving.reason, left) == ("killed", ["suspended"])
    with pytest.raises(Stopped):
        leaving.check()


async def test_a_pause_waits_for_the_operation_in_hand_and_a_cancel_cuts_it() -> None:
    for kind, cut in (("pause", False), ("cancel", True)):
        leaving = an_exit()
        task = asyncio.ensure_future(asyncio.Event().wait())
        hand = leaving.begin_operation("step", cuttable=True)
        hand.task = task
        leaving.take_order(an_order(kind))
        leaving.press()
        assert (leaving.reason is not None, hand.cut) == (cut, cut), kind
        leaving.end_operation(hand)
        leaving.press()
        assert leaving.reason == {"pause": "paused", "cancel": "cancelled"}[kind]
        task.cancel()
        await asyncio.wait({task})


async def test_a_shield_holds_a_polite_order_off_until_its_limit() -> None:
    leaving, shield = an_exit(), object()
    leaving.shields[shield] = asyncio.get_running_loop().time() + 60
    leaving.take_order(an_order("pause"))
    leaving.press()
    assert (leaving.reason, leaving.stopping, leaving.gives_way()) == (None, True, False)
    leaving.shields[shield] = asyncio.get_running_loop().time() - 1
    leaving.press()
    assert leaving.reason == "paused"


async def test_an_order_wakes_what_waits_for_a_change() -> None:
    leaving = an_exit()
    waiting = asyncio.ensure_future(leaving.changed())
    await asyncio.sleep(0)
    leaving.take_order(an_order("kill", hard=True))
    await waiting
    assert leaving.ordered.done()

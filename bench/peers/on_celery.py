"""Celery on Redis, prefork pool: `revoke(terminate=True)`.

docs.celeryq.dev, "Workers Guide", on revoking tasks: terminate is meant for administrators and for
tasks that are stuck, since it ends the process that executes the task. The signal is TERM unless
one is given; TERM and KILL are measured. Celery has no async tasks: that step runs in asyncio.run.
"""

import asyncio
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import servers
from celery import Celery
from driver import Driver, main, spawn, until
from stamps import async_step, blocked_step, stubborn_step, sync_step

URL = os.environ.get("STOPS_REDIS", "")
app = Celery("on_celery", broker=URL, backend=URL)
app.conf.update(task_track_started=True, worker_hijack_root_logger=False)


@app.task(name="async")
def async_(stamps: str) -> str:
    return asyncio.run(async_step(stamps))


@app.task(name="stubborn")
def stubborn_(stamps: str) -> str:
    return asyncio.run(stubborn_step(stamps))


@app.task(name="sync")
def sync_(stamps: str) -> str:
    return sync_step(stamps)


@app.task(name="blocked")
def blocked_(stamps: str) -> str:
    return blocked_step(stamps)


class OnCelery(Driver):
    ended = ("REVOKED", "SUCCESS", "FAILURE")

    def open(self) -> dict[str, str]:
        url, redis = servers.redis(self.folder, "--save", "")
        app.conf.update(broker_url=url, result_backend=url)
        until(app.backend.client.ping, "Redis")
        worker = spawn(
            [
                *(sys.executable, "-m", "celery", "-A", "on_celery", "worker"),
                *("--pool", "prefork", "--concurrency", "1", "--loglevel", "INFO"),
                *("--without-gossip", "--without-mingle"),
            ],
            self.folder,
            STOPS_REDIS=url,
            PYTHONPATH=str(Path(__file__).parent),
        )
        until(lambda: app.control.ping(timeout=0.5), "Celery's worker", worker)
        return {"celery": version("celery"), "redis": redis}

    def start(self, kind: str, stamps: str) -> Any:
        return app.tasks[kind].apply_async((stamps,))

    def stop(self, run: Any) -> None:
        run.revoke(terminate=True, signal=self.way)

    def says(self, run: Any) -> str:
        return str(run.state)


if __name__ == "__main__":
    main(OnCelery)

"""DBOS on PostgreSQL: `DBOSClient.cancel_workflow`.

docs.dbos.dev, "Workflow Management": cancelling preempts an execution "at the beginning of its next
step". DBOS.step's `preemptible=True` ("cancel the (async) step if its workflow is cancelled. Only
supported for async steps") is its best way for an async step and is set; there is none for sync.
"""

import os
import sys
import time
from importlib.metadata import version
from typing import Any

from breath import async_step, blocked_step, deaf_step, sync_step
from dbos import DBOS, DBOSClient
from drive import Driver, main, spawn, until

URL = os.environ["STOPS_POSTGRES"]


@DBOS.step(preemptible=True)
async def async_(breath: str) -> str:
    return await async_step(breath)


@DBOS.step(preemptible=True)
async def deaf_(breath: str) -> str:
    return await deaf_step(breath)


@DBOS.step()
def sync_(breath: str) -> str:
    return sync_step(breath)


@DBOS.step()
def blocked_(breath: str) -> str:
    return blocked_step(breath)


@DBOS.workflow(name="async")
async def async_run(breath: str) -> str:
    return await async_(breath)


@DBOS.workflow(name="deaf")
async def deaf_run(breath: str) -> str:
    return await deaf_(breath)


@DBOS.workflow(name="sync")
def sync_run(breath: str) -> str:
    return sync_(breath)


@DBOS.workflow(name="blocked")
def blocked_run(breath: str) -> str:
    return blocked_(breath)


class Dbos(Driver):
    ended = ("CANCELLED", "SUCCESS", "ERROR")

    def open(self) -> dict[str, str]:
        worker = spawn([sys.executable, __file__, "worker"], self.folder)
        ready = self.folder / "ready"
        until(ready.exists, "DBOS's worker", worker)
        self.client = DBOSClient(system_database_url=URL)
        return {"dbos": version("dbos")}

    def start(self, kind: str, breath: str) -> Any:
        options: Any = {"queue_name": "stops", "workflow_name": kind, "app_version": "1"}
        return self.client.enqueue(options, breath)

    def stop(self, run: Any) -> None:
        self.client.cancel_workflow(run.workflow_id)

    def says(self, run: Any) -> str:
        return str(run.get_status().status)


def worker() -> None:
    DBOS(config={"name": "stops", "system_database_url": URL, "application_version": "1"})
    DBOS.launch()
    DBOS.register_queue("stops", polling_interval_sec=0.05)
    with open("ready", "w"):
        pass
    while True:
        time.sleep(60)


if __name__ == "__main__":
    worker() if sys.argv[1] == "worker" else main(Dbos)

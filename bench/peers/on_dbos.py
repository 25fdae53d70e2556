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

from dbos import DBOS, DBOSClient
from driver import Driver, main, spawn, until
from stamps import async_step, blocked_step, stubborn_step, sync_step

URL = os.environ["STOPS_POSTGRES"]


@DBOS.step(preemptible=True)
async def async_(stamps: str) -> str:
    return await async_step(stamps)


@DBOS.step(preemptible=True)
async def stubborn_(stamps: str) -> str:
    return await stubborn_step(stamps)


@DBOS.step()
def sync_(stamps: str) -> str:
    return sync_step(stamps)


@DBOS.step()
def blocked_(stamps: str) -> str:
    return blocked_step(stamps)


@DBOS.workflow(name="async")
async def async_run(stamps: str) -> str:
    return await async_(stamps)


@DBOS.workflow(name="stubborn")
async def stubborn_run(stamps: str) -> str:
    return await stubborn_(stamps)


@DBOS.workflow(name="sync")
def sync_run(stamps: str) -> str:
    return sync_(stamps)


@DBOS.workflow(name="blocked")
def blocked_run(stamps: str) -> str:
    return blocked_(stamps)


class Dbos(Driver):
    ended = ("CANCELLED", "SUCCESS", "ERROR")

    def open(self) -> dict[str, str]:
        worker = spawn([sys.executable, __file__, "worker"], self.folder)
        ready = self.folder / "ready"
        until(ready.exists, "DBOS's worker", worker)
        self.client = DBOSClient(system_database_url=URL)
        return {"dbos": version("dbos")}

    def start(self, kind: str, stamps: str) -> Any:
        options: Any = {"queue_name": "stops", "workflow_name": kind, "app_version": "1"}
        return self.client.enqueue(options, stamps)

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

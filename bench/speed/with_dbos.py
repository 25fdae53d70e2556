"""DBOS: workers poll a queue, runs are enqueued by `DBOSClient`.

docs.dbos.dev, "Queues": `polling_interval_sec` is 1 s by default and set to 10 ms here, which makes
it much quicker. "Workflow Recovery": a process recovers the runs of its own executor id when it is
started again; that another live process does so takes Conductor, which is not part of the library.
On SIGTERM `DBOS.destroy(workflow_completion_timeout_sec=…)` waits for running workflows.
"""

import os
import signal
import sqlite3
import sys
import threading
from importlib.metadata import version
from typing import Any

# DBOS needs SQLite 3.42; some systems' own is older.
if sqlite3.sqlite_version_info < (3, 42):
    import pysqlite3

    sys.modules["sqlite3"] = pysqlite3
    sys.modules["sqlite3.dbapi2"] = pysqlite3.dbapi2

import scenes
from dbos import DBOS, DBOSClient
from system import GRACE_SECONDS, System, main

POLL_SECONDS = 0.01


@DBOS.step()
async def step(name: str, given: list[Any]) -> Any:
    return await scenes.perform(name, given)


@DBOS.workflow(name="run")
async def run(scene: str, key: str, *numbers: int) -> None:
    scenes.begun(key)
    for name, given in scenes.plan(scene, key, *numbers):
        if name == "wait":
            scenes.resting(key)
            await DBOS.recv_async("never", timeout_seconds=scenes.STAY_SECONDS)
        else:
            await step(name, given)
    scenes.done(key)


class Dbos(System):
    standby = False
    program = __file__

    def open(self) -> dict[str, str]:
        url = f"sqlite:///{self.sqlite}" if self.store == "sqlite" else self.postgres
        os.environ["BENCH_URL"] = url
        self.client: Any = None
        return {"dbos": version("dbos")}

    def submit(self, scene: str, runs: list[list[Any]]) -> None:
        if self.client is None:  # its tables are made by the first worker
            self.client = DBOSClient(system_database_url=os.environ["BENCH_URL"])
        options: Any = {"queue_name": "bench", "workflow_name": "run", "app_version": "1"}
        for given in runs:
            self.client.enqueue(options, scene, *given)

    def copies(self) -> Any:
        place = "" if self.store == "sqlite" else "dbos."
        sample = f"(SELECT min(workflow_uuid) FROM {place}workflow_status)"
        differs = {"workflow_uuid": "'copy-' || n"}
        return {
            f"{place}{table}": (f"workflow_uuid = {sample}", differs)
            for table in ("workflow_status", "operation_outputs")
        }


def work() -> None:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": os.environ["BENCH_URL"],
            "application_version": "1",
            "executor_id": "bench",
            "log_level": "ERROR",
        }
    )
    DBOS.launch()
    DBOS.register_queue("bench", polling_interval_sec=POLL_SECONDS)
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    scenes.note("ready")
    told.wait()
    DBOS.destroy(workflow_completion_timeout_sec=GRACE_SECONDS)


if __name__ == "__main__":
    main(Dbos, work)

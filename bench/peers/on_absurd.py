"""absurd on PostgreSQL: `cancel_task`.

Its docs, "Cancellation": a running task notices that it was cancelled at its next checkpoint,
heartbeat or wait for an event; a step in flight goes on until then. The step here makes none of
these calls, like most code that agents call.
"""

import asyncio
import os
import sys
from importlib.metadata import version
from typing import Any

import absurdctl
import psycopg
from absurd_sdk import AsyncAbsurd
from driver import Driver, Loop, main, spawn, until
from stamps import async_step, blocked_step, stubborn_step, sync_step

URL = os.environ["STOPS_POSTGRES"]
QUEUE = "stops"
STEPS = {"async": async_step, "stubborn": stubborn_step, "sync": sync_step, "blocked": blocked_step}

app = AsyncAbsurd(URL, queue_name=QUEUE)


@app.register_task(name="run")
async def run(given: Any, ctx: Any) -> None:
    kind, stamps = given

    async def step() -> Any:
        call = STEPS[kind]
        if kind in ("async", "stubborn"):
            return await call(stamps)  # type: ignore[misc]
        return await asyncio.to_thread(call, stamps)

    await ctx.step("step", step)


class OnAbsurd(Driver):
    ended = ("cancelled", "completed", "failed")

    def open(self) -> dict[str, str]:
        with psycopg.connect(URL, autocommit=True) as connection:
            made = connection.execute("SELECT to_regnamespace('absurd')").fetchone()
            if made == (None,):
                connection.execute(absurdctl.BUNDLED_SCHEMA_SQL)
                connection.execute("SELECT absurd.create_queue(%s)", (QUEUE,))
        worker = spawn([sys.executable, __file__, "worker"], self.folder)
        until((self.folder / "ready").exists, "absurd's worker", worker)
        self.loop = Loop()
        return {"absurd-sdk": version("absurd-sdk")}

    def start(self, kind: str, stamps: str) -> Any:
        return self.loop.run(app.spawn("run", [kind, stamps]))["task_id"]

    def stop(self, run: Any) -> None:
        self.loop.run(app.cancel_task(str(run)))

    def says(self, run: Any) -> str:
        return str(self.loop.run(app.fetch_task_result(str(run))).state)


def worker() -> None:
    with open("ready", "w"):
        pass
    asyncio.run(app.start_worker(concurrency=4, poll_interval=0.02))


if __name__ == "__main__":
    worker() if sys.argv[1] == "worker" else main(OnAbsurd)

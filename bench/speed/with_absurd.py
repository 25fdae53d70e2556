"""absurd on PostgreSQL: the schema of absurdctl, workers of absurd-sdk that poll.

Its worker polls each 0.25 s and holds a claim for 120 s by default; here each 5 ms and for 2 s,
with the heartbeats that its docs ask for in long steps: much quicker to start and to resume. One
worker has one connection, so a process that is to execute many runs has ten of them. On SIGTERM
`stop_worker()` waits for running tasks, as its docs show.
"""

import asyncio
import os
import signal
from importlib.metadata import version
from typing import Any

import absurdctl
import psycopg
import scenes
from absurd_sdk import AsyncAbsurd
from system import Absent, Loop, System, concurrency, main

QUEUE = "bench"
POLL_SECONDS = 0.005
CLAIM_SECONDS = 2
CROWD = 50  # from here on ten connections


def program(url: str) -> AsyncAbsurd:
    app = AsyncAbsurd(url, queue_name=QUEUE)

    @app.register_task(name="run")
    async def run(given: Any, ctx: Any) -> None:
        beats = set()

        def beat(count: int) -> None:
            if count % 5 == 0:
                beats.add(asyncio.ensure_future(ctx.heartbeat(CLAIM_SECONDS)))

        async def step(name: str, given: list[Any]) -> Any:
            if name in ("write", "stay"):
                return await scenes.SLOW[name](*given, keep=beat)
            return await scenes.perform(name, given)

        scene, key, *numbers = given
        scenes.begun(key)
        for name, arguments in scenes.plan(scene, key, *numbers):
            if name == "wait":
                scenes.resting(key)
                await ctx.await_event(f"never-{key}")
            else:
                await ctx.step(name, lambda name=name, given=arguments: step(name, given))
        scenes.done(key)

    return app


class OnAbsurd(System):
    program = __file__

    def open(self) -> dict[str, str]:
        os.environ["BENCH_URL"] = self.postgres
        with psycopg.connect(self.postgres, autocommit=True) as connection:
            connection.execute(absurdctl.BUNDLED_SCHEMA_SQL)
            connection.execute("SELECT absurd.create_queue(%s)", (QUEUE,))
        self.loop = Loop()
        self.client = program(self.postgres)
        return {"absurd-sdk": version("absurd-sdk")}

    def submit(self, scene: str, runs: list[list[Any]]) -> None:
        async def spawn() -> None:
            for given in runs:
                await self.client.spawn("run", [scene, *given])

        self.loop.run(spawn())

    def running(self, count: int) -> dict[str, Any]:
        raise Absent("its worker takes further runs only when all of those it took have ended")

    def copies(self) -> Any:
        task, run = (
            f"('{kind}0000000' || lpad(to_hex(n::bigint), 24, '0'))::uuid" for kind in (1, 2)
        )
        sample = f"task_id = (SELECT task_id FROM absurd.t_{QUEUE} LIMIT 1)"
        return {
            f"absurd.t_{QUEUE}": (sample, {"task_id": task, "last_attempt_run": run}),
            f"absurd.r_{QUEUE}": (sample, {"task_id": task, "run_id": run}),
            f"absurd.c_{QUEUE}": (sample, {"task_id": task, "owner_run_id": run}),
        }


async def serve() -> None:
    many = concurrency() >= CROWD
    apps = [program(os.environ["BENCH_URL"]) for _ in range(10 if many else 1)]

    def leave() -> None:
        for app in apps:
            app.stop_worker()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave)
    workers = [
        asyncio.ensure_future(
            app.start_worker(
                concurrency=concurrency() // len(apps),
                claim_timeout=CLAIM_SECONDS,
                poll_interval=POLL_SECONDS,
            )
        )
        for app in apps
    ]
    scenes.note("ready")
    await asyncio.gather(*workers)


def work() -> None:
    asyncio.run(serve())


if __name__ == "__main__":
    main(OnAbsurd, work)

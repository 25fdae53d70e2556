"""Restate: its server from npm, a service of restate-sdk under hypercorn (HTTP/2), as documented.

Its retry policy starts at 10 ms and ends at 0.2 s, which is documented, and much quicker than its
defaults. Two serving processes take connections from one socket. hypercorn's
`--graceful-timeout` is 30 s: with the 2 s of the workload it neither ends the step nor exits.
"""

import os
import socket
import sys
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp
import restate
import scenes
import servers
from driver import until
from resources import group_of
from system import Loop, System, main, up

AT_ONCE = 50
GRACEFUL_SECONDS = 30

policy = restate.InvocationRetryPolicy(
    initial_interval=timedelta(milliseconds=10), max_interval=timedelta(milliseconds=200)
)
service = restate.Service("bench", invocation_retry_policy=policy)
options: Any = restate.RunOptions()


async def execute(ctx: restate.Context, given: list[Any]) -> None:
    scene, key, *numbers = given
    scenes.begun(key)
    for name, arguments in scenes.plan(scene, key, *numbers):
        if name == "wait":
            scenes.resting(key)
            await ctx.sleep(timedelta(seconds=scenes.STAY_SECONDS))
        else:
            await ctx.run_typed(name, scenes.perform, options, name, arguments)
    scenes.done(key)


@service.handler()
async def run(ctx: restate.Context, given: list[Any]) -> None:
    await execute(ctx, given)


@service.handler(inactivity_timeout=timedelta(seconds=1))
async def rest(ctx: restate.Context, given: list[Any]) -> None:
    """It is suspended after a second without progress; a minute by default."""
    await execute(ctx, given)


app = restate.app([service])


class OnRestate(System):
    def open(self) -> dict[str, str]:
        self.admin, self.ingress = servers.restate(self.folder)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.registered = False
        self.loop = Loop()
        self.session = self.loop.run(self._connect())
        return {
            "restate-sdk": version("restate-sdk"),
            "restate-server": os.environ["STOPS_RESTATE_VERSION"],
        }

    async def _connect(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=AT_ONCE))

    def worker(self, concurrency: int) -> Any:
        handed = self.socket.fileno()
        serving = ["--bind", f"fd://{handed}", "--graceful-timeout", str(GRACEFUL_SECONDS)]
        command = [sys.executable, "-m", "hypercorn", *serving]
        path = f"{Path(__file__).parent}:{os.environ['PYTHONPATH']}"
        return self.spawn([*command, "with_restate:app"], handed=(handed,), PYTHONPATH=path)

    def ready(self, process: Any) -> bool:
        if not any(group_of(one.pid) == process.pid for one in self.log.of("up")):
            return False
        if not self.registered:
            place = {"uri": f"http://127.0.0.1:{self.socket.getsockname()[1]}"}
            until(lambda: servers.ask("POST", f"{self.admin}/deployments", place)[0] < 300, "it")
            self.registered = True
        return True

    def size(self) -> int:
        found = (self.folder / "restate").rglob("*")
        return sum(one.stat().st_size for one in found if one.is_file())

    def submit(self, scene: str, runs: list[list[Any]]) -> None:
        target = f"{self.ingress}/bench/{'rest' if scene == 'rest' else 'run'}/send"

        async def send(given: list[Any]) -> None:
            async with self.session.post(target, json=[scene, *given]) as answer:
                assert answer.status < 300, await answer.text()

        self.loop.run(*(send(given) for given in runs))


if __name__ == "__main__":
    main(OnRestate)
else:
    up()

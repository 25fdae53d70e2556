"""andon on PostgreSQL, its worker under `andon up`: `andon cancel RUN` and `andon kill RUN`.

The order is given by the function behind `Client.cancel` and `Client.kill`, from a warm process, as
with the peers; the way `shell` runs the command instead, its start included. A cancel becomes a
kill by itself when its window is over: here 1 s, where 10 s is the default. Sync steps run in
processes of their own (`process=True`); the way `threads` leaves them in the worker's threads,
where only the end of the worker's process ends them. The status of andon is that of `andon ps`.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import stamps
from driver import Driver, main, spawn, until

import andon
from andon.control.runs.shown_state import Surroundings
from andon.core.stop import StopKind
from andon.runtime.requests import requests
from andon.store import open_store

URL = os.environ.get("STOPS_POSTGRES", "")
HERE = Path(__file__)
CLOSE_SECONDS = 5


@andon.agent(name="async")
async def async_(ctx: andon.Context, path: str) -> str:
    return await ctx.step(stamps.async_step, path)


@andon.agent(name="stubborn")
async def stubborn_(ctx: andon.Context, path: str) -> str:
    return await ctx.step(stamps.stubborn_step, path)


@andon.agent(name="sync")
async def sync_(ctx: andon.Context, path: str) -> str:
    return await ctx.step(stamps.sync_step, path, process=True)


@andon.agent(name="blocked")
async def blocked_(ctx: andon.Context, path: str) -> str:
    return await ctx.step(stamps.blocked_step, path, process=True)


@andon.agent(name="sync-thread")
async def sync_thread(ctx: andon.Context, path: str) -> str:
    return await ctx.step(stamps.sync_step, path)


@andon.agent(name="blocked-thread")
async def blocked_thread(ctx: andon.Context, path: str) -> str:
    return await ctx.step(stamps.blocked_step, path)


class OnAndon(Driver):
    ended = ("cancelled", "killed", "succeeded", "failed")

    def open(self) -> dict[str, str]:
        environ = {
            "ANDON_STORE": URL,
            "ANDON_HOME": str(self.folder / "home"),
            "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]),
        }
        os.environ.update(environ)
        self.up = spawn([sys.executable, "-m", "andon", "up", HERE], self.folder)
        self.store = open_store(URL)
        until(self.store.workers, "andon's worker", self.up)
        return {"andon": "of this commit"}

    def start(self, kind: str, path: str) -> Any:
        plain = self.way == "threads" and kind in {"sync", "blocked"}
        return requests.start(self.store, f"{kind}-thread" if plain else kind, (path,))

    def stop(self, run: Any) -> None:
        if self.way == "shell":
            spawn([sys.executable, "-m", "andon", "kill", run], self.folder)
        elif self.way == "cancel":
            requests.order(self.store, StopKind.CANCEL, run, within=1.0)
        else:
            requests.order(self.store, StopKind.KILL, run)

    def close(self) -> None:
        self.up.send_signal(signal.SIGTERM)  # it removes its control groups
        self.up.wait(CLOSE_SECONDS)

    def says(self, run: Any) -> str:
        row = self.store.run(run)
        return str(Surroundings(self.store).state_of(row))


if __name__ == "__main__":
    main(OnAndon)

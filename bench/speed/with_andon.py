"""andon: workers are `andon work`, runs are started by `andon.Client`.

The action on the outside is an effect that can be asked for (`probe`), the long step keeps how far
it is (`ctx.checkpoint`), the grace period is set with `--grace`. Everything else is as it comes.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import scenes
from drive import Loop
from serving import GRACE_SECONDS, System, main, up

import andon
from andon.control.version import VERSION
from andon.store import open_store


async def found(run: str, *, key: str) -> Any:
    acted = scenes.noted(f"acted-{run}")
    return andon.happened() if acted else andon.did_not_happen()


@andon.effect_of(probe=found)
async def act(run: str, *, key: str) -> None:
    await scenes.act(run)


@andon.agent
async def run(ctx: andon.Context, scene: str, key: str, count: int = 1) -> None:
    async def write(key: str) -> int:
        return await scenes.write(key, ctx.partial or 0, ctx.checkpoint)

    scenes.begun(key)
    for name, given in scenes.plan(scene, key, count):
        if name == "act":
            await ctx.effect(act, key, key=key)
        elif name == "write":
            await ctx.step(write, *given)
        elif scene == "plain":  # in a thread
            await ctx.step(scenes.result, *given)
        else:
            await ctx.step(scenes.perform, name, given)
    scenes.done(key)


class Andon(System):
    def open(self) -> dict[str, str]:
        url = f"sqlite:///{self.sqlite}" if self.store == "sqlite" else self.postgres
        os.environ |= {"ANDON_STORE": url, "ANDON_HOME": str(self.folder / "home")}
        self.seen = open_store(url)
        self.loop = Loop()
        self.client = self.loop.run(andon.Client(url).__aenter__())
        return {"andon": VERSION}

    def worker(self, concurrency: int) -> Any:
        command = [sys.executable, "-m", "andon", "work", f"{Path(__file__)}:run"]
        environ = {"ANDON_CONCURRENCY": str(concurrency)}
        return self.spawn([*command, "--grace", str(GRACE_SECONDS)], **environ)

    def ready(self, process: Any) -> bool:
        return any(one.pid == process.pid for one in self.seen.workers())

    def plain(self, count: int) -> dict[str, Any]:
        return {"plain": self.steps(count, "plain")["step"]}

    def left_behind(self, leaver: Any) -> dict[str, Any]:
        [ended] = [one for one in self.seen.fleet(0) if one.pid == leaver.pid]
        return {"announced": json.loads(ended.drain)["announced_after"]}

    def submit(self, scene: str, runs: list[list[Any]]) -> None:
        async def start() -> None:
            await asyncio.gather(*(self.client.start("run", scene, *given) for given in runs))

        self.loop.run(start())


if __name__ == "__main__":
    main(Andon)
elif "BENCH_CONCURRENCY" in os.environ:
    up()

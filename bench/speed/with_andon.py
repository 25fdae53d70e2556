"""andon: workers are `andon work`, runs are started by `andon.Client`.

The outside action is an effect with a `probe`, the long step saves its progress (`ctx.checkpoint`),
the grace period is set with `--grace`. Everything else is the default.
"""

import contextlib
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

import apsw
import psycopg
import scenes
from system import GRACE_SECONDS, Loop, System, main, up

import andon
from andon.cli.version import VERSION
from andon.store import open_store

COMMITS: list[None] = []  # of SQLite, one for each


def count_commits(connection: apsw.Connection) -> None:
    connection.set_commit_hook(lambda: bool(COMMITS.append(None)))


async def found(run: str, *, key: str) -> Any:
    acted = scenes.noted(f"acted-{run}")
    return andon.happened() if acted else andon.did_not_happen()


@andon.effect_of(probe=found)
async def act(run: str, *, key: str) -> None:
    await scenes.act(run)


@andon.effect_of(probe=found)
async def tool(run: str, number: int, *, key: str) -> int:
    return number


@andon.agent
async def run(ctx: andon.Context, scene: str, key: str, count: int = 1) -> None:
    async def write(key: str) -> int:
        return await scenes.write(key, ctx.partial or 0, ctx.checkpoint)

    scenes.begun(key)
    commits = len(COMMITS)
    async with ctx.together() if scene == "loop" else contextlib.nullcontext():
        await play(ctx, scene, key, count, write)
    if scene != "short":  # whose notes are a part of its cost
        scenes.note(f"commits-{key}", str(len(COMMITS) - commits))
    scenes.done(key)


async def play(ctx: andon.Context, scene: str, key: str, count: int, write: Any) -> None:
    for name, given in scenes.plan(scene, key, count):
        if name == "act":
            await ctx.effect(act, key, key=key)
        elif name == "tool":
            await ctx.effect(tool, *given, key=f"{key}-{given[1]}")
        elif name == "write":
            await ctx.step(write, *given)
        elif name == "wait":
            scenes.resting(key)
            await ctx.event("never")
        elif scene == "plain":  # in a thread
            await ctx.step(scenes.result, *given)
        else:
            await ctx.step(scenes.perform, name, given)


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

    def effects(self, count: int) -> dict[str, Any]:
        """A loop of steps, and one of a step and an effect: the cost that the effects add."""
        self._looped("steps", count)  # other first writes of a new worker and a new database
        steps, turns = self._looped("steps", count), self._looped("loop", count)
        step, turn = steps["gap"], turns["gap"]
        return {
            "step commits": steps["commits"],
            "effect commits": turns["commits"] - steps["commits"],
            "step": step,
            "effect": turn - step,
            "ratio": (turn - step) / step,
        }

    def _looped(self, scene: str, count: int) -> dict[str, float]:
        """The time and the commits of a turn: those of a run less those of one half as long."""
        self.serve()
        found = []
        for turns in (count // 2, count):
            before = self._committed()
            key = self.begin(scene, turns)
            done = self.log.wait({f"done-{key}"})[f"done-{key}"]
            gap = statistics.median(json.loads(done.text))
            own = int(self.log.of(f"commits-{key}")[0].text)
            found.append(own if self.store == "sqlite" else self._committed() - before)
        return {"gap": gap, "commits": (found[1] - found[0]) / (count - count // 2)}

    def _committed(self) -> int:
        """How many transactions have written so far: each takes a number, and no other does."""
        if self.store == "sqlite":
            return 0
        with psycopg.connect(self.postgres, autocommit=True) as connection:
            row = connection.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())").fetchone()
        return int(row[0]) if row else 0

    def copies(self) -> Any:
        place = "andon_" if self.store == "sqlite" else "andon."
        sample = f"(SELECT min(id) FROM {place}runs WHERE state = 'succeeded')"
        name = "'copy-' || n"
        earlier = "sample.created_at - n * 0.01"
        differs = {"id": name, "root_id": name, "created_at": earlier}
        return {
            f"{place}journal": (f"run_id = {sample}", {"run_id": name}),
            f"{place}attempts": (f"run_id = {sample}", {"run_id": name}),
            f"{place}runs": (f"id = {sample}", differs),
        }

    def submit(self, scene: str, runs: list[list[Any]]) -> None:
        self.loop.run(*(self.client.start(run, scene, *given) for given in runs))


if __name__ == "__main__":
    main(Andon)
elif "BENCH_CONCURRENCY" in os.environ:
    apsw.connection_hooks.append(count_commits)
    up()

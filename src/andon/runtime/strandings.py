"""Versions that nobody carries although their runs wait: said when it begins, and when it ends.

One worker looks for all of them: the one that serves for the longest time. That may be another one
the next time, so what was said is read from the events and not kept in mind.
"""

import json
from typing import TYPE_CHECKING, Any

from andon.runtime.clock import own_time
from andon.runtime.leaving import log
from andon.store.store import Note, WorkerRow

if TYPE_CHECKING:
    from andon.runtime.worker import Worker

# "Within seconds"; the question costs a look at everything that waits.
LOOK_SECONDS = 3.0

Version = tuple[str, str]


class Strandings:
    """Looks for versions without a worker, every few seconds."""

    def __init__(self, worker: "Worker") -> None:
        self._worker = worker
        self._looked_at = 0.0

    async def look(self) -> None:
        worker = self._worker
        if worker.only is not None or own_time() - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = own_time()
        found = await worker.loop.run_in_executor(worker.threads, self._find)
        if found is None:
            return
        stranded, said = found
        for version, runs in stranded.items():
            if version not in said:
                log.warning("%d runs of %s %s wait, and no live worker carries it", runs, *version)
                await self._note("version.stranded", version, runs=runs)
        for version in sorted(said - stranded.keys()):
            await self._note("version.carried", version)

    def _find(self) -> tuple[dict[Version, int], set[Version]] | None:
        """The runs of versions without a worker, and those that were said; None: others look."""
        store = self._worker.store
        serving = [one for one in store.workers() if _serves(one)]
        if not serving or serving[0].id != self._worker.worker_id:  # they come oldest first
            return None
        said = store.stranded_versions()
        return {(one.agent, one.version): one.runs for one in store.forsaken()}, said

    async def _note(self, kind: str, version: Version, **more: Any) -> None:
        body = json.dumps({"agent": version[0], "version": version[1], **more})
        await self._worker.writer.write(Note(kind=kind, body=body))


def _serves(one: WorkerRow) -> bool:
    """Not one inside a program, which takes only what its program asks for."""
    return one.state == "live" and one.draining_at is None and one.agents != "[]"

"""Reports versions with waiting runs that no worker serves: when that begins and when it ends.

One worker looks for all of them: the one that has served longest. That may be another worker next
time, so earlier reports are read from the events and not kept in memory.
"""

import json
from typing import TYPE_CHECKING, Any

from andon.runtime.attempt.exit import log
from andon.runtime.worker.clock import own_time
from andon.store.store import FleetState, NoteEvent, WorkerRow

if TYPE_CHECKING:
    from andon.runtime.worker.worker import Worker

# Keeps the promise "within seconds". The query examines every waiting run, so it follows a
# heartbeat at the earliest and is skipped if nothing waits.
LOOK_SECONDS = 2.0

Version = tuple[str, str]


class Strandings:
    """Looks for versions without a worker, every few seconds."""

    def __init__(self, worker: "Worker") -> None:
        self._worker = worker
        self._looked_at = 0.0
        # Whether there is, or was, such a version; None if that has to be looked up.
        self._open: bool | None = None

    async def look(self, seen: FleetState) -> None:
        worker = self._worker
        serving = [one for one in seen.workers if _serves(one)]  # oldest first
        if worker.only is not None or not serving or serving[0].id != worker.worker_id:
            self._open = None  # another worker looks and reports
            return
        nothing = not seen.waiting and self._open is False
        if nothing or own_time() - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = own_time()
        stranded, reported = await worker.loop.run_in_executor(worker.threads, self._find)
        self._open = bool(stranded or reported)
        for version, runs in stranded.items():
            if version not in reported:
                log.warning(
                    "%d runs of %s (version %s) wait: no running worker serves it", runs, *version
                )
                await self._report("version.stranded", version, runs=runs)
        for version in sorted(reported - stranded.keys()):
            await self._report("version.carried", version)

    def _find(self) -> tuple[dict[Version, int], set[Version]]:
        """The runs of versions without a worker, and the versions reported before."""
        store = self._worker.store
        reported = store.stranded_versions()
        return {(one.agent, one.version): one.runs for one in store.forsaken()}, reported

    async def _report(self, kind: str, version: Version, **more: Any) -> None:
        body = json.dumps({"agent": version[0], "version": version[1], **more})
        await self._worker.writer.write(NoteEvent(kind=kind, body=body))


def _serves(one: WorkerRow) -> bool:
    """Whether a worker serves any run; an embedded one takes only its program's."""
    return one.state == "live" and one.draining_at is None and one.agents != "[]"

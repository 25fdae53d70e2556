"""Starts every shutdown trigger except signals, and the health probes that report the shutdown."""

import contextlib
from collections.abc import Callable, Iterator

from andon.runtime.health.probes import Health
from andon.runtime.worker.notices import Preemption, StopFile
from andon.runtime.worker.view import WorkerView


@contextlib.contextmanager
def reachable(
    told: WorkerView, say: Callable[[str], None] = lambda text: None
) -> Iterator[Health | None]:
    """Start the probes and triggers that the settings ask for, and yield the probes' server.

    They end with the block. Enter it on the event loop before the worker registers, so that a
    start-up probe gets an answer.
    """
    settings = told.settings
    with contextlib.ExitStack() as stack:
        server = None
        if settings.health_port >= 0:
            server = Health(told)
            stack.callback(server.close)
            host = settings.health_host
            at = f"[{host}]" if ":" in host else host
            say(f"health: http://{at}:{server.port}/readyz")
        if settings.stop_file:
            stack.callback(StopFile(told, settings.stop_file).close)
        if settings.preemption:
            watch = Preemption(told, settings.preemption, settings.preemption_url)
            stack.callback(watch.close)
        yield server

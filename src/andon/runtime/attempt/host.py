"""The worker as its attempts see it."""

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from andon.settings import Settings
from andon.store.store import Store
from andon.store.writer.writer import Writer

if TYPE_CHECKING:
    from andon.runtime.worker.clock import StoreClock
    from andon.runtime.worker.drain import WorkerDrain
    from andon.runtime.worker.lease import WorkerLease


class Host(Protocol):
    """The worker as its attempts see it."""

    settings: Settings
    store: Store
    writer: Writer
    clock: "StoreClock"
    lease: "WorkerLease"
    drain: "WorkerDrain"
    draining: bool
    threads: ThreadPoolExecutor
    embedded: bool  # the worker runs inside the user's own program
    in_threads: set[Any]  # plain functions still executing
    operations: int  # number of operations that have ended in this process

    @property
    def processes(self) -> Any:
        """The pool that executes steps in processes of their own."""
        ...

    def add_agent(self, agent: Any) -> None: ...

    def new_mark(self) -> int:
        """A new mark, for the processes of one attempt."""
        ...

    def track(self, work: Any) -> None:
        """Track work that could not be ended: this process is not gone until it ends."""
        ...

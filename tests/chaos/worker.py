"""A worker process for the chaos tests: `python worker.py STORE_URL CONCURRENCY LEASE_SECONDS`."""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from andon.runtime.worker import Worker
from andon.settings import Settings
from andon.store import open_store


async def main(url: str, concurrency: int, lease_seconds: float) -> None:
    import world

    store = open_store(url)
    settings = Settings(concurrency=concurrency, lease_seconds=lease_seconds, store=url)
    async with Worker(store, [world.chaos], settings):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))

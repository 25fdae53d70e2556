"""Gives one store the order to halt: `python -m andon.control.halt.store_order WORDS`.

It runs as a separate process, so that a store that hangs or crashes cannot delay the command that
started it. It prints a line of JSON whenever it knows more.
"""

import json
import os
import signal
import sys
import time
from typing import Any

from andon.errors import AndonError
from andon.settings import Settings, load
from andon.store import absolute, sqlite_path


def main(words: dict[str, Any]) -> None:
    """Give the order to the configured store, or else to the first store used on this host."""
    end = time.monotonic() + float(words["wait"])
    # SIGALRM ends this process if anything hangs; the parent has reported by then what is unknown.
    signal.alarm(int(words["wait"]) + int(words["within"]) + 2)
    # No worker uses a database file that does not exist.
    stores = [one for one in words.get("stores", ()) if _is_there(one)]
    url = _url()
    if not _is_there(url):
        if not stores:
            _say(state="none", over=True)
            return
        url = stores[0]  # none is configured: take one that is used on this host
    from andon.control.halt import store_halt
    from andon.core.text import clean
    from andon.host.home import without_password

    others = [one for one in stores if one != without_password(absolute(url))]
    _say(url=without_password(url), others=others)
    signal.alarm(int(words["within"]) + 2)
    try:
        store, order = store_halt.order(url, words, words["within"], _say)
    except Exception as error:  # noqa: BLE001 (any failure has to be reported)
        _say(state="unknown", why=clean(error), over=True)
        return
    signal.alarm(int(words["wait"]) + 5)
    _say(state="answered", order=order)
    store_halt.prove(store, order, end, _say)
    _say(over=True)


def _is_there(url: str) -> bool:
    path = sqlite_path(url)
    return path is None or path.exists()


def _url() -> str:
    """The store's URL; an invalid setting elsewhere must not keep the order from its store."""
    try:
        return load().store
    except AndonError:
        return os.environ.get("ANDON_STORE") or Settings().store


def _say(**known: Any) -> None:
    try:
        sys.stdout.write(json.dumps(known) + "\n")
        sys.stdout.flush()
    except OSError:  # the parent reads no longer: the order must still be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

"""Tells one store of a halt: `python -m andon.control.halt.store_order WORDS`.

A process of its own: whatever the store does to it, the command that started it goes on. It
answers a line of JSON whenever it knows more.
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
    """Tell the store of this folder, if there is one."""
    end = time.monotonic() + float(words["wait"])
    # Nothing in here may hang for ever; the parent has said what is not known long before.
    signal.alarm(int(words["wait"]) + int(words["within"]) + 2)
    # A file that nobody has made is used by nobody.
    stores = [one for one in words.get("stores", ()) if _is_there(one)]
    url = _url()
    if not _is_there(url):
        if not stores:
            _say(state="none", over=True)
            return
        url = stores[0]  # nobody has said which: the one that is used on this host
    from andon.control.halt import store_halt
    from andon.core.text import clean
    from andon.host.home import without_password

    others = [one for one in stores if one != without_password(absolute(url))]
    _say(url=without_password(url), others=others)
    signal.alarm(int(words["within"]) + 2)
    try:
        store, order = store_halt.order(url, words, words["within"], _say)
    except Exception as error:  # noqa: BLE001 (whatever it is, somebody has to be told)
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
    """Another setting that is wrong must not keep the order from its store."""
    try:
        return load().store
    except AndonError:
        return os.environ.get("ANDON_STORE") or Settings().store


def _say(**known: Any) -> None:
    try:
        sys.stdout.write(json.dumps(known) + "\n")
        sys.stdout.flush()
    except OSError:  # nobody waits any more: the order is to be written all the same
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

"""Decides from the latch file and the STOP file whether the latch is pulled.

The file has one JSON record per line: {"pulled": EPOCH, …} or {"cleared": EPOCH, …}. The latch is
pulled while some pull has a higher epoch than every clear. So the order of lines does not matter,
and a late clear cannot undo a pull that it has not seen. Anything unreadable counts as a pull.
"""

import json
from typing import Any, NamedTuple

# Only the end of the file is read: its last records decide, and a huge file costs no more.
WINDOW_BYTES = 65_536
LONGEST_WHY, LONGEST_TEXT = 1_000, 200
EPOCH_LIMIT = 2**53


class Pulled(NamedTuple):
    """The state of the latch; `unreadable` says what could not be read."""

    pulled: bool
    epoch: int = 0
    at: float = 0.0
    by: str = ""
    why: str = ""
    via: str = ""
    order: str = ""
    unreadable: str = ""
    unwritten: str = ""  # why the pull is not on disk
    refused: str = ""  # why it was not lifted
    stop: str = ""  # the identity of the STOP file that belongs to this pull

    def __str__(self) -> str:
        return describe(self)


FREE = Pulled(pulled=False)


def record(verdict: Pulled) -> bytes:
    """Return the line that records this state."""
    said = {"pulled" if verdict.pulled else "cleared": verdict.epoch, "at": verdict.at}
    texts = {name: _text(name, getattr(verdict, name)) for name in _TEXTS}
    return json.dumps(said | {k: v for k, v in texts.items() if v}).encode() + b"\n"


def judge(content: bytes, *, whole: bool = True) -> Pulled:
    """Return the state from the end of the latch file; `whole` means that this is all of it."""
    *lines, torn = content.split(b"\n")
    records = [line for line in (lines if whole else lines[1:]) if line]
    if not records and not torn:
        return _doubtful(FREE, "it has no record")
    state = FREE
    for line in records:
        state = _after(state, line)
    # A process died while it wrote a pull or a clear, so it has confirmed nothing yet.
    return _doubtful(state, "its last record is not complete") if torn else state


def with_stop(found: Pulled, stop: str, unseen: str = "") -> Pulled:
    """Return the state with a STOP file: its identity (empty if none), or why it is unreadable."""
    if found.pulled or not (stop or unseen):
        return found
    pulled = Pulled(pulled=True, epoch=found.epoch + 1, via="STOP", stop=stop)
    return pulled._replace(unreadable=unseen)


def pulled_again(found: Pulled, new: Pulled) -> Pulled:
    """Return the record of one more pull.

    The first pull's order and author stay, because the pull has one receipt. The time is the
    newest pull's, because clears before it do not concern it. A new gesture gets a new epoch,
    so that a reauthorization that has not seen it does not lift it. The same order arriving by
    another way is not a new gesture.
    """
    if not found.pulled:
        return new._replace(pulled=True, epoch=found.epoch + 1)
    if not found.order:  # a STOP file or an unreadable latch has no order yet
        return new._replace(pulled=True, epoch=found.epoch + 1, via=found.via or new.via)
    known = new.order == found.order and not found.unreadable
    if known:
        return found._replace(stop=new.stop or found.stop)
    newest = found._replace(epoch=found.epoch + 1, at=new.at, stop=new.stop or found.stop)
    return newest._replace(unreadable="", unwritten="")


def may_clear(found: Pulled, epoch: int, stop: str) -> str:
    """Return why a caller who saw `epoch` must not lift it, or an empty string."""
    if not found.pulled:
        return "it is not pulled"
    if found.epoch != epoch:
        return f"it was pulled again since: epoch {found.epoch}, you saw {epoch}"
    if stop and stop != found.stop:
        return "STOP was touched since it was pulled"
    return ""


def describe(found: Pulled) -> str:
    """Describe the state for people, in a few words."""
    if not found.pulled:
        return "not pulled"
    by = f" by {found.by}" if found.by else ""
    via = f" through {found.via}" if found.via else ""
    why = f": {found.why}" if found.why else ""
    return f"halted{by}{via}{why}" + (f" ({found.unreadable})" if found.unreadable else "")


_TEXTS = ("by", "why", "via", "order", "stop")


def _after(state: Pulled, line: bytes) -> Pulled:
    said = _parsed(line)
    if said is None:
        return _doubtful(state, "it has a line that cannot be understood")
    word = said.pop("word")
    if word == "pulled":
        # If two pulls have the same epoch, the first one has named it.
        return Pulled(pulled=True, **said) if said["epoch"] > state.epoch else state
    # A clear that has not seen the newest pull lifts nothing.
    return Pulled(pulled=False, **said) if said["epoch"] >= state.epoch else state


def _doubtful(state: Pulled, why: str) -> Pulled:
    kept = state if state.pulled else Pulled(pulled=True)
    return kept._replace(unreadable=why, epoch=state.epoch + 1)


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    word = "pulled" if "pulled" in said else "cleared"
    epoch, first = said.get(word), int(word == "pulled")  # a clear may have epoch 0, a pull may not
    if not isinstance(epoch, int) or isinstance(epoch, bool) or not first <= epoch < EPOCH_LIMIT:
        return None
    at = said.get("at")
    moment = float(at) if isinstance(at, int | float) and 0 <= at < EPOCH_LIMIT else 0.0
    texts = {name: _text(name, said.get(name)) for name in _TEXTS}
    return {"word": word, "epoch": epoch, "at": moment, **texts}


def _text(name: str, found: object) -> str:
    longest = LONGEST_WHY if name == "why" else LONGEST_TEXT
    return found[:longest] if isinstance(found, str) else ""

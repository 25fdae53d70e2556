"""What counts as pulled: the decision over what the latch file says and whether STOP is there.

The file has one JSON record a line: {"pulled": EPOCH, …} or {"cleared": EPOCH, …}. It is pulled
while some pull has a higher epoch than every clear, so the order of lines does not matter, and a
late clear cannot undo a pull that it has not seen. What cannot be understood counts as a pull.
"""

import json
from typing import Any, NamedTuple

# Of the end of the file: the last records decide, and a huge file is as quick to read as a small.
WINDOW_BYTES = 65_536
LONGEST_WHY, LONGEST_TEXT = 1_000, 200
EPOCH_LIMIT = 2**53


class Pulled(NamedTuple):
    """Whether the latch is pulled, since when, by whom; `unreadable`: what could not be read."""

    pulled: bool
    epoch: int = 0
    at: float = 0.0
    by: str = ""
    why: str = ""
    via: str = ""
    order: str = ""
    unreadable: str = ""
    unwritten: str = ""  # a pull that is not on the disk, and why
    refused: str = ""  # why it was not lifted
    stop: str = ""  # which STOP file belongs to this pull

    def __str__(self) -> str:
        return describe(self)


FREE = Pulled(pulled=False)


def record(verdict: Pulled) -> bytes:
    """The line that says so."""
    said = {"pulled" if verdict.pulled else "cleared": verdict.epoch, "at": verdict.at}
    texts = {name: _text(name, getattr(verdict, name)) for name in _TEXTS}
    return json.dumps(said | {k: v for k, v in texts.items() if v}).encode() + b"\n"


def judge(content: bytes, *, whole: bool = True) -> Pulled:
    """What the end of the file says; `whole`: it is all of the file."""
    *lines, torn = content.split(b"\n")
    records = [line for line in (lines if whole else lines[1:]) if line]
    if not records and not torn:
        return _doubtful(FREE, "it has no record")
    state = FREE
    for line in records:
        state = _after(state, line)
    # A pull or a clear on its way when somebody died: nothing was promised yet.
    return _doubtful(state, "its last record is not complete") if torn else state


def with_stop(found: Pulled, stop: str, unseen: str = "") -> Pulled:
    """What holds with a STOP file (its identity, "" if there is none) that may be unreadable."""
    if found.pulled or not (stop or unseen):
        return found
    pulled = Pulled(pulled=True, epoch=found.epoch + 1, via="STOP", stop=stop)
    return pulled._replace(unreadable=unseen)


def pulled_again(found: Pulled, new: Pulled) -> Pulled:
    """The record of one more pull. The order and who it was stay the first one's: it has one
    receipt. The time is the newest one's: what was lifted before it does not concern it.

    A new gesture gets a new epoch: whoever reauthorizes has not seen it. The same order that
    arrives by another way is not a new gesture.
    """
    if not found.pulled:
        return new._replace(pulled=True, epoch=found.epoch + 1)
    if not found.order:  # of a STOP file or of something unreadable: it has no name yet
        return new._replace(pulled=True, epoch=found.epoch + 1, via=found.via or new.via)
    known = new.order == found.order and not found.unreadable
    if known:
        return found._replace(stop=new.stop or found.stop)
    newest = found._replace(epoch=found.epoch + 1, at=new.at, stop=new.stop or found.stop)
    return newest._replace(unreadable="", unwritten="")


def may_clear(found: Pulled, epoch: int, stop: str) -> str:
    """Why it must not be lifted by somebody who saw `epoch`; nothing if it may."""
    if not found.pulled:
        return "it is not pulled"
    if found.epoch != epoch:
        return f"it was pulled again since: epoch {found.epoch}, you saw {epoch}"
    if stop and stop != found.stop:
        return "STOP was touched since it was pulled"
    return ""


def describe(found: Pulled) -> str:
    """For people, in a few words."""
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
        # Of two at the same time the first has given it its name.
        return Pulled(pulled=True, **said) if said["epoch"] > state.epoch else state
    # A clear that has seen less than the newest pull lifts nothing.
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
    epoch, first = said.get(word), int(word == "pulled")  # nothing is lifted before it is pulled
    if not isinstance(epoch, int) or isinstance(epoch, bool) or not first <= epoch < EPOCH_LIMIT:
        return None
    at = said.get("at")
    moment = float(at) if isinstance(at, int | float) and 0 <= at < EPOCH_LIMIT else 0.0
    texts = {name: _text(name, said.get(name)) for name in _TEXTS}
    return {"word": word, "epoch": epoch, "at": moment, **texts}


def _text(name: str, found: object) -> str:
    longest = LONGEST_WHY if name == "why" else LONGEST_TEXT
    return found[:longest] if isinstance(found, str) else ""

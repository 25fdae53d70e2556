"""Tests on an orphan whether processes can be attributed to the runs that start them."""

import os
import subprocess
import time

from andon.control.doctor.check import OK, WARN, Check
from andon.core import mark as marks
from andon.host import mark, proc
from andon.host.remains import Remains

NAME = "run's processes"
# Leaves an orphan as a shell tool does: its parent has ended, and its environment has no mark.
_ORPHAN = ["/bin/sh", "-c", "sleep 30 & :"]
GONE_SECONDS = 2.0


def line() -> Check:
    """Start an orphan with a mark, find it by the mark, and kill it."""
    process = marks.of_process(proc.boot_id(), "doctor", os.getpid(), time.time_ns())
    wanted = marks.of_attempt(process, 1)
    remains = Remains(matches=lambda found: marks.belongs(found, wanted))
    before = mark.begin(wanted)
    try:
        environment = {"PATH": os.defpath}
        subprocess.run(_ORPHAN, check=False, env=environment, stdin=subprocess.DEVNULL)  # noqa: S603
    except OSError as error:
        return Check(NAME, WARN, f"not tried: {error}")
    finally:
        mark.finish(before)
    began = time.monotonic()
    found = remains.look()
    gone = remains.end(GONE_SECONDS)
    took = (time.monotonic() - began) * 1000
    if found and gone:
        text = (
            f"C, by a mark that they inherit: an orphan was found and gone in {took:.1f} ms; "
            "one that takes its mark off is ended with its worker, and not with its run"
        )
        return Check(NAME, OK, text)
    advice = "andon up: a supervisor ends all that a worker has started, whatever its run"
    return Check(NAME, WARN, "none: a process of a run cannot be told from others here", advice)

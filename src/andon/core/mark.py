"""Marks: the number that tells which worker, attempt and operation started a process.

A process inherits its mark from the one that started it (`host/mark.py`), so even an orphan can be
attributed. From the highest bit on:

    1 | worker's process, 28 bits | attempt, 22 bits | operation, 12 bits

The first part is a digest of boot, pid namespace, pid and start time, which identify a process for
ever. Attempts and operations are numbered when they start their first process. Attempt 0 means that
the worker itself started the process, or code that could not be attributed to a run.
"""

import zlib

_OPERATION_BITS, _ATTEMPT_BITS, _WORKER_BITS = 12, 22, 28
_ATTEMPT_SHIFT = _OPERATION_BITS
_WORKER_SHIFT = _OPERATION_BITS + _ATTEMPT_BITS
_FLAG_SHIFT = _WORKER_SHIFT + _WORKER_BITS
_FLAG = 1 << _FLAG_SHIFT


def of_process(boot: str, namespace: str, pid: int, start_ticks: int) -> int:
    """Return the mark of a worker's process."""
    name = f"{boot} {namespace} {pid} {start_ticks}".encode("utf-8", "backslashreplace")
    digest = zlib.crc32(name) >> (32 - _WORKER_BITS)  # not a secret; hashlib is slow to import
    return _FLAG | digest << _WORKER_SHIFT


def of_attempt(worker: int, number: int) -> int:
    """Return the mark for processes of an attempt. Numbers wrap around after four million."""
    return worker | (1 + (number - 1) % ((1 << _ATTEMPT_BITS) - 1)) << _ATTEMPT_SHIFT


def of_operation(attempt: int, number: int) -> int:
    """Return the mark for processes of one operation. Numbers wrap around after 4,095."""
    return attempt | (1 + (number - 1) % ((1 << _OPERATION_BITS) - 1))


def is_mark(found: int) -> bool:
    """Whether a limit is a mark; an unlimited one reads as -1."""
    return found >> _FLAG_SHIFT == 1


def belongs(found: int, to: int) -> bool:
    """Whether a process with the mark `found` belongs to the worker, attempt or operation `to`."""
    if to & ((1 << _OPERATION_BITS) - 1):
        return found == to
    shift = _ATTEMPT_SHIFT if to & ((1 << _WORKER_SHIFT) - 1) else _WORKER_SHIFT
    return is_mark(found) and found >> shift == to >> shift

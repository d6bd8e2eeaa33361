"""Ends every process that a tool has started, also those that left its process group with `setsid`.

The worker is a *subreaper*: a process whose parent ends becomes a child of the worker instead of init's, so the worker
can find it. Processes of a tool are recognized by a variable in their environment, `NOETL_TASK_RUN`, and if they have
cleared it, by a resource limit that they inherit (`process_marks`). `process_marks` marks the processes of a whole
worker in the same way, for the time after the worker has ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from functools import cache

from noetl.runtime.process_marks import limit_of

VARIABLE = "NOETL_TASK_RUN"
PR_SET_CHILD_SUBREAPER = 36
ROUNDS = 20  # of searches: a process may start others while it is being ended


@cache
def become_subreaper() -> bool:
    """Let orphaned descendants become children of this process; False where the system cannot."""
    if sys.platform != "linux":
        return False
    try:
        import _ctypes

        prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
        return bool(_ctypes.call_function(prctl, (PR_SET_CHILD_SUBREAPER, 1)) == 0)
    except (ImportError, AttributeError, OSError):
        return False


def children_of(pid: int) -> list[int]:
    """The direct children of a process."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    return found


def descendants_of(pid: int) -> Iterator[int]:
    """All descendants of a process, parents first."""
    waiting = children_of(pid)
    while waiting:
        each = waiting.pop()
        yield each
        waiting += children_of(each)


def is_marked(pid: int, mark: str) -> bool:
    """Whether a process has inherited this mark."""
    wanted = f"{VARIABLE}={mark}".encode()
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return wanted in file.read().split(b"\0")
    except OSError:
        return False


def kill_descendants(pid: int, mark: str, limit: int = 0) -> None:
    """Kill the descendants of a tool's process, and the orphans that have its mark or its limit.

    Call it while the process itself may still be alive; it is not killed here."""
    for _ in range(ROUNDS):
        found = list(descendants_of(pid))
        for orphan in children_of(os.getpid()):
            if orphan != pid and (is_marked(orphan, mark) or (limit and limit_of(orphan) == limit)):
                found += [orphan, *descendants_of(orphan)]
        if not found:
            return
        for each in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(each, signal.SIGKILL)
        reap_orphans(found)


def reap_orphans(pids: list[int]) -> None:
    """Remove ended orphans from the process table; only their parent, this process, can."""
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)

"""Marks the processes of tools, so that all of them can be found and killed: also those that left their process group.

Every process that a tool starts inherits the environment variable `TASK_MARK` with the mark of its worker. When the
worker ends for any reason, a watcher process kills what has its mark. A process that resumes the executions of another
one first kills what that one left (`kill_marked`). Linux only: other systems have no `/proc`.

A process may clear its environment. So the mark is also a resource limit, which every process inherits and which
concerns only realtime scheduling: `RLIMIT_RTTIME` has a value whose first digits are those of the worker.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "TASK_MARK"
LIMITS = 1_000_000  # values of the limit that one worker uses
ROUNDS = 100  # a process may start another one while it is being killed
PAUSE = 0.02

# Reads until the worker's end of the pipe is closed, then kills what has the mark, until nothing is left.
_WATCH = """
trap '' HUP INT TERM
read -r line
while found=; do
    for entry in /proc/[0-9]*; do
        pid=${entry#/proc/}
        [ "$pid" != $$ ] && [ -e "$entry/exe" ] || continue  # a zombie has no program
        if grep -qz "^$1$" "$entry/environ" 2>/dev/null ||
            grep -q "^Max realtime timeout *$2[0-9]\\{6\\} " "$entry/limits" 2>/dev/null; then
            kill -9 "$pid" 2>/dev/null && found=1
        fi
    done
    [ -n "$found" ] || exit 0
    sleep 0.02
done
"""


class _Worker:
    """The mark of this process and its watcher."""

    mark = ""
    watcher: subprocess.Popen[bytes] | None = None
    tasks = 0  # processes that were marked with a limit
    owner = 0  # the process that started the watcher: a forked child starts its own


def set_mark(mark: str) -> None:
    """Set the mark of this process before it starts a tool; without it the mark is random."""
    if _Worker.watcher is None:
        _Worker.mark = mark


def marked_environment() -> dict[str, str]:
    """The variable for the environment of a tool's process; starts the watcher with the first one."""
    if not sys.platform.startswith("linux"):
        return {}
    if _Worker.watcher is None or _Worker.owner != os.getpid():
        _Worker.mark = _Worker.mark or secrets.token_hex(8)
        _Worker.owner = os.getpid()
        _Worker.watcher = _start_watcher(f"{VARIABLE}={_Worker.mark}", str(_first_digits(_Worker.mark)))
    return {VARIABLE: _Worker.mark}


@contextmanager
def marked_limit() -> Iterator[int]:
    """Mark the processes that are started in the block by their limit, which has this value; 0: impossible here.

    The soft limit is inherited when a process is started, and this process changes its own back after the block."""
    if not sys.platform.startswith("linux") or not _Worker.mark:
        yield 0
        return
    import resource

    _Worker.tasks += 1
    value = _first_digits(_Worker.mark) * LIMITS + _Worker.tasks % LIMITS
    soft, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    try:
        resource.setrlimit(resource.RLIMIT_RTTIME, (value, hard))
    except (OSError, ValueError):
        value = 0  # the hard limit is lower
    try:
        yield value
    finally:
        resource.setrlimit(resource.RLIMIT_RTTIME, (soft, hard))


def limit_of(pid: int) -> int:
    """The limit that may be the mark of a process."""
    import resource

    try:
        return resource.prlimit(pid, resource.RLIMIT_RTTIME)[0]
    except OSError:
        return 0  # it has ended, or belongs to another user


def _first_digits(mark: str) -> int:
    """Nine digits for a mark."""
    return 100_000_000 + int.from_bytes(hashlib.sha256(mark.encode()).digest()[:8], "big") % 900_000_000


def _start_watcher(*marks: str) -> subprocess.Popen[bytes] | None:
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, "watcher", *marks],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", os.defpath)},
            start_new_session=True,
        )
    except OSError:
        return None  # no shell: processes are still killed with their group


def kill_marked(mark: str) -> list[int]:
    """Kill every process with a mark and return when none is left; StillRunning if one cannot be killed."""
    killed: list[int] = []
    for _ in range(ROUNDS):
        found = marked(mark)
        if not found:
            return killed
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            except ProcessLookupError:
                continue
            except PermissionError:
                raise StillRunning(pid) from None
        time.sleep(PAUSE)
    raise StillRunning(found[0])


def marked(mark: str) -> list[int]:
    """The ids of the processes with a mark. Zombies have no environment and do not count."""
    entry, digits = f"{VARIABLE}={mark}".encode(), _first_digits(mark)
    found = []
    for folder in Path("/proc").glob("[0-9]*") if sys.platform.startswith("linux") else ():
        if folder.name == str(os.getpid()):
            continue
        try:
            has_limit = limit_of(int(folder.name)) // LIMITS == digits and (folder / "exe").exists()  # not a zombie
            if has_limit or entry in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue  # it has ended, or belongs to another user
    return found


class StillRunning(Exception):
    """A process of an earlier attempt cannot be killed."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid} of an earlier attempt is still running and cannot be killed")
        self.pid = pid

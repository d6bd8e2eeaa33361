"""Stacks of a process, sampled by CPU time: every 2 ms of CPU the current Python stack is counted.

`start(file)` is called first in a process; the counts are written when it exits, one stack a line, as `frame;frame
count` with the outermost frame first. A C function is counted for the Python function that calls it.
"""

from __future__ import annotations

import atexit
import os
import signal
from collections import Counter
from pathlib import Path
from types import FrameType

SECONDS = 0.002  # of CPU time between two samples


def start(file: str) -> None:
    """Sample this process until it exits; SIGUSR1 discards what was counted before."""
    counts: Counter[tuple[tuple[str, str], ...]] = Counter()
    pid = os.getpid()

    def sample(_: int, frame: FrameType | None) -> None:
        stack = []
        while frame is not None:
            stack.append((frame.f_code.co_filename, frame.f_code.co_qualname))
            frame = frame.f_back
        counts[tuple(reversed(stack))] += 1

    def write() -> None:
        if os.getpid() != pid:  # a forked child
            return
        signal.setitimer(signal.ITIMER_PROF, 0)
        lines = [";".join(f"{_short(file)}:{name}" for file, name in stack) + f" {n}" for stack, n in counts.items()]
        Path(file).write_text("\n".join(lines) + "\n")

    signal.signal(signal.SIGPROF, sample)
    signal.signal(signal.SIGUSR1, lambda *_: counts.clear())
    signal.siginterrupt(signal.SIGPROF, False)
    signal.setitimer(signal.ITIMER_PROF, SECONDS, SECONDS)
    atexit.register(write)


def _short(file: str) -> str:
    """The path of a module below its package folder."""
    for marker in ("/site-packages/", "/noetl/"):
        if marker in file:
            return ("noetl/" if marker == "/noetl/" else "") + file.rpartition(marker)[2].removesuffix(".py")
    return file.rpartition("/lib/python")[2].partition("/")[2].removesuffix(".py") or Path(file).stem

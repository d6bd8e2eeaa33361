"""What one measurement gives: a figure, made of samples; and how CPU, wall time and memory are taken."""

from __future__ import annotations

import os
import resource
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil

Measured = tuple[str, float, str]  # what a micro module yields: name, value, unit


class Figure(msgspec.Struct, frozen=True):
    """One line of `bench/results/latest.jsonl`."""

    engine: str  # who did the work: `noetl`, or `limit`, the bare shape of the same work
    workload: str
    metric: str
    median: float
    min: float
    max: float
    n: int
    unit: str
    rss_mb: float | None = None


def figure(
    engine: str, workload: str, metric: str, samples: Iterable[float], unit: str, rss_mb: float | None = None
) -> Figure:
    """The figure of some samples."""
    taken = sorted(samples)
    if not taken:
        raise ValueError(f"{workload} {metric}: nothing was measured")
    return Figure(engine, workload, metric, statistics.median(taken), taken[0], taken[-1], len(taken), unit, rss_mb)


def merged(figures: Iterable[Figure]) -> list[Figure]:
    """One figure of each kind; of several turns the median of their medians, and all of their spread."""
    turns: dict[tuple[str, str, str], list[Figure]] = {}
    for each in figures:
        turns.setdefault((each.engine, each.workload, each.metric), []).append(each)
    return [_merged(several) for several in turns.values()]


def _merged(turns: list[Figure]) -> Figure:
    memory = [each.rss_mb for each in turns if each.rss_mb is not None]
    return msgspec.structs.replace(
        turns[0],
        median=statistics.median(each.median for each in turns),
        min=min(each.min for each in turns),
        max=max(each.max for each in turns),
        n=sum(each.n for each in turns),
        rss_mb=max(memory, default=None),
    )


def collected(workload: str, rounds: int, measure: Callable[[], Iterable[Measured]]) -> Iterator[Figure]:
    """What a micro module measures, as often as asked, as figures."""
    samples: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for name, value, unit in measure():
            samples.setdefault((name, unit), []).append(value)
    peak = peak_mb()
    for (name, unit), values in samples.items():
        yield figure("noetl", workload, name, values, unit, round(peak, 1))


def peak_mb() -> float:
    """The most memory this process has had, in MB.

    Linux keeps `ru_maxrss` over exec, so that a process begins with what the one that started it had: the
    kernel's own high-water mark of this program is asked for where there is one."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 2**20)


# ── one piece of work, watched ──────────────────────────────────────────────────────────


class Watch:
    """Wall seconds, CPU seconds and peak memory (MB) of this process and its children over some rounds."""

    def __init__(self) -> None:
        self.walls: list[float] = []
        self.cpus: list[float] = []
        self.peak_mb = 0.0
        self._process = psutil.Process()

    async def round(self, work: Callable[[], Awaitable[Any]], repeats: int = 1) -> None:
        """Do the work and note what it took; short work is repeated, so that looking at the clocks costs nothing."""
        done = threading.Event()
        sampler = threading.Thread(target=self._sample, args=(done,), daemon=True)
        sampler.start()
        children, own = self._children(), time.process_time()
        try:
            for _ in range(repeats):
                wall = time.perf_counter()
                await work()
                self.walls.append(time.perf_counter() - wall)
            # Before the children are looked for, which takes longer than much that is measured.
            own = time.process_time() - own
            self.cpus.append((own + self._children() - children) / repeats)
        finally:
            done.set()
            sampler.join()

    def _children(self) -> float:
        """What children have spent so far, those that have ended meanwhile included."""
        ended = self._process.cpu_times()
        spent: float = ended.children_user + ended.children_system
        for child in self._process.children(recursive=True):
            times = _quietly(child.cpu_times)
            if times is not None:
                spent += times.user + times.system + times.children_user + times.children_system
        return spent

    def _sample(self, done: threading.Event) -> None:
        over = False
        while not over:
            over = done.wait(0.25)
            family = [self._process, *self._process.children(recursive=True)]
            known = [memory.rss for each in family if (memory := _quietly(each.memory_info)) is not None]
            self.peak_mb = max(self.peak_mb, sum(known) / 1e6)


def _quietly(ask: Callable[[], Any]) -> Any:
    """What a process says of itself, or None when it has just ended."""
    try:
        return ask()
    except psutil.NoSuchProcess:
        return None


def cold(command: list[str], environment: dict[str, str] | None = None) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds and peak MB of a whole process from nothing to its end."""
    began = time.perf_counter()
    quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
    env = {**os.environ, **(environment or {})}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed program is compiled; the first run, not counted, does it
    pid = os.posix_spawn(command[0], command, env, file_actions=quiet)
    _, status, usage = os.wait4(pid, 0)
    wall = time.perf_counter() - began
    if status:
        raise RuntimeError(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    scale = 1024 if sys.platform != "darwin" else 2**20
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / scale

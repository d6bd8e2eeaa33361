"""Measurements as summaries of samples, and the recording of wall time, CPU time and memory."""

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

Sample = tuple[str, float, str]  # yielded by a micro-benchmark: name, value, unit


class Measurement(msgspec.Struct, frozen=True):
    """Median, spread and memory of one metric."""

    engine: str  # `noetl`, a peer, or `baseline`: the same work without an engine
    workload: str
    metric: str
    median: float
    min: float
    max: float
    n: int
    unit: str
    rss_mb: float | None = None


def summarize(
    engine: str, workload: str, metric: str, samples: Iterable[float], unit: str, rss_mb: float | None = None
) -> Measurement:
    """Median and spread of samples."""
    taken = sorted(samples)
    if not taken:
        raise ValueError(f"{workload} {metric}: nothing was measured")
    median = statistics.median(taken)
    return Measurement(engine, workload, metric, median, taken[0], taken[-1], len(taken), unit, rss_mb)


def merge_turns(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Merge repeated measurements: the median of the medians, and the whole spread."""
    turns: dict[tuple[str, str, str], list[Measurement]] = {}
    for each in measurements:
        turns.setdefault((each.engine, each.workload, each.metric), []).append(each)
    return [_merge(several) for several in turns.values()]


def _merge(turns: list[Measurement]) -> Measurement:
    memory = [each.rss_mb for each in turns if each.rss_mb is not None]
    return msgspec.structs.replace(
        turns[0],
        median=statistics.median(each.median for each in turns),
        min=min(each.min for each in turns),
        max=max(each.max for each in turns),
        n=sum(each.n for each in turns),
        rss_mb=max(memory, default=None),
    )


def measure_repeatedly(workload: str, rounds: int, measure: Callable[[], Iterable[Sample]]) -> Iterator[Measurement]:
    """Run a micro-benchmark several times and summarize its samples."""
    samples: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for name, value, unit in measure():
            samples.setdefault((name, unit), []).append(value)
    peak = peak_mb()
    for (name, unit), values in samples.items():
        yield summarize("noetl", workload, name, values, unit, round(peak, 1))


def peak_mb() -> float:
    """The peak memory of this process in MB.

    Linux preserves `ru_maxrss` over exec, so that a process starts with the value of its parent. The high-water mark
    `VmHWM` is used where it exists."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 2**20)


# ── resources ──────────────────────────────────────────────────────────


class ResourceMonitor:
    """Records wall seconds, CPU seconds and peak memory (MB) of this process and its children."""

    def __init__(self) -> None:
        self.walls: list[float] = []
        self.cpus: list[float] = []
        self.peak_mb = 0.0
        self._process = psutil.Process()

    async def record(self, work: Callable[[], Awaitable[Any]], repeats: int = 1) -> None:
        """Run the work and record its cost; short work is repeated, so that reading the clocks does not matter."""
        done = threading.Event()
        sampler = threading.Thread(target=self._sample, args=(done,), daemon=True)
        sampler.start()
        children, own = self._children(), time.process_time()
        try:
            for _ in range(repeats):
                wall = time.perf_counter()
                await work()
                self.walls.append(time.perf_counter() - wall)
            # Read before the child processes are enumerated, which is slow.
            own = time.process_time() - own
            self.cpus.append((own + self._children() - children) / repeats)
        finally:
            done.set()
            sampler.join()

    def _children(self) -> float:
        """CPU seconds of all children, including ended ones."""
        ended = self._process.cpu_times()
        spent: float = ended.children_user + ended.children_system
        for child in self._process.children(recursive=True):
            times = _or_none(child.cpu_times)
            if times is not None:
                spent += times.user + times.system + times.children_user + times.children_system
        return spent

    def _sample(self, done: threading.Event) -> None:
        over = False
        while not over:
            over = done.wait(0.25)
            processes = [self._process, *self._process.children(recursive=True)]
            known = [memory.rss for each in processes if (memory := _or_none(each.memory_info)) is not None]
            self.peak_mb = max(self.peak_mb, sum(known) / 1e6)


def _or_none(query: Callable[[], Any]) -> Any:
    """The result of a process query, or None if the process has ended."""
    try:
        return query()
    except psutil.NoSuchProcess:
        return None


def run_process(command: list[str], environment: dict[str, str] | None = None) -> tuple[float, float, float]:
    """Run a process; returns wall seconds, CPU seconds and peak memory in MB."""
    began = time.perf_counter()
    quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
    env = {**os.environ, **(environment or {})}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # installed programs have bytecode; the uncounted first run writes it
    pid = os.posix_spawn(command[0], command, env, file_actions=quiet)
    _, status, usage = os.wait4(pid, 0)
    wall = time.perf_counter() - began
    if status:
        raise RuntimeError(f"{' '.join(command)} exited with {os.waitstatus_to_exitcode(status)}")
    scale = 1024 if sys.platform != "darwin" else 2**20
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / scale

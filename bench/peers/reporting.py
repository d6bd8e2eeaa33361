"""Shared code of the peer scripts: sampling and reporting. Imports only the standard library."""

from __future__ import annotations

import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any

CAP_SECONDS = 60.0  # a workload is not repeated after this time


def selected_workloads() -> tuple[str, ...]:
    """The workloads of the command line; also makes SIGTERM exit normally, so that servers are stopped."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return tuple(sys.argv[1:]) or ("W1", "W2", "W3", "W4", "W5")


def run_workloads(selected: tuple[str, ...], workloads: dict[str, Callable[[], None]]) -> None:
    """Run the selected workloads; failures are reported after all of them."""
    failed = []
    for workload, run in workloads.items():
        if workload not in selected:
            continue
        try:
            run()
        except Exception as problem:  # noqa: BLE001 - any error of an engine is a result
            failed.append(f"{workload}: {type(problem).__name__}: {problem}")
    if failed:
        raise SystemExit("; ".join(failed))


def fib(n: int) -> int:
    """The work of a task."""
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def report(engine: str, workload: str, metric: str, samples: Iterable[float], unit: str) -> None:
    """Print one measurement."""
    taken = sorted(samples)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    line = {
        "engine": engine,
        "workload": workload,
        "metric": metric,
        "median": statistics.median(taken),
        "min": taken[0],
        "max": taken[-1],
        "n": len(taken),
        "unit": unit,
        "rss_mb": round(peak / (1024 if sys.platform != "darwin" else 2**20), 1),
    }
    print(json.dumps(line), flush=True)


def seconds(work: Callable[[], Any], most: int) -> list[float]:
    """Durations of up to `most` runs, fewer if they take long."""
    taken: list[float] = []
    while len(taken) < most and sum(taken) < CAP_SECONDS:
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return taken


def cold_seconds(command: list[str], times: int = 5) -> list[float]:
    """Durations of a whole process."""
    return seconds(lambda: subprocess.run(command, check=True, capture_output=True), times)


def wait_for(url: str, within: float = 120.0) -> None:
    """Wait until a server responds."""
    deadline = time.monotonic() + within
    while True:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.25)


class ServerProcess:
    """A server process that is stopped at the end of the block."""

    def __init__(self, command: list[str], **options: Any) -> None:
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, **options
        )

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGTERM)
        killer = threading.Timer(20, os.killpg, (self._process.pid, signal.SIGKILL))
        killer.start()
        self._process.wait()
        killer.cancel()

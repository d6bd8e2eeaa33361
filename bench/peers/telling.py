"""What the scripts of the peers share: taking samples and telling figures. Only the standard library."""

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

CAP_SECONDS = 60.0  # a workload is not repeated after that


def begin() -> tuple[str, ...]:
    """The workloads asked for; being terminated ends the script in order, so that its servers are stopped."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return tuple(sys.argv[1:]) or ("W1", "W2", "W3", "W4", "W5")


def attempt(asked: tuple[str, ...], deeds: dict[str, Callable[[], None]]) -> None:
    """Do what was asked for; a workload that fails is told of at the end, after the others had their turn."""
    failed = []
    for workload, deed in deeds.items():
        if workload not in asked:
            continue
        try:
            deed()
        except Exception as problem:  # noqa: BLE001 - whatever an engine raises is news about it
            failed.append(f"{workload}: {type(problem).__name__}: {problem}")
    if failed:
        raise SystemExit("; ".join(failed))


def fib(n: int) -> int:
    """The work of a task."""
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def tell(engine: str, workload: str, metric: str, samples: Iterable[float], unit: str) -> None:
    """Print one figure."""
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
    """How long it takes, up to `most` times, fewer when it takes long."""
    taken: list[float] = []
    while len(taken) < most and sum(taken) < CAP_SECONDS:
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return taken


def cold_seconds(command: list[str], times: int = 5) -> list[float]:
    """A whole process from nothing to its end."""
    return seconds(lambda: subprocess.run(command, check=True, capture_output=True), times)


def wait_for(url: str, within: float = 120.0) -> None:
    """Until a server answers."""
    deadline = time.monotonic() + within
    while True:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.25)


class Served:
    """A server beside the script, stopped with it."""

    def __init__(self, command: list[str], **options: Any) -> None:
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, **options
        )

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGTERM)
        killer = threading.Timer(20, os.killpg, (self._process.pid, signal.SIGKILL))
        killer.start()
        self._process.wait()
        killer.cancel()

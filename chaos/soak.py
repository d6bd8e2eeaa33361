"""G17: a steady load for a long time. Memory, descriptors, threads, temporary files and the size of the database are
sampled; after a warm-up they must not grow.

`SOAK_RATE` (executions per second) and `SOAK_MINUTES` change the size: `SOAK_MINUTES=20 python -m chaos soak`.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import psutil
from msgspec import Struct, field

from chaos.findings import Finding
from chaos.load_sender import send
from chaos.oracles import check_executions
from chaos.single_server import single_server
from noetl.runtime import event_loop as loops
from noetl.server.lifecycle.retention import delete_old
from noetl.storage.factory import open_stores, open_task_logs
from noetl.storage.results import open_results
from tests.server.http.serving import Cluster

KEPT_SECONDS = 60.0  # for which ended executions are kept
SAMPLE_SECONDS = 5.0
PLAYBOOK = """apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: soak, path: load/soak}
workload: {n: 3}
workflow:
  - step: start
    tool: {kind: noop}
    next: {spec: {mode: inclusive}, arcs: [{step: each}, {step: pause}]}
  - step: each
    loop: {in: "{{ range(workload.n) | list }}", iterator: item, spec: {mode: parallel, max_in_flight: 3}}
    tool: {kind: python, input: {item: "{{ iter.item }}"}, code: "print(item); result = {'text': 'x' * 1000 * item}"}
  - step: pause
    tool: {kind: wait, for: 100ms}
"""
# figure -> the growth that is allowed from the second quarter of the time to the last: a share, and an amount
ALLOWED = {
    "memory of the server (MB)": (0.10, 5.0),
    "memory of the worker (MB)": (0.10, 5.0),
    "descriptors of the server": (0.0, 10.0),
    "descriptors of the worker": (0.0, 10.0),
    "threads of the server": (0.0, 4.0),
    "threads of the worker": (0.0, 4.0),
    "processes of the worker": (0.0, 4.0),
    "files in the home": (0.2, 50.0),
    "database with its write-ahead log (MB)": (0.25, 20.0),
}


class Samples(Struct):
    """The samples of each figure, in order."""

    values: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in ALLOWED})

    def take(self, cluster: Cluster) -> None:
        """Add one sample."""
        assert cluster.server is not None
        worker = psutil.Process(cluster.workers[0].pid)
        family = [worker, *worker.children(recursive=True)]
        found: list[float] = []
        for measure in (_memory, _descriptors, _threads):
            found += [measure(psutil.Process(cluster.server.pid)), sum(map(measure, family))]
        files = [path.stat().st_size for path in _files(cluster.home)]
        database = sum(path.stat().st_size for path in cluster.home.glob("noetl.db*") if path.is_file()) / 1e6
        for name, value in zip(ALLOWED, [*found, float(len(family)), float(len(files)), database], strict=True):
            self.values[name].append(value)

    def quarters(self, name: str) -> tuple[float, float]:
        """The medians of the second and of the last quarter."""
        values = self.values[name]
        quarter = max(1, len(values) // 4)
        return median(values[quarter : 2 * quarter]), median(values[-quarter:])

    def grown(self) -> list[str]:
        """The figures that grew more than is allowed."""
        found = []
        for name, (share, amount) in ALLOWED.items():
            early, late = self.quarters(name)
            if late > early * (1 + share) + amount:
                found.append(f"{name}: {early:,.0f} in the second quarter, {late:,.0f} in the last")
        return found


def _existing(measure: Callable[[psutil.Process], float]) -> Callable[[psutil.Process], float]:
    def measured(process: psutil.Process) -> float:
        try:
            return float(measure(process))
        except psutil.NoSuchProcess:
            return 0.0

    return measured


_memory = _existing(lambda process: process.memory_info().rss / 1e6)
_descriptors = _existing(lambda process: process.num_fds())
_threads = _existing(lambda process: process.num_threads())


def _files(home: Path) -> list[Path]:
    found = []
    for folder, _, names in os.walk(home):
        found += [path for name in names if (path := Path(folder, name)).is_file()]
    return found


def experiment(*, quick: bool) -> Finding:
    """A constant rate; executions that ended a minute ago are deleted."""
    rate = int(os.environ.get("SOAK_RATE", "20" if quick else "100"))
    minutes = float(os.environ.get("SOAK_MINUTES", "0.5" if quick else "30"))
    samples = Samples()
    with single_server(workers=1, NOETL_SLOTS="64") as cluster:
        status, document = cluster.ask("POST", "/api/catalog/register", {"content": PLAYBOOK})
        assert status < 300, document
        stopping = threading.Event()
        watch = threading.Thread(target=_watch, args=[cluster, samples, stopping])
        watch.start()
        sending = send(cluster.url, cluster.token, b'{"path": "load/soak"}', rate, int(60 * minutes))
        responses = loops.run(sending)
        stopping.set()
        watch.join()
        ids = [each.execution_id for each in responses if each.execution_id]
        for each in ids[-200:]:
            cluster.finished(each, 120)
        report = check_executions(str(cluster.home / "noetl.db"), ids[-200:], others=True)
    requests = rate * int(60 * minutes)
    missed = [f"{requests - len(ids)} of {requests} requests were not acknowledged"] if len(ids) < requests else []
    figures = {"executions": f"{len(ids):,} of {requests:,} requested"}
    for name in ALLOWED:
        early, late = samples.quarters(name)
        figures[f"{name}, second quarter / last quarter"] = f"{early:,.0f} / {late:,.0f}"
    return Finding(
        part="soak",
        guarantee="G17",
        target="Steady load: memory, descriptors, threads, files and the database do not grow after the warm-up",
        setup=f"`SOAK_RATE={rate} SOAK_MINUTES={minutes:g} python -m chaos soak`: one server on SQLite, one worker "
        f"with 64 slots; {rate} executions per second with 5 runs each (python, wait, loop) for {minutes:g} minutes; "
        f"executions are deleted {KEPT_SECONDS:g} s after their end; medians of samples every {SAMPLE_SECONDS:g} s; "
        "the last 200 logs checked.",
        figures=figures,
        violations=report.violations,
        missed=missed + samples.grown(),
    )


def _watch(cluster: Cluster, samples: Samples, stopping: threading.Event) -> None:
    turn = 0
    while not stopping.wait(SAMPLE_SECONDS):
        samples.take(cluster)
        turn += 1
        if turn % int(KEPT_SECONDS / SAMPLE_SECONDS / 4) == 0:
            asyncio.run(_delete(cluster.home))


async def _delete(home: Path) -> None:
    events, _ = open_stores(str(home / "noetl.db"))
    results = open_results(f"blob://{home}/results")
    try:
        await delete_old(events, results, time.time() - KEPT_SECONDS, open_task_logs(events))
        await events.tidy(time.time())
    finally:
        await results.close()
        await events.close()

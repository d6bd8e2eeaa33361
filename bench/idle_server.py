"""An idle and a restarted server: memory, duration of list requests, time to readiness with unfinished executions.

    python -m bench.idle_server [sqlite|postgres]

Targets: idle below 120 MB; 10,000 finished executions listed in 100 ms; ready in 2 s with 1,000 unfinished executions.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from bench.measurements import Measurement, summarize
from noetl.server.composition import Stores, build_orchestrator
from noetl.server.orchestrator.submissions import Submission
from noetl.storage.factory import open_stores
from noetl.storage.queue.memory import MemoryRunQueue
from noetl.storage.results import open_results
from noetl.tools.registry import specs

FINISHED, UNFINISHED = 10_000, 1_000
PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: idle_server, path: bench/idle_server}
workload: {name: world}
workflow:
  - step: start
    tool: {kind: noop}
    next: {arcs: [{step: waits}]}
  - step: waits
    spec: {pool: empty}
    tool: {kind: noop}
"""


def measure() -> Iterator[Measurement]:
    """The measurements on both stores."""
    for store in ("sqlite", "postgres"):
        yield from measure_store(store)


def measure_store(store: str) -> Iterator[Measurement]:
    """The measurements on one store."""
    with tempfile.TemporaryDirectory() as folder, _url(store, folder) as url:
        home = Path(folder)
        environ = {**os.environ, "NOETL_HOME": folder, "NOETL_STORE": url}
        with _server(environ) as (process, port, ready):
            time.sleep(2)
            yield summarize("noetl", "idle_server", f"{store}: idle server", [_rss(process)], "MB")
            yield summarize("noetl", "idle_server", f"{store}: time to readiness, empty store", [ready], "s")
        asyncio.run(_fill(url, folder))
        token = (home / "admin.token").read_text().strip()
        for _ in range(2):  # the second time with warm file system caches
            with _server(environ) as (process, port, ready):
                memory = _rss(process)
                pages = [_listed(port, token, "limit=100&status=cancelled") for _ in range(5)]
                listed = [_listed(port, token, f"limit={FINISHED}&status=cancelled") for _ in range(5)]
        unfinished = f"{UNFINISHED:,} unfinished executions"
        yield summarize("noetl", "idle_server", f"{store}: time to readiness, {unfinished}", [ready], "s")
        yield summarize("noetl", "idle_server", f"{store}: list of {FINISHED:,} executions", listed, "ms")
        yield summarize("noetl", "idle_server", f"{store}: list of the newest 100 executions", pages, "ms")
        yield summarize("noetl", "idle_server", f"{store}: server with {unfinished}", [memory], "MB")


async def _fill(url: str, folder: str) -> None:
    """Fill the store with finished executions and with executions that wait for a worker."""
    events, playbooks = open_stores(url)
    results = open_results(f"blob://{folder}/results")
    orchestrator = build_orchestrator(Stores(events, playbooks, results, MemoryRunQueue()), specs)
    slots = asyncio.Semaphore(200)

    async def one(number: int) -> None:
        async with slots:
            execution_id = await orchestrator.submit(Submission(text=PLAYBOOK, payload={"n": number}))
            if number < FINISHED:
                await orchestrator.cancel(execution_id, "measured")

    await asyncio.gather(*(one(number) for number in range(FINISHED + UNFINISHED)))
    await orchestrator.close()
    await results.close()
    await events.close()


@contextmanager
def _server(environ: dict[str, str]) -> Iterator[tuple[subprocess.Popen[bytes], int, float]]:
    """A server process, its port, and the seconds from its start to readiness."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    code = "from noetl.server.process import serve; from noetl.settings import load; serve(load().settings)"
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-c", code], env={**environ, "NOETL_SERVER_PORT": str(port)})
    try:
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as response:
                    if json.load(response)["ready"]:
                        break
            except OSError:
                if process.poll() is not None:
                    raise SystemExit(f"the server exited with {process.returncode}") from None
                time.sleep(0.01)
        yield process, port, time.monotonic() - began
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


@contextmanager
def _url(store: str, folder: str) -> Iterator[str]:
    if store == "sqlite":
        yield f"sqlite://{folder}/noetl.db"
        return
    from devcluster import services

    key = f"bench-{os.getpid()}"
    try:
        with services.fresh_database(services.shared("postgres", key)) as dsn:
            yield dsn
    finally:
        services.release("postgres", key)


def _rss(process: subprocess.Popen[bytes]) -> float:
    return float(psutil.Process(process.pid).memory_info().rss / 1e6)


def _get(port: int, token: str, path: str) -> bytes:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return bytes(response.read())


def _listed(port: int, token: str, query: str) -> float:
    """Milliseconds from the request of a list to the last byte."""
    began = time.monotonic()
    _get(port, token, f"/api/executions?{query}")
    return 1000 * (time.monotonic() - began)


if __name__ == "__main__":
    for name in sys.argv[1:] or ("sqlite", "postgres"):
        for each in measure_store(name):
            print(f"{each.metric:60} {each.median:10.3f} {each.unit}", flush=True)

"""One server on SQLite with workers over HTTP, as processes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.server.http.serving import Cluster


@contextmanager
def single_server(*, workers: int = 1, **settings: str) -> Iterator[Cluster]:
    """Start a server and its workers; stop them at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="noetl-chaos-") as folder:
        cluster = Cluster(Path(folder), **settings)
        try:
            cluster.start_server()
            for _ in range(workers):
                cluster.start_worker()
            yield cluster
        finally:
            cluster.stop()


def kill_server(cluster: Cluster) -> float:
    """Kill the server with SIGKILL, start it again, and return the seconds from start to readiness."""
    assert cluster.server is not None
    cluster.server.kill()
    cluster.server.wait()
    began = time.monotonic()
    cluster.start_server()
    return time.monotonic() - began


def resident(cluster: Cluster) -> float:
    """The resident memory of the server in MB."""
    assert cluster.server is not None
    return float(psutil.Process(cluster.server.pid).memory_info().rss) / 1e6


def submit(cluster: Cluster, text: str, payload: dict[str, Any] | None = None) -> str:
    """Start an execution."""
    status, document = cluster.ask("POST", "/api/execute", {"content": text, "payload": payload or {}})
    if status != 202:
        raise RuntimeError(f"request rejected ({status}): {document}")
    return str(document["execution_id"])

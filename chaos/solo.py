"""One server on SQLite and some workers over HTTP: small enough to be stopped, starved and watched closely."""

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
def solo(*, workers: int = 1, **settings: str) -> Iterator[Cluster]:
    """A server and its workers for the length of a block."""
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
    """SIGKILL it, start it again; how long until it was ready, from the start of the new process."""
    assert cluster.server is not None
    cluster.server.kill()
    cluster.server.wait()
    began = time.monotonic()
    cluster.start_server()
    return time.monotonic() - began


def resident(cluster: Cluster) -> float:
    """The server's memory, in MB."""
    assert cluster.server is not None
    return float(psutil.Process(cluster.server.pid).memory_info().rss) / 1e6


def submit(cluster: Cluster, text: str, payload: dict[str, Any] | None = None) -> str:
    """Start an execution."""
    status, document = cluster.ask("POST", "/api/execute", {"content": text, "payload": payload or {}})
    if status != 202:
        raise RuntimeError(f"not taken ({status}): {document}")
    return str(document["execution_id"])

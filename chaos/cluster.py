"""A local cluster started by `python -m devcluster start`, with methods to inspect, use and kill its components."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from devcluster import local_cluster
from noetl.client import Client
from noetl.errors import NoetlError, StoreUnavailable
from noetl.runtime.process_table import ProcessTable, readiness
from noetl.server.http.access import admin_token
from noetl.storage.factory import open_stores

START_SECONDS = 120.0
ROOT = Path(__file__).parents[1]


class Cluster:
    """`python -m devcluster start` with its own home."""

    def __init__(self, home: Path, *, servers: int = 2, workers: int = 4, **settings: str) -> None:
        self.home = home
        self.processes = ProcessTable(home)
        self.count = 2 + servers + workers
        self.port = _ports(servers)
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("NOETL_")},
            "PYTHONPATH": path,
            "NOETL_HOME": str(home),
            "NOETL_PRIVATE_NETWORKS": "127.0.0.0/8",
            **settings,
        }
        self._arguments = ["start", "--servers", str(servers), "--workers", str(workers)]
        self._arguments += ["--port", str(self.port)]
        self.command: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Run the command and wait until the cluster is ready."""
        command = [sys.executable, "-m", "devcluster", *self._arguments]
        with (self.home / "cluster.out").open("ab") as output:
            self.command = subprocess.Popen(command, env=self.environ, stdout=output, stderr=output)
        self.wait_until_ready(START_SECONDS)

    def stop(self) -> None:
        """Interrupt the command like Ctrl-C, and stop remaining processes."""
        command = self.command
        if command is not None and command.poll() is None:
            command.send_signal(signal.SIGINT)
            try:
                command.wait(90)
            except subprocess.TimeoutExpired:
                command.kill()
                command.wait()
        local_cluster.stop_orphans(self.processes)

    # ── inspecting ─────────────────────────────────────────────────────────────────────────

    def pids(self) -> dict[str, int]:
        """The process ids of the live components."""
        return {
            each.name.removeprefix(local_cluster.PREFIX): each.pid for each in local_cluster.members(self.processes)
        }

    @property
    def urls(self) -> list[str]:
        """The addresses of the servers."""
        return [f"http://127.0.0.1:{self.port + number}" for number in range(self.count)][: self._servers]

    @property
    def _servers(self) -> int:
        return int(self._arguments[self._arguments.index("--servers") + 1])

    @property
    def token(self) -> str:
        """The admin token."""
        return admin_token(self.home) or ""

    @property
    def dsn(self) -> str:
        """The connection string of the database."""
        secret = json.loads((self.home / "cluster" / "secrets.json").read_text())["postgres"]
        member = self.processes.find(f"{local_cluster.PREFIX}postgres")
        address = member.url if member is not None else self._address
        self._address = address
        return f"postgresql://postgres:{quote(secret)}@{address}/postgres"

    def ready_components(self) -> list[str]:
        """The live components; servers only if they are ready."""
        urls = {f"server-{number}": url for number, url in enumerate(self.urls, start=1)}
        return sorted(name for name in self.pids() if name not in urls or readiness(urls[name])[0])

    def wait_until_ready(self, seconds: float) -> float:
        """Wait until every component runs and every server is ready; returns the seconds."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            if self.command is not None and self.command.poll() is not None:
                raise RuntimeError(f"the cluster did not start:\n{(self.home / 'cluster.out').read_text()[-2000:]}")
            if len(self.pids()) == self.count and all(readiness(url)[0] for url in self.urls):
                return time.monotonic() - began
            time.sleep(0.05)
        raise RuntimeError(f"the cluster is not ready after {seconds:g} s: {sorted(self.pids())}")

    # ── using ───────────────────────────────────────────────────────────────────────────

    def client(self, at: int = 0) -> Client:
        """A client that connects to the n-th server first."""
        turn = at % len(self.urls)
        return Client(",".join(self.urls[turn:] + self.urls[:turn]), self.token, timeout=10)

    def submit(self, text: str, payload: Mapping[str, Any], key: str, *, within: float = 180.0) -> str:
        """Start an execution, retrying until it is acknowledged; the key makes the request idempotent."""
        deadline = time.monotonic() + within
        turn = 0
        while True:
            try:
                with closing(self.client(turn)) as client:
                    return client.submit(content=text, payload=payload, key=key)
            except (StoreUnavailable, OSError) as problem:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"no server accepted {key} within {within:g} s: {problem}") from problem
                time.sleep(0.1)
                turn += 1

    def unfinished(self, ids: Sequence[str], within: float) -> list[str]:
        """Wait for executions; returns those that have not ended within the time."""
        deadline = time.monotonic() + within
        left = list(ids)
        while left and time.monotonic() < deadline:
            with suppress(StoreUnavailable):
                open_ones = set(unfinished(self.dsn))
                left = [each for each in left if each in open_ones]
            if left:
                time.sleep(0.2)
        return left

    # ── killing ─────────────────────────────────────────────────────────────────────────

    def send(self, name: str, signum: signal.Signals) -> bool:
        """Send a signal to a component; False if it is not running."""
        pid = self.pids().get(name)
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, signum)
            return True
        return False


@contextmanager
def running_cluster(**options: Any) -> Iterator[Cluster]:
    """Start a cluster; stop it at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="noetl-chaos-") as folder:
        cluster = Cluster(Path(folder), **options)
        try:
            cluster.start()
            yield cluster
        except NoetlError as problem:
            raise RuntimeError(f"{type(problem).__name__}: {problem}") from problem
        finally:
            cluster.stop()
            local_cluster.delete_data(cluster.home)


def unfinished(dsn: str) -> list[str]:
    """The executions of a store that have not ended."""

    async def read() -> list[str]:
        events, _ = open_stores(dsn)
        try:
            return await events.unfinished()
        finally:
            await events.close()

    return asyncio.run(read())


def _ports(count: int) -> int:
    """The first of `count` consecutive free ports, below the ephemeral port range."""
    while True:
        first = random.randrange(20_000, 32_000)
        with suppress(OSError):
            for number in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", number))
            return first

"""A cluster of this machine, started by the documented command, and everything an experiment does to it."""

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

from noetl.client import Client
from noetl.errors import NoetlError, StoreUnavailable
from noetl.runtime.process_table import ProcessTable, readiness
from noetl.server.http.access import admin_token
from noetl.storage.factory import open_stores
from noetl.testing.cluster import local_cluster

START_SECONDS = 120.0
ROOT = Path(__file__).parents[1]


class Cluster:
    """`noetl cluster start` over a home of its own."""

    def __init__(self, home: Path, *, servers: int = 2, workers: int = 4, **settings: str) -> None:
        self.home = home
        self.fleet = ProcessTable(home)
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
        self._words = ["cluster", "start", "--servers", str(servers), "--workers", str(workers)]
        self._words += ["--port", str(self.port)]
        self.holder: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Run the command; ready when this returns."""
        command = [sys.executable, "-m", "noetl.clictl", *self._words]
        with (self.home / "cluster.out").open("ab") as words:
            self.holder = subprocess.Popen(command, env=self.environ, stdout=words, stderr=words)
        self.wait_whole(START_SECONDS)

    def stop(self) -> None:
        """Stop the command as Ctrl-C does, and see that nothing is left."""
        holder = self.holder
        if holder is not None and holder.poll() is None:
            holder.send_signal(signal.SIGINT)
            try:
                holder.wait(90)
            except subprocess.TimeoutExpired:
                holder.kill()
                holder.wait()
        local_cluster.stop_orphans(self.fleet)

    # ── looking ─────────────────────────────────────────────────────────────────────────

    def pids(self) -> dict[str, int]:
        """The living parts."""
        return {each.name.removeprefix(local_cluster.PREFIX): each.pid for each in local_cluster.members(self.fleet)}

    @property
    def urls(self) -> list[str]:
        """The servers' addresses."""
        return [f"http://127.0.0.1:{self.port + number}" for number in range(self.count)][: self._servers]

    @property
    def _servers(self) -> int:
        return int(self._words[self._words.index("--servers") + 1])

    @property
    def token(self) -> str:
        """The admin's token."""
        return admin_token(self.home) or ""

    @property
    def dsn(self) -> str:
        """The database."""
        secret = json.loads((self.home / "cluster" / "secrets.json").read_text())["postgres"]
        member = self.fleet.find(f"{local_cluster.PREFIX}postgres")
        address = member.url if member is not None else self._address
        self._address = address
        return f"postgresql://postgres:{quote(secret)}@{address}/postgres"

    def working(self) -> list[str]:
        """The living parts, of servers those that are ready."""
        urls = {f"server-{number}": url for number, url in enumerate(self.urls, start=1)}
        return sorted(name for name in self.pids() if name not in urls or readiness(urls[name])[0])

    def wait_whole(self, seconds: float) -> float:
        """Wait until every part runs and every server is ready; how long that took."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            if self.holder is not None and self.holder.poll() is not None:
                raise RuntimeError(f"the cluster did not start:\n{(self.home / 'cluster.out').read_text()[-2000:]}")
            if len(self.pids()) == self.count and all(readiness(url)[0] for url in self.urls):
                return time.monotonic() - began
            time.sleep(0.05)
        raise RuntimeError(f"the cluster is not whole after {seconds:g} s: {sorted(self.pids())}")

    # ── using ───────────────────────────────────────────────────────────────────────────

    def client(self, at: int = 0) -> Client:
        """A client that begins with the n-th server."""
        turn = at % len(self.urls)
        return Client(",".join(self.urls[turn:] + self.urls[:turn]), self.token, timeout=10)

    def submit(self, text: str, payload: Mapping[str, Any], key: str, *, within: float = 180.0) -> str:
        """Start an execution, insisting until it is acknowledged; the key makes it one, however often it is asked."""
        deadline = time.monotonic() + within
        turn = 0
        while True:
            try:
                with closing(self.client(turn)) as client:
                    return client.submit(content=text, payload=payload, key=key)
            except (StoreUnavailable, OSError) as problem:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"nobody took {key} within {within:g} s: {problem}") from problem
                time.sleep(0.1)
                turn += 1

    def unfinished(self, ids: Sequence[str], within: float) -> list[str]:
        """Executions that have not ended after so many seconds."""
        deadline = time.monotonic() + within
        left = list(ids)
        while left and time.monotonic() < deadline:
            with suppress(StoreUnavailable):
                open_ones = set(asyncio.run(_unfinished(self.dsn)))
                left = [each for each in left if each in open_ones]
            if left:
                time.sleep(0.2)
        return left

    # ── harming ─────────────────────────────────────────────────────────────────────────

    def send(self, name: str, signum: signal.Signals) -> bool:
        """A signal to a part; False when it is not alive just now."""
        pid = self.pids().get(name)
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, signum)
            return True
        return False


@contextmanager
def running(**options: Any) -> Iterator[Cluster]:
    """A cluster for the length of a block."""
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


async def _unfinished(dsn: str) -> list[str]:
    events, _ = open_stores(dsn)
    try:
        return await events.unfinished()
    finally:
        await events.close()


def _ports(count: int) -> int:
    """The first of so many free ports in a row, below those that outgoing connections are given."""
    while True:
        first = random.randrange(20_000, 32_000)
        with suppress(OSError):
            for number in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", number))
            return first

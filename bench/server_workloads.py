"""W1 to W4 with servers and workers as processes on Postgres.

    one    one server, two workers over HTTP
    two    two servers, four workers over NATS

Postgres flushes every commit. A client submits over HTTP and follows the event stream to the end, so a measurement
includes the whole path: request, decision, flush, wake-up, claim, work, report, notification of the end.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import psutil

from bench.measurements import Measurement, summarize
from bench.workloads import chain, fan_out
from devcluster import services
from devcluster.servers import free_port

SERVE = "from noetl.server.process import serve; from noetl.settings import load; serve(load().settings)"
WORK = (
    "from noetl.runtime import event_loop; from noetl.worker.process import work; from noetl.settings import load; "
    "event_loop.run(work(load().settings))"
)
DEPLOYMENTS = {"one": ("server, 2 workers", 1, 2, False), "two": ("2 servers, 4 workers, NATS", 2, 4, True)}


class ServerProcesses:
    """The processes of one deployment."""

    def __init__(
        self,
        folder: Path,
        servers: int,
        workers: int,
        store: str,
        nats: str | None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._home = folder / "home"
        self._ports = [free_port() for _ in range(servers)]
        self._urls = [f"http://127.0.0.1:{port}" for port in self._ports]
        self._workers = workers
        self._environment = {**os.environ, "NOETL_HOME": str(self._home), "NOETL_STORE": store, **(settings or {})}
        if nats is not None:
            self._environment["NOETL_NATS_URL"] = nats
        self._log = folder / "log.txt"
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> ServerProcesses:
        self._home.mkdir(parents=True)
        try:
            for port in self._ports:
                self._start(SERVE, NOETL_SERVER_PORT=str(port))
                _ready(f"http://127.0.0.1:{port}/readyz", self.processes[-1])
            for number in range(self._workers):
                # Workers prefer different servers, so that both have work.
                urls = self._urls[number % len(self._urls) :] + self._urls[: number % len(self._urls)]
                self._start(WORK, NOETL_SERVER_URL=",".join(urls), NOETL_TOKEN=self.token)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    @property
    def token(self) -> str:
        """The admin token, written by the first start."""
        return (self._home / "admin.token").read_text().strip()

    @property
    def url(self) -> str:
        """The address of the first server."""
        return self._urls[0]

    def memory(self) -> tuple[float, float]:
        """Memory in MB of the first server, and of all processes."""
        sizes = [psutil.Process(process.pid).memory_info().rss / 1e6 for process in self.processes]
        return sizes[0], sum(sizes)

    def cpu(self) -> float:
        """CPU seconds of all processes, including those of tools."""
        spent = 0.0
        for process in self.processes:
            top = psutil.Process(process.pid)
            for each in (top, *top.children(recursive=True)):
                times = each.cpu_times()
                spent += times.user + times.system
        return spent

    def _start(self, code: str, **more: str) -> None:
        with self._log.open("ab") as log:
            command = [sys.executable, "-c", code]
            environment = {**self._environment, **more}
            self.processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    def _stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"a server exited with {process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise RuntimeError("a server is not ready after 60 s")


class ApiClient:
    """Submits executions and follows them over HTTP."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def run(self, text: str) -> None:
        """Run one execution, from the request to the last event."""
        async with self._session.post(f"{self._url}/api/execute", json={"content": text}) as response:
            document = msgspec.json.decode(await response.read())
            if response.status != 202:
                raise RuntimeError(f"{response.status}: {document}")
        stream = f"{self._url}/api/executions/{document['execution_id']}/events/stream"
        status = None
        async with self._session.get(stream) as response:
            async for line in response.content:
                if line.startswith(b"data:") and b"playbook.processed" in line:
                    status = _status(msgspec.json.decode(line[5:]))  # and read to the end of the stream
        if status != "success":
            raise RuntimeError(f"execution {document['execution_id']} ended as {status}")

    async def many(self, text: str, count: int, in_flight: int = 100) -> None:
        """Run `count` executions, at most `in_flight` concurrently."""
        slots = asyncio.Semaphore(in_flight)

        async def one() -> None:
            async with slots:
                await self.run(text)

        await asyncio.gather(*(one() for _ in range(count)))


def _status(envelope: dict[str, Any]) -> str | None:
    for part in (envelope, envelope.get("payload") or {}, envelope.get("body") or {}):
        if isinstance(part, dict) and part.get("status"):
            return str(part["status"])
    return None


def measure(*, quick: bool = False) -> Iterator[Measurement]:
    """The measurements of both deployments."""
    for name in DEPLOYMENTS:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as folder:
            yield from asyncio.run(_measure_deployment(name, quick, Path(folder).resolve()))


async def _measure_deployment(name: str, quick: bool, folder: Path) -> list[Measurement]:
    title, servers, workers, with_nats = DEPLOYMENTS[name]
    async with AsyncExitStack() as stack:
        postgres = stack.enter_context(services.Postgres(str(folder / "pg"), durable=True))
        nats = stack.enter_context(services.Nats(str(folder / "nats"))).url if with_nats else None
        processes = stack.enter_context(ServerProcesses(folder, servers, workers, postgres.dsn(), nats))
        headers = {"Authorization": f"Bearer {processes.token}"}
        session = await stack.enter_async_context(
            aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0))
        )
        client = ApiClient(session, processes.url)
        idle = processes.memory()[0]
        measurements = [summarize("noetl", "W1", f"{title}: idle server", [idle], "MB", round(idle, 1))]
        divisor = 4 if quick else 1
        items = 200 if quick else 1_000
        cases: list[tuple[str, str, int, int, str, Callable[[], Awaitable[None]]]] = [
            ("W1", "1 noop step", 40 // divisor, 1, "ms", lambda: client.run(chain(1, "noop"))),
            ("W2", "40 python steps", 8 // divisor, 1, "ms", lambda: client.run(chain(40))),
            ("W3", f"loop of {items:,} noop items", 4 // divisor, items, "items/s", lambda: client.run(fan_out(items))),
            (
                "W3",
                f"loop of {items:,} python items",
                4 // divisor,
                items,
                "items/s",
                lambda: client.run(fan_out(items, "python")),
            ),
            (
                "W4",
                f"{items:,} executions of 3 noop steps",
                3 // divisor or 1,
                items,
                "executions/s",
                lambda: client.many(chain(3, "noop"), items),
            ),
        ]
        for workload, what, rounds, count, unit, work in cases:
            await work()  # warm up
            walls, before = [], processes.cpu()
            for _ in range(rounds):
                began = time.perf_counter()
                await work()
                walls.append(time.perf_counter() - began)
            cpu = (processes.cpu() - before) / rounds
            peak = round(processes.memory()[1], 1)
            samples = [taken * 1e3 if unit == "ms" else count / taken for taken in walls]
            measurements.append(summarize("noetl", workload, f"{title}: {what}", samples, unit, peak))
            each = cpu * 1e3 if unit == "ms" else cpu / count * 1e6
            cpu_unit = "ms" if unit == "ms" else "us each"
            measurements.append(summarize("noetl", workload, f"{title}: {what}, CPU", [each], cpu_unit, peak))
        return measurements


if __name__ == "__main__":
    for each in measure(quick="--quick" in sys.argv):
        print(f"{each.workload:3} {each.metric:60} {each.median:12,.2f} {each.unit}", flush=True)

"""W1 to W4 with the parts in processes of their own: a server and two workers on Postgres, and a cluster with NATS.

    one    one server, two workers over HTTP
    two    two servers, four workers over NATS

Both on a Postgres that flushes every commit. A client submits over HTTP and follows the event stream to the end, so a
figure has everything in it: request, decision, flush, wake-up, claim, work, report, and the news of the end.
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
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import psutil

from bench.figures import Figure, figure
from bench.workloads import chain, fan_out
from noetl.testing import services
from noetl.testing.cluster.servers import free_port

SERVE = "from noetl.server.process import serve; from noetl.settings import load; serve(load().settings)"
WORK = (
    "from noetl.runtime import event_loop; from noetl.worker.process import work; from noetl.settings import load; "
    "event_loop.run(work(load().settings))"
)
FORMS = {"one": ("server, 2 workers", 1, 2, False), "two": ("2 servers, 4 workers, NATS", 2, 4, True)}


class Served:
    """The processes of one form, and a client of the first server."""

    def __init__(self, folder: Path, servers: int, workers: int, store: str, nats: str | None) -> None:
        self._home = folder / "home"
        self._ports = [free_port() for _ in range(servers)]
        self._urls = [f"http://127.0.0.1:{port}" for port in self._ports]
        self._workers = workers
        self._environment = {**os.environ, "NOETL_HOME": str(self._home), "NOETL_STORE": store}
        if nats is not None:
            self._environment["NOETL_NATS_URL"] = nats
        self._log = folder / "log.txt"
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Served:
        self._home.mkdir(parents=True)
        try:
            for port in self._ports:
                self._start(SERVE, NOETL_SERVER_PORT=str(port))
                _ready(f"http://127.0.0.1:{port}/readyz", self.processes[-1])
            for number in range(self._workers):
                # Each talks first to another server, so that both have work.
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
        """The first start leaves it in the home."""
        return (self._home / "admin.token").read_text().strip()

    @property
    def url(self) -> str:
        """Where the client speaks to."""
        return self._urls[0]

    def memory(self) -> tuple[float, float]:
        """MB of the first server, and of everything together."""
        sizes = [psutil.Process(process.pid).memory_info().rss / 1e6 for process in self.processes]
        return sizes[0], sum(sizes)

    def cpu(self) -> float:
        """CPU seconds of everything together, tools' processes included."""
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
            raise RuntimeError(f"a server ended with {process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise RuntimeError("a server is not ready after 60 s")


class Caller:
    """Submits and follows over HTTP."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def run(self, text: str) -> None:
        """One execution, from the request to the news of its end."""
        async with self._session.post(f"{self._url}/api/execute", json={"content": text}) as answer:
            document = msgspec.json.decode(await answer.read())
            if answer.status != 202:
                raise RuntimeError(f"{answer.status}: {document}")
        stream = f"{self._url}/api/executions/{document['execution_id']}/events/stream"
        status = None
        async with self._session.get(stream) as answer:
            async for line in answer.content:
                if line.startswith(b"data:") and b"playbook.processed" in line:
                    status = _status(msgspec.json.decode(line[5:]))  # and on to the stream's own end
        if status != "success":
            raise RuntimeError(f"execution {document['execution_id']} ended with {status}")

    async def many(self, text: str, count: int, at_once: int = 100) -> None:
        """That many, so many of them under way at any time."""
        gate = asyncio.Semaphore(at_once)

        async def one() -> None:
            async with gate:
                await self.run(text)

        await asyncio.gather(*(one() for _ in range(count)))


def _status(envelope: dict[str, Any]) -> str | None:
    for place in (envelope, envelope.get("payload") or {}, envelope.get("body") or {}):
        if isinstance(place, dict) and place.get("status"):
            return str(place["status"])
    return None


def measure(*, quick: bool = False) -> Iterator[Figure]:
    """All figures of both forms."""
    for form in FORMS:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=".") as name:
            yield from asyncio.run(_measure_form(form, quick, Path(name).resolve()))


async def _measure_form(form: str, quick: bool, folder: Path) -> list[Figure]:
    title, servers, workers, with_nats = FORMS[form]
    async with AsyncExitStack() as stack:
        postgres = stack.enter_context(services.Postgres(str(folder / "pg"), durable=True))
        nats = stack.enter_context(services.Nats(str(folder / "nats"))).url if with_nats else None
        served = stack.enter_context(Served(folder, servers, workers, postgres.dsn(), nats))
        headers = {"Authorization": f"Bearer {served.token}"}
        session = await stack.enter_async_context(
            aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0))
        )
        caller = Caller(session, served.url)
        idle = served.memory()[0]
        figures = [figure("noetl", "W1", f"{title}: idle server", [idle], "MB", round(idle, 1))]
        few = 4 if quick else 1
        items = 200 if quick else 1_000
        cases: list[tuple[str, str, int, int, str, Callable[[], Awaitable[None]]]] = [
            ("W1", "1 noop step", 40 // few, 1, "ms", lambda: caller.run(chain(1, "noop"))),
            ("W2", "40 python steps", 8 // few, 1, "ms", lambda: caller.run(chain(40))),
            ("W3", f"loop of {items:,} noop items", 4 // few, items, "items/s", lambda: caller.run(fan_out(items))),
            (
                "W3",
                f"loop of {items:,} python items",
                4 // few,
                items,
                "items/s",
                lambda: caller.run(fan_out(items, "python")),
            ),
            (
                "W4",
                f"{items:,} executions of 3 noop steps",
                3 // few or 1,
                items,
                "executions/s",
                lambda: caller.many(chain(3, "noop"), items),
            ),
        ]
        for workload, what, rounds, count, unit, work in cases:
            await work()  # warm
            walls, before = [], served.cpu()
            for _ in range(rounds):
                began = time.perf_counter()
                await work()
                walls.append(time.perf_counter() - began)
            cpu = (served.cpu() - before) / rounds
            peak = round(served.memory()[1], 1)
            samples = [taken * 1e3 if unit == "ms" else count / taken for taken in walls]
            figures.append(figure("noetl", workload, f"{title}: {what}", samples, unit, peak))
            each = cpu * 1e3 if unit == "ms" else cpu / count * 1e6
            told = "ms" if unit == "ms" else "us each"
            figures.append(figure("noetl", workload, f"{title}: {what}, CPU", [each], told, peak))
        return figures


if __name__ == "__main__":
    for found in measure(quick="--quick" in sys.argv):
        print(f"{found.workload:3} {found.metric:60} {found.median:12,.2f} {found.unit}", flush=True)

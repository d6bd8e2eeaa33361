"""A faulty network between workers and server: slow, with connections cut during requests and responses.

Workers connect through a proxy in this process, which delays every chunk and closes connections at random. In half of
the cases the request was already delivered: the response is lost, and the worker must repeat the request safely.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from contextlib import suppress

from chaos.findings import Finding
from chaos.oracles import check_executions
from chaos.restarts import playbook
from chaos.single_server import single_server, submit
from tests.server.http.serving import free_port


class Proxy:
    """A TCP proxy that delays chunks and cuts connections."""

    def __init__(self, target: int, *, delay: float, cut: float, seed: int) -> None:
        self.port = free_port()
        self.cuts = 0
        self.chunks = 0
        self._target = target
        self._delay = delay
        self._cut = cut
        self._draw = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._connected = asyncio.Event()
        self._connected.set()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start listening."""
        self._thread.start()

    def stop(self) -> None:
        """Stop listening."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def stop_cutting(self) -> None:
        """Cut no more connections."""
        self._cut = 0.0

    def disconnect(self) -> None:
        """Hold every chunk and every new connection until `reconnect`."""
        self._loop.call_soon_threadsafe(self._connected.clear)

    def reconnect(self) -> None:
        """Deliver what was held."""
        self._loop.call_soon_threadsafe(self._connected.set)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", self.port))
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._connected.wait()
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        ends = (writer, upstream_writer)
        directions = [
            asyncio.ensure_future(self._forward(reader, upstream_writer, ends)),
            asyncio.ensure_future(self._forward(upstream_reader, writer, ends)),
        ]
        with suppress(asyncio.CancelledError):
            await asyncio.wait(directions)

    async def _forward(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, ends: tuple[asyncio.StreamWriter, ...]
    ) -> None:
        try:
            while chunk := await source.read(65536):
                self.chunks += 1
                await asyncio.sleep(self._delay * self._draw.random() * 2)
                await self._connected.wait()
                if self._draw.random() < self._cut:
                    self.cuts += 1
                    break
                sink.write(chunk)
                await sink.drain()
        except OSError:
            pass  # the connection was cut
        finally:
            for end in ends:
                end.close()


def experiment(*, quick: bool) -> Finding:
    """Run a loop and many executions through the proxy."""
    items, executions = (100, 10) if quick else (600, 100)
    with single_server(workers=0, NOETL_SLOTS="16", NOETL_SERVER_LEASE_SECONDS="5") as cluster:
        proxy = Proxy(cluster.port, delay=0.03, cut=0.05, seed=7)
        proxy.start()
        cluster.environ["NOETL_SERVER_URL"] = f"http://127.0.0.1:{proxy.port}"
        for _ in range(3):
            cluster.start_worker()
        file = cluster.home / "done.txt"
        file.touch()
        began = time.monotonic()
        ids = [submit(cluster, playbook(items, str(file)))]
        other = cluster.home / "others.txt"
        ids += [submit(cluster, playbook(3, str(other))) for _ in range(executions)]
        for each in ids:
            cluster.finished(each, 240)
        seconds = time.monotonic() - began
        done = set(file.read_text().split())
        again = len(file.read_text().split()) - items
        proxy.stop_cutting()
        report = check_executions(str(cluster.home / "noetl.db"), ids)
        for worker in cluster.workers:
            worker.terminate()
        for worker in cluster.workers:
            worker.wait(60)
        proxy.stop()
    missing = items - len(done)
    return Finding(
        part="network",
        guarantee="rules 3, 4",
        target="A slow network that cuts connections: every execution ends, nothing is written twice",
        setup=f"3 workers behind a proxy that delays every chunk by 0 to 60 ms and cuts the connection at one chunk in "
        f"twenty; a loop of {items} iterations and {executions} executions of 3 iterations.",
        figures={
            "connections cut": f"{proxy.cuts} in {proxy.chunks:,} chunks",
            "successful executions": f"{report.outcomes['success']} of {len(ids)}",
            "violations in the logs": str(len(report.violations)),
            "repeated iterations": str(again),
            "duration": f"{seconds:.1f} s",
        },
        violations=report.violations + ([f"{missing} iterations are missing"] if missing else []),
    )

"""A bad network between workers and server: slow, and cut in the middle of requests and answers.

Workers speak through a proxy of this process, which delays every piece and closes connections at random, half of
the time after the request went through: then the answer is lost, and the worker must ask again without harm.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from contextlib import suppress

from chaos.findings import Finding
from chaos.judging import judge
from chaos.restarts import playbook
from chaos.solo import solo, submit
from tests.server.http.serving import free_port


class Proxy:
    """A line that is slow and breaks."""

    def __init__(self, target: int, *, delay: float, cut: float, seed: int) -> None:
        self.port = free_port()
        self.cuts = 0
        self.pieces = 0
        self._target = target
        self._delay = delay
        self._cut = cut
        self._draw = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Listen."""
        self._thread.start()

    def stop(self) -> None:
        """Listen no more."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def mend(self) -> None:
        """Be a good line from now on."""
        self._cut = 0.0

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", self.port))
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        ends = (writer, there_writer)
        lanes = [
            asyncio.ensure_future(self._carry(reader, there_writer, ends)),
            asyncio.ensure_future(self._carry(there_reader, writer, ends)),
        ]
        with suppress(asyncio.CancelledError):
            await asyncio.wait(lanes)

    async def _carry(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, ends: tuple[asyncio.StreamWriter, ...]
    ) -> None:
        try:
            while piece := await source.read(65536):
                self.pieces += 1
                await asyncio.sleep(self._delay * self._draw.random() * 2)
                if self._draw.random() < self._cut:
                    self.cuts += 1
                    break
                sink.write(piece)
                await sink.drain()
        except OSError:
            pass  # the other end has gone, which is what this is about
        finally:
            for end in ends:
                end.close()


def experiment(*, quick: bool) -> Finding:
    """A loop and a crowd of executions through the bad line."""
    items, executions = (100, 10) if quick else (600, 100)
    with solo(workers=0, NOETL_SLOTS="16", NOETL_SERVER_LEASE_SECONDS="5") as cluster:
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
        proxy.mend()
        judged = judge(str(cluster.home / "noetl.db"), ids)
        for worker in cluster.workers:
            worker.terminate()
        for worker in cluster.workers:
            worker.wait(60)
        proxy.stop()
    missing = items - len(done)
    return Finding(
        part="network",
        guarantee="rules 3, 4",
        target="A slow network that breaks: everything ends, nothing is written twice",
        did=f"3 workers behind a proxy that delays every piece by 0 to 60 ms and cuts one in twenty; "
        f"a loop of {items} and {executions} executions of 3 iterations.",
        figures={
            "connections cut": f"{proxy.cuts} in {proxy.pieces:,} pieces",
            "executions that ended well": f"{judged.outcomes['success']} of {len(ids)}",
            "broken promises in the logs": str(len(judged.broken)),
            "iterations done again": str(again),
            "all in": f"{seconds:.1f} s",
        },
        broken=judged.broken + ([f"{missing} iterations were never done"] if missing else []),
    )

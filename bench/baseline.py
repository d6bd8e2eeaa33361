"""The baseline of each workload: the same events with the same number of flushes, without an engine.

One thread writes all events that arrived since its last commit to SQLite (WAL, synchronous=FULL). A step runs after
the end of the previous step is on disk; an item is done when its end is on disk.
"""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import threading
import time
from typing import Any

import msgspec

Row = tuple[int, int, str, float, bytes]
TABLE = (
    "CREATE TABLE events (execution INTEGER, seq INTEGER, name TEXT, at REAL, body BLOB, "
    "PRIMARY KEY (execution, seq)) WITHOUT ROWID"
)


def fib(n: int) -> int:
    """The work of a python task."""
    return n if n < 2 else fib(n - 1) + fib(n - 2)


class BaselineLog:
    """An event log with group commit."""

    def __init__(self, path: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._path = path
        self._waiting: list[tuple[list[Row], asyncio.Future[None]]] = []
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def append(self, rows: list[Row]) -> asyncio.Future[None]:
        """Queue rows; the future is done when they are on disk."""
        future = self._loop.create_future()
        with self._changed:
            self._waiting.append((rows, future))
            self._changed.notify()
        return future

    def close(self) -> None:
        """Write the queued rows and stop."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _write(self) -> None:
        connection = sqlite3.connect(self._path, isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(TABLE)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                batch, self._waiting = self._waiting, []
            if not batch:
                break
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "INSERT INTO events VALUES (?, ?, ?, ?, ?)", [row for rows, _ in batch for row in rows]
            )
            connection.execute("COMMIT")
            self._loop.call_soon_threadsafe(_resolve, [future for _, future in batch])
        connection.close()


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


class BaselineWorkloads:
    """The workloads without an engine."""

    def __init__(self, log: BaselineLog) -> None:
        self._log = log
        self._executions = itertools.count(1)
        self._encode = msgspec.json.Encoder().encode

    async def chain(self, steps: int, kind: str) -> None:
        """An execution of sequential steps: one flush per step."""
        execution, seqs = next(self._executions), itertools.count()
        rows = [self._row(execution, next(seqs), "execution.started", {"playbook": "baseline"})]
        for step in range(steps):
            rows.append(self._row(execution, next(seqs), "step.scheduled", {"step": step}))
            result = fib(10) if kind == "python" else None
            rows.append(self._row(execution, next(seqs), "step.done", {"step": step, "result": result}))
            if step == steps - 1:
                rows.append(self._row(execution, next(seqs), "execution.done", {"status": "success"}))
            await self._log.append(rows)
            rows = []

    async def fan_out(self, items: int, kind: str) -> None:
        """An execution of one parallel loop: the end of every item is awaited separately."""
        execution = next(self._executions)
        rows = [self._row(execution, 0, "execution.started", {"items": items})]
        rows += [self._row(execution, n + 1, "iteration.scheduled", {"index": n}) for n in range(items)]
        await self._log.append(rows)

        async def item(n: int) -> None:
            result = fib(10) if kind == "python" else None
            await self._log.append(
                [self._row(execution, items + n + 1, "iteration.done", {"index": n, "data": result})]
            )

        await asyncio.gather(*(item(n) for n in range(items)))
        await self._log.append([self._row(execution, 2 * items + 1, "execution.done", {"status": "success"})])

    async def many(self, executions: int, steps: int) -> None:
        """Concurrent chains."""
        await asyncio.gather(*(self.chain(steps, "noop") for _ in range(executions)))

    def _row(self, execution: int, seq: int, name: str, body: dict[str, Any]) -> Row:
        return execution, seq, name, time.time(), self._encode(body)

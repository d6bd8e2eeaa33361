"""Throughput of the event log: commits, events and reads per second."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from noetl.core.model.events import TaskDone
from noetl.core.model.outcome import ok
from noetl.storage.events.sqlite import SqliteEventStore
from noetl.storage.sqlite.database_file import SqliteFile
from tests.conformance.event_store import make_append

BODY = TaskDone(
    step="fetch", step_run_id="4711000000000:fetch:1", task="page", kind="http", outcome=ok({"rows": 10}), path=(7,)
)


async def appends(store: SqliteEventStore, execution: int, commits: int, size: int) -> float:
    """Seconds for sequential appends of `size` events each."""
    prepared = [make_append(str(execution), n * size, *[BODY] * size) for n in range(commits)]
    began = time.perf_counter()
    for append in prepared:
        await store.append(append)
    return time.perf_counter() - began


async def concurrent_appends(store: SqliteEventStore, execution: int, writers: int, commits: int) -> float:
    """Seconds for concurrent writers that append one event at a time."""
    began = time.perf_counter()
    await asyncio.gather(*(appends(store, execution + n, commits, 1) for n in range(writers)))
    return time.perf_counter() - began


def measure() -> Iterator[tuple[str, float, str]]:
    """Samples as (name, value, unit)."""
    with tempfile.TemporaryDirectory() as folder:
        yield from asyncio.run(_measure(Path(folder)))


async def _measure(folder: Path) -> list[tuple[str, float, str]]:
    store = SqliteEventStore(SqliteFile(str(folder / "noetl.db")))
    await appends(store, 1, 50, 1)
    samples = []
    seconds = await appends(store, 2, 1_000, 1)
    samples.append(("store.sqlite.single_commits", 1_000 / seconds, "1/s"))
    cpu = time.process_time()
    seconds = await appends(store, 3, 1_000, 100)
    samples.append(("store.sqlite.events_100_a_commit", 100_000 / seconds, "1/s"))
    samples.append(("store.sqlite.cpu_per_event_100_a_commit", (time.process_time() - cpu) * 10, "us"))
    seconds = await concurrent_appends(store, 100, 50, 100)
    samples.append(("store.sqlite.appends_50_writers", 5_000 / seconds, "1/s"))
    began = time.perf_counter()
    count = len(await store.read("3"))
    samples.append(("store.sqlite.read_events", count / (time.perf_counter() - began), "1/s"))
    await store.close()
    return samples


if __name__ == "__main__":
    for name, value, unit in measure():
        print(f"{name:45} {value:12,.1f} {unit}")

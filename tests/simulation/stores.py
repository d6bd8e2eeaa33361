"""The shared stores of the simulated servers: a faulty event store, results, worker heartbeats, and the run queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from noetl.core.model.events import Recorded
from noetl.core.model.reference import Reference, ReferenceMeta
from noetl.errors import PayloadUnavailable, StoreUnavailable
from noetl.storage.events.memory import MemoryEventStore
from noetl.storage.ports.events import Append
from noetl.storage.ports.queue import QueuedRun
from noetl.storage.queue.memory import MemoryRunQueue
from tests.simulation.faults import FaultInjector
from tests.simulation.virtual_time import Process, VirtualClock, block_if_dead, current_process


class FaultyStore(MemoryEventStore):
    """The event store, which may be slow or unavailable, or crash its server around a commit."""

    def __init__(self, injector: FaultInjector, clock: VirtualClock) -> None:
        super().__init__()
        self._injector = injector
        self._clock = clock
        self.crash: Callable[[], None] = lambda: None
        self.on_append: Callable[[Sequence[Recorded]], None] = lambda events: None
        self.last_fault = 0.0  # time of its last injected fault
        self.acknowledged: dict[str, int] = {}
        self.order: list[Append] = []  # in commit order
        self.shared = 0  # appends to an execution that another server, which is alive, appended to before
        self.restored = 0  # snapshots that were read
        self._writers: dict[str, Process | None] = {}

    async def append(self, append: Append) -> None:
        """Append events, with injected faults."""
        await block_if_dead()
        await asyncio.sleep(0.001)
        if self._injector.should_inject("store.unavailable"):
            self.last_fault = self._clock.monotonic()
            raise StoreUnavailable("the simulated store is unavailable")
        if self._injector.should_inject("store.slow"):
            await asyncio.sleep(self._injector.uniform(0.1, 2.0))
            self.last_fault = self._clock.monotonic()
        if self._injector.should_inject("server.crash_before_commit"):
            self.crash()
            await block_if_dead()
        await block_if_dead()
        await super().append(append)
        self.order.append(append)
        before, self._writers[append.execution_id] = self._writers.get(append.execution_id), current_process()
        self.shared += before is not None and before is not current_process() and not before.dead
        self.on_append(append.events)
        if self._injector.should_inject("server.crash_after_commit"):
            self.crash()
            await block_if_dead()
        self.acknowledged[append.execution_id] = append.expected_seq + len(append.events)

    async def snapshot(self, execution_id: str) -> tuple[int, bytes] | None:
        """The newest snapshot, if any."""
        found = await super().snapshot(execution_id)
        self.restored += found is not None
        return found

    def log_of(self, execution_id: str) -> list[Recorded]:
        """The stored log of an execution."""
        return self._logs.get(execution_id, [])


class CountingQueue(MemoryRunQueue):
    """The run queue; counts the runs that wait for a limit."""

    waited = 0

    async def put(self, runs: Sequence[QueuedRun]) -> None:
        """Enqueue runs."""
        self.waited += sum(run.limit is not None for run in runs)
        await super().put(runs)


class MemoryResultStore:
    """`ports.ResultStore` in memory."""

    def __init__(self) -> None:
        self._payloads: dict[str, bytes] = {}

    async def put(
        self,
        name: str,
        chunks: AsyncIterator[bytes],
        *,
        content_type: str,
        rows: int | None = None,
        columns: Sequence[str] | None = None,
        ttl: str | None = None,
    ) -> Reference:
        """Store a payload."""
        import hashlib

        data = b"".join([chunk async for chunk in chunks])
        digest = hashlib.sha256(data).hexdigest()
        self._payloads[digest] = data
        return Reference("blob", {"key": digest}, ReferenceMeta(content_type, len(data), digest, rows=rows))

    async def open(self, reference: Reference, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Stream a payload."""
        data = self._payloads.get(str(reference.locator.get("key")))
        if data is None:
            raise PayloadUnavailable("it was never stored")
        yield data[offset : None if length is None else offset + length]

    async def delete(self, reference: Reference) -> None:
        """Delete a payload."""
        self._payloads.pop(str(reference.locator.get("key")), None)

    async def collect(self, now: float) -> int:
        """No payload expires here."""
        return 0

    async def forget(self, executions: Sequence[str]) -> int:
        """Payloads are shared by digest and stay."""
        return 0

    async def close(self) -> None:
        """Nothing to close."""


class MemoryHeartbeats:
    """`ports.WorkerHeartbeats` of several servers; its clock is that of the database."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._last: dict[str, tuple[float, frozenset[tuple[str, int]]]] = {}

    async def record_heartbeat(self, worker: str, runs: Sequence[tuple[str, int]]) -> None:
        """Record a heartbeat."""
        await block_if_dead()
        self._last[worker] = self._clock.monotonic(), frozenset(runs)

    async def seconds_since_heartbeat(self, worker: str, run_id: str, epoch: int) -> float | None:
        """Seconds since the last heartbeat of the worker, if it named the run."""
        at, runs = self._last.get(worker, (0.0, frozenset()))
        return self._clock.monotonic() - at if (run_id, epoch) in runs else None

    async def silent_together(self, worker: str, seconds: float) -> bool:
        """Whether another worker had its last heartbeat at about the same time."""
        last = self._last.get(worker)
        others = (at for other, (at, _) in self._last.items() if other != worker)
        return last is None or any(abs(at - last[0]) <= seconds for at in others)


class ServerQueue:
    """The connection of one server to the shared run queue: a dead server is not woken any more."""

    def __init__(self, queue: MemoryRunQueue, process: Process) -> None:
        self._queue = queue
        self._process = process

    def watch(self, pool: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` in the process of the server, while it is alive."""

        def woken() -> None:
            if self._process.dead:
                return
            if current_process() is self._process:
                wake()
            else:
                self._process.context.run(wake)  # the tasks that it starts belong to this server

        return self._queue.watch(pool, woken)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

"""Load and throughput of the server: `/metrics` for Prometheus, and the last hour as JSON for the web page.

The samples of the last hour are of this server only and are held in memory, so they start anew with the process. One
sample of every few minutes is stored, for the history over days.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from fastapi import APIRouter, Request
from msgspec import Struct, to_builtins
from starlette.responses import Response

from noetl.errors import StoreUnavailable
from noetl.observability import metrics
from noetl.observability.metrics import Sample
from noetl.server.http.dependencies import AppState, Viewer
from noetl.server.http.response_models import json_response
from noetl.server.http.routes.worker_protocol import WorkerInfo, WorkerRegistry
from noetl.server.read_models.documents import when
from noetl.storage.ports.load_samples import LoadSampleStore, StoredLoad
from noetl.storage.ports.queue import LimitDepth, PoolDepth

router = APIRouter(tags=["health"])

SAMPLE_SECONDS = 10.0  # between two samples
MAX_SAMPLES = 361  # one hour
ALIVE_SECONDS = 60.0  # after its last request for which a worker counts as alive
COUNTS_SECONDS = 15.0  # maximum age of the counts of executions
LONG_WAIT_SECONDS = 300.0  # waiting time at a limit that causes a warning
STORED_SECONDS = 300.0  # between two stored samples
STORED_DAYS = 90
MAX_STORED_ROWS = 672  # of the load history: a week in steps of 15 minutes
STARTED_AT = time.time()


class LoadSample(Struct, frozen=True):
    """Current values, and totals since the process started."""

    at: float
    queue_depth: int
    oldest_wait_s: float
    leases: int
    workers: int
    slots: int
    started: int
    ended: int
    failed: int
    events: int


class Operations:
    """Load and throughput of one server."""

    def __init__(
        self,
        state: AppState,
        workers: WorkerRegistry,
        stored: LoadSampleStore | None = None,
        server: str = "",
        interval: float = SAMPLE_SECONDS,
        refusal: Callable[[], str] = str,
    ) -> None:
        self._state = state
        self._workers = workers
        self._stored = stored
        self._server = server
        self._unstored: list[LoadSample] = []  # since the last stored one, which is the first
        self._interval = interval
        self._refusal = refusal  # why this server performs no task for the others; empty if it does
        self._samples: deque[LoadSample] = deque(maxlen=MAX_SAMPLES)
        self._counts: tuple[float, dict[str, int]] = (float("-inf"), {})
        self._counts_lock = asyncio.Lock()
        self.streams = 0  # open event streams

    async def counts(self) -> dict[str, int]:
        """Executions by status, at most `COUNTS_SECONDS` old."""
        async with self._counts_lock:
            at, known = self._counts
            if time.monotonic() - at > COUNTS_SECONDS:
                known = await self._state.orchestrator.store.counts()
                self._counts = (time.monotonic(), known)
            return known

    async def gauges(self, ready: bool) -> dict[str, Iterable[Sample]]:
        """Samples of the collected gauges; without those of the store if it is unavailable."""
        orchestrator, now = self._state.orchestrator, self._state.now()
        alive = self.alive(now)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        found: dict[str, Iterable[Sample]] = {
            "noetl_info": [((self._state.version,), 1)],
            "noetl_ready": [((), ready)],
            "noetl_leases_held": [((), len(orchestrator.work.leases))],
            "noetl_workers": _by_pool((each.pool, 1) for each in alive),
            "noetl_worker_slots": _by_pool((each.pool, each.slots) for each in alive),
            "noetl_timers_waiting": [((), len(orchestrator.timers))],
            "noetl_executions_loaded": [((), len(orchestrator.cache))],
            "noetl_stream_subscribers": [((), self.streams)],
            "process_resident_memory_bytes": [((), resident_bytes())],
            "process_cpu_seconds_total": [((), usage.ru_utime + usage.ru_stime)],
            "process_start_time_seconds": [((), STARTED_AT)],
        }
        open_files = _open_files()
        if open_files is not None:
            found["process_open_fds"] = [((), open_files)]
        try:
            depths = await orchestrator.queue.depths()
            found["noetl_queue_runs"] = [((each.pool,), each.runs) for each in depths]
            found["noetl_queue_oldest_seconds"] = [((each.pool,), _waiting_time(each, now)) for each in depths]
            found |= await self._limits(now)
            found["noetl_executions"] = [((status,), number) for status, number in (await self.counts()).items()]
        except StoreUnavailable:
            pass  # reported by noetl_ready; the other metrics are still returned
        return found

    async def _limits(self, now: float) -> dict[str, Iterable[Sample]]:
        orchestrator = self._state.orchestrator
        lines, most = await orchestrator.queue.limit_depths(), orchestrator.limiter.most
        held = await orchestrator.store.held(list(most)) if most else {}
        return {
            "noetl_waiting_runs": [((each.key,), each.runs) for each in lines],
            "noetl_waiting_oldest_seconds": [((each.key,), _waiting_time(each, now)) for each in lines],
            "noetl_limit": [((key,), number) for key, number in most.items()],
            "noetl_limit_held": [((key,), number) for key, number in held.items()],
        }

    def alive(self, now: float) -> list[WorkerInfo]:
        """Workers with a recent request."""
        return [each for each in self._workers.all(now) if now - each.last_seen <= ALIVE_SECONDS]

    async def document(self) -> dict[str, Any]:
        """Current values per pool, executions by status, and the samples of the last hour."""
        now = self._state.now()
        depths = {each.pool: each for each in await self._state.orchestrator.queue.depths()}
        alive = self.alive(now)
        pools = []
        for pool in sorted(depths.keys() | {each.pool for each in alive}):
            depth = depths.get(pool, PoolDepth(pool, 0))
            of_pool = [each for each in alive if each.pool == pool]
            pools.append(
                {
                    "pool": pool,
                    "waiting": depth.runs,
                    "oldest_wait_s": _waiting_time(depth, now),
                    "workers": len(of_pool),
                    "slots": sum(each.slots for each in of_pool),
                }
            )
        return {
            "at": when(now),
            "executions": await self.counts(),
            "pools": pools,
            "leases": len(self._state.orchestrator.work.leases),
            "last_progress_at": when(metrics.PROGRESS.value or None),
            "every_s": self._interval,
            "samples": _rates([*self._samples, await self._sample()]),
        }

    async def warnings(self) -> list[str]:
        """What needs action although this server is ready: a wrong clock, full limits and pools without workers."""
        now = self._state.now()
        served = {each.pool for each in self.alive(now)}
        found = list(filter(None, [self._refusal()]))
        found += [
            f"{each.runs} runs have waited up to {_waiting_time(each, now):.0f} s for the limit of {each.key}; "
            f"`noetl limit show {each.key}` lists its holders"
            for each in await self._state.orchestrator.queue.limit_depths()
            if _waiting_time(each, now) > LONG_WAIT_SECONDS
        ]
        alive = self.alive(now)
        found += [
            f"{count} runs wait in pool {pool} for a worker with the labels {', '.join(labels)}; no worker has them "
            f"(`noetl worker start --label {' --label '.join(labels)}` starts one)"
            for pool, labels, count in await self._state.orchestrator.queue.labelled()
            if pool in served and not any(each.pool == pool and set(labels) <= set(each.labels) for each in alive)
        ]
        return found + [
            f"{each.runs} runs wait in pool {each.pool}, which has no workers "
            f"(`noetl worker start --pool {each.pool}` starts one)"
            for each in await self._state.orchestrator.queue.depths()
            if each.pool not in served and _waiting_time(each, now) > SAMPLE_SECONDS
        ]

    async def sample_forever(self) -> None:
        """Sample periodically."""
        while True:
            try:
                sample = await self._sample()
                self._samples.append(sample)
                await self._store(sample)
            except StoreUnavailable:
                pass  # leaves a gap in the samples
            await asyncio.sleep(self._interval)

    async def _store(self, sample: LoadSample) -> None:
        """Store the load of each few minutes, for the history over days."""
        self._unstored.append(sample)
        first = self._unstored[0]
        if self._stored is None or sample.at - first.at < STORED_SECONDS:
            self._unstored = self._unstored[-MAX_SAMPLES:]
            return
        await self._stored.add(
            StoredLoad(
                at=sample.at,
                server=self._server,
                queue_depth=max(each.queue_depth for each in self._unstored),
                oldest_wait_s=max(each.oldest_wait_s for each in self._unstored),
                workers=max(each.workers for each in self._unstored),
                slots=max(each.slots for each in self._unstored),
                leases=max(each.leases for each in self._unstored),
                ended=sample.ended - first.ended,
                failed=sample.failed - first.failed,
            )
        )
        self._unstored = [sample]
        await self._stored.drop(sample.at - STORED_DAYS * 86_400)

    async def load_history(self, days: int) -> list[dict[str, Any]]:
        """The stored load, combined over servers and over intervals of at least `STORED_SECONDS`."""
        now = self._state.now()
        width = max(STORED_SECONDS, days * 86_400 / MAX_STORED_ROWS)
        rows: dict[int, dict[str, Any]] = {}
        for each in await self._stored.since(now - days * 86_400) if self._stored is not None else ():
            row = rows.setdefault(int(each.at // width), {"at": when(each.at), "ended": 0, "failed": 0})
            for name in ("queue_depth", "oldest_wait_s", "workers", "slots", "leases"):
                row[name] = max(row.get(name, 0), getattr(each, name))
            row["ended"] += each.ended
            row["failed"] += each.failed
        return list(rows.values())

    async def _sample(self) -> LoadSample:
        now = self._state.now()
        depths = await self._state.orchestrator.queue.depths()
        alive = self.alive(now)
        return LoadSample(
            at=now,
            queue_depth=sum(each.runs for each in depths),
            oldest_wait_s=max((_waiting_time(each, now) for each in depths), default=0.0),
            leases=len(self._state.orchestrator.work.leases),
            workers=len(alive),
            slots=sum(each.slots for each in alive),
            started=int(metrics.STARTED.total()),
            ended=int(metrics.ENDED.total()),
            failed=int(metrics.ENDED.value("failed")),
            events=int(metrics.EVENTS.total()),
        )


@router.get(
    "/metrics",
    summary="Metrics in the Prometheus text format",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def prometheus(request: Request, _: Viewer) -> Response:
    """Format version 0.0.4; docs/reference/metrics.md lists every metric."""
    ready = not await request.app.state.readiness()
    gauges = await operations_of(request).gauges(ready)
    return Response(metrics.exposition(gauges), media_type=metrics.MEDIA_TYPE)


@router.get("/api/operations", summary="Queue depth and throughput over the last hour")
async def operations(request: Request, _: Viewer) -> Response:
    """Executions by status, waiting runs and workers per pool, and a sample of this server every ten seconds."""
    return json_response(await operations_of(request).document())


def operations_of(request: Request) -> Operations:
    """The `Operations` of the server that handles this request."""
    found: Operations = request.app.state.operations
    return found


def _rates(samples: list[LoadSample]) -> list[dict[str, Any]]:
    """Samples with the rates since the previous one."""
    rows = []
    for before, after in pairwise(samples):
        seconds = max(after.at - before.at, 0.001)
        row: dict[str, Any] = to_builtins(after)
        row["at"] = when(after.at)
        for name in ("started", "ended", "failed", "events"):
            row[f"{name}_per_s"] = round((getattr(after, name) - getattr(before, name)) / seconds, 3)
        rows.append(row)
    return rows


def _waiting_time(depth: PoolDepth | LimitDepth, now: float) -> float:
    return round(max(0.0, now - depth.since), 3) if depth.since else 0.0


def _by_pool(rows: Iterable[tuple[str, int]]) -> list[Sample]:
    totals: Counter[str] = Counter()
    for pool, number in rows:
        totals[pool] += number
    return [((pool,), number) for pool, number in sorted(totals.items())]


def _open_files() -> int | None:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return None


def resident_bytes() -> int:
    """The resident memory of this process; its maximum where the current value is not available."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024

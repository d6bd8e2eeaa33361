"""Is it making progress: `/metrics` for Prometheus, and the last hour as JSON for the web page.

Samples are this server's own and live in its memory; a server that starts anew begins a new hour.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

from fastapi import APIRouter, Request
from msgspec import Struct, to_builtins
from starlette.responses import Response

from noetl.errors import StoreUnavailable
from noetl.observability import metrics
from noetl.observability.metrics import Sample
from noetl.server.http.access import Caller
from noetl.server.http.dependencies import AppState, app_state, requires_role
from noetl.server.http.response_models import answer
from noetl.server.http.routes.worker_protocol import WorkerInfo, WorkerRegistry
from noetl.server.read_models.documents import when
from noetl.storage.ports.queue import LimitDepth, PoolDepth

router = APIRouter(tags=["health"])

EVERY = 10.0  # seconds between two samples
KEPT = 361  # an hour of them
ALIVE = 60.0  # seconds after its last sign of life in which a worker counts as alive
COUNTED = 15.0  # seconds for which a count of executions is good enough
LONG_WAIT = 300.0  # seconds after which those who wait for a limit are worth a warning
BEGAN = time.time()


class Moment(Struct, frozen=True):
    """One sample: what is now, and what was counted since the process began."""

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
    """What a server knows about its own progress."""

    def __init__(self, parts: AppState, roster: WorkerRegistry, every: float = EVERY) -> None:
        self._parts = parts
        self._roster = roster
        self._every = every
        self._moments: deque[Moment] = deque(maxlen=KEPT)
        self._counts: tuple[float, dict[str, int]] = (float("-inf"), {})
        self._counting = asyncio.Lock()
        self.streams = 0  # open event streams

    @asynccontextmanager
    async def sampling(self) -> AsyncIterator[None]:
        """Take samples for as long as the block lasts."""
        task = asyncio.get_running_loop().create_task(self._sample_for_ever())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def counts(self) -> dict[str, int]:
        """Executions by status, as they were a little while ago at most."""
        async with self._counting:
            at, known = self._counts
            if time.monotonic() - at > COUNTED:
                known = await self._parts.orchestrator.store.counts()
                self._counts = (time.monotonic(), known)
            return known

    async def gauges(self, ready: bool) -> dict[str, Iterable[Sample]]:
        """The values Prometheus asks for, as far as the store answers."""
        orchestrator, now = self._parts.orchestrator, time.time()
        alive = self.alive(now)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        found: dict[str, Iterable[Sample]] = {
            "noetl_info": [((self._parts.version,), 1)],
            "noetl_ready": [((), ready)],
            "noetl_leases_held": [((), len(orchestrator.work.leases))],
            "noetl_workers": _by_pool((each.pool, 1) for each in alive),
            "noetl_worker_slots": _by_pool((each.pool, each.slots) for each in alive),
            "noetl_timers_waiting": [((), orchestrator.timers_waiting)],
            "noetl_executions_loaded": [((), orchestrator.executions_loaded)],
            "noetl_stream_subscribers": [((), self.streams)],
            "process_resident_memory_bytes": [((), resident_bytes())],
            "process_cpu_seconds_total": [((), usage.ru_utime + usage.ru_stime)],
            "process_start_time_seconds": [((), BEGAN)],
        }
        open_files = _open_files()
        if open_files is not None:
            found["process_open_fds"] = [((), open_files)]
        try:
            depths = await orchestrator.depths()
            found["noetl_queue_runs"] = [((each.pool,), each.runs) for each in depths]
            found["noetl_queue_oldest_seconds"] = [((each.pool,), _waited(each, now)) for each in depths]
            found |= await self._limits(now)
            found["noetl_executions"] = [((status,), number) for status, number in (await self.counts()).items()]
        except StoreUnavailable:
            pass  # the store is away: noetl_ready says so, and what this process knows is still told
        return found

    async def _limits(self, now: float) -> dict[str, Iterable[Sample]]:
        orchestrator = self._parts.orchestrator
        lines, most = await orchestrator.limit_depths(), orchestrator.limiter.most
        held = await orchestrator.store.held(list(most)) if most else {}
        return {
            "noetl_waiting_runs": [((each.key,), each.runs) for each in lines],
            "noetl_waiting_oldest_seconds": [((each.key,), _waited(each, now)) for each in lines],
            "noetl_limit": [((key,), number) for key, number in most.items()],
            "noetl_limit_held": [((key,), number) for key, number in held.items()],
        }

    def alive(self, now: float) -> list[WorkerInfo]:
        """Workers heard of lately."""
        return [each for each in self._roster.all(now) if now - each.last_seen <= ALIVE]

    async def document(self) -> dict[str, Any]:
        """What is now by pool, executions by status, and the samples of the last hour."""
        now = time.time()
        depths = {each.pool: each for each in await self._parts.orchestrator.depths()}
        alive = self.alive(now)
        pools = []
        for pool in sorted(depths.keys() | {each.pool for each in alive}):
            depth = depths.get(pool, PoolDepth(pool, 0))
            of_pool = [each for each in alive if each.pool == pool]
            pools.append(
                {
                    "pool": pool,
                    "waiting": depth.runs,
                    "oldest_wait_s": _waited(depth, now),
                    "workers": len(of_pool),
                    "slots": sum(each.slots for each in of_pool),
                }
            )
        return {
            "at": when(now),
            "executions": await self.counts(),
            "pools": pools,
            "leases": len(self._parts.orchestrator.work.leases),
            "last_progress_at": when(metrics.PROGRESS.value or None),
            "every_s": self._every,
            "samples": _rates([*self._moments, await self._moment()]),
        }

    async def stuck(self) -> list[str]:
        """What waits although nobody is there to do it: no fault of this server, but somebody should know."""
        now = time.time()
        served = {each.pool for each in self.alive(now)}
        held_back = [
            f"{each.runs} runs wait since {_waited(each, now):.0f} s because the limit of {each.key} is reached; "
            f"`noetl limit show {each.key}` says who holds it"
            for each in await self._parts.orchestrator.limit_depths()
            if _waited(each, now) > LONG_WAIT
        ]
        return held_back + [
            f"{each.runs} runs wait in pool {each.pool}, and no worker leases from it"
            for each in await self._parts.orchestrator.depths()
            if each.pool not in served and _waited(each, time.time()) > EVERY
        ]

    async def _sample_for_ever(self) -> None:
        while True:
            try:
                self._moments.append(await self._moment())
            except StoreUnavailable:
                pass  # a gap in the picture is what it looks like
            await asyncio.sleep(self._every)

    async def _moment(self) -> Moment:
        now = time.time()
        depths = await self._parts.orchestrator.depths()
        alive = self.alive(now)
        return Moment(
            at=now,
            queue_depth=sum(each.runs for each in depths),
            oldest_wait_s=max((_waited(each, now) for each in depths), default=0.0),
            leases=len(self._parts.orchestrator.work.leases),
            workers=len(alive),
            slots=sum(each.slots for each in alive),
            started=int(metrics.STARTED.total()),
            ended=int(metrics.ENDED.total()),
            failed=int(metrics.ENDED.value("failed")),
            events=int(metrics.EVENTS.total()),
        )


@router.get(
    "/metrics",
    summary="What Prometheus reads",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def prometheus(request: Request, _: Caller = requires_role("viewer")) -> Response:
    """The text format, version 0.0.4; docs/reference/metrics.md lists every name."""
    ready = not await request.app.state.readiness()
    gauges = await operations_of(request).gauges(ready)
    return Response(metrics.page(gauges), media_type=metrics.MEDIA_TYPE)


@router.get("/api/operations", summary="Queue depth and throughput over the last hour")
async def operations(request: Request, _: Caller = requires_role("viewer")) -> Response:
    """Executions by status, pools with what waits and who works, and a sample every ten seconds of this server."""
    return answer(await operations_of(request).document())


def operations_of(request: Request) -> Operations:
    """The operations of the server that answers this request."""
    app_state(request)  # refuses while the server is still starting
    found: Operations = request.app.state.operations
    return found


def _rates(moments: list[Moment]) -> list[dict[str, Any]]:
    """Moments with what happened a second since the one before."""
    rows = []
    for before, after in pairwise(moments):
        seconds = max(after.at - before.at, 0.001)
        row: dict[str, Any] = to_builtins(after)
        row["at"] = when(after.at)
        for name in ("started", "ended", "failed", "events"):
            row[f"{name}_per_s"] = round((getattr(after, name) - getattr(before, name)) / seconds, 3)
        rows.append(row)
    return rows


def _waited(depth: PoolDepth | LimitDepth, now: float) -> float:
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
    """The memory this process has now; where the system does not tell, the most it ever had."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024

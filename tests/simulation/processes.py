"""The simulated processes: servers and workers of production classes that crash, freeze and stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from noetl.server.composition import Cluster as ServerCluster
from noetl.server.composition import Options, Stores, build_orchestrator
from noetl.server.lifecycle import recovery
from noetl.server.lifecycle.wait_timers import WaitTimers
from noetl.server.orchestrator.service import Orchestrator
from noetl.server.scheduling.scheduler import run_schedules
from noetl.worker.host import HostServices
from noetl.worker.pool import Pool
from noetl.worker.runner import Runner
from tests.simulation.effects import SPECS, tools
from tests.simulation.faulty_link import FaultyLink, ProcessCrashed
from tests.simulation.revocations import watch_revocations
from tests.simulation.schedules import scheduler_of
from tests.simulation.stores import ServerQueue
from tests.simulation.virtual_time import Process

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

T = TypeVar("T")

LEASE_SECONDS = 10.0


class ServerProcess:
    """A server process: a production orchestrator over the shared stores."""

    def __init__(self, cluster: Cluster) -> None:
        self.process = Process("server")
        self._orchestrator: Orchestrator | None = None
        self._cluster = cluster

    async def start(self) -> None:
        """Start, watch the leases, and resume unfinished executions."""
        await asyncio.wait((self.process.start(self._start()),))

    async def _start(self) -> None:
        cluster = self._cluster
        queue: Any = ServerQueue(cluster.queue, self.process)
        orchestrator = build_orchestrator(
            Stores(cluster.store, cluster.playbooks, cluster.results, queue, cluster.limits),
            lambda: SPECS,
            clock=cluster.clock,
            nondeterminism=cluster.nondeterminism,
            cluster=ServerCluster(cluster.heartbeats if cluster.server_count > 1 else None),
            options=Options(lease_seconds=LEASE_SECONDS, stored_timers=True),
        )
        watch_revocations(orchestrator, cluster)
        await orchestrator.load_limits()
        orchestrator.start()
        await recovery.resume(orchestrator, waiting=False)
        self.process.start(WaitTimers(orchestrator, cluster.clock).run())
        if cluster.overlap is not None:
            self.process.start(run_schedules(scheduler_of(cluster, orchestrator)))
        self._orchestrator = orchestrator

    @property
    def is_up(self) -> bool:
        """Whether the server has recovered and serves requests."""
        return self._orchestrator is not None and not self.process.dead

    async def call(self, request: Callable[[Orchestrator], Coroutine[Any, Any, T]], within: float) -> T:
        """Perform one request; raise ProcessCrashed if the process ends before the reply."""
        if self.process.dead or self._orchestrator is None:
            raise ProcessCrashed
        task = self.process.start(request(self._orchestrator))
        try:
            await asyncio.wait((task,), timeout=within)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not task.done():
            task.cancel()
            raise TimeoutError
        if task.cancelled():
            raise ProcessCrashed
        answer: T = task.result()
        return answer


class WorkerProcess:
    """A worker process: a production pool over a faulty link."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.name = f"w{number}"
        self.process = Process(self.name)
        self.link = FaultyLink(cluster, self.name)
        self._cluster = cluster
        self._pool: Pool | None = None

    async def start(self) -> None:
        """Start claiming runs."""
        await asyncio.wait((self.process.start(self._start()),))

    async def _start(self) -> None:
        cluster = self._cluster
        services = HostServices(cluster.results)
        load = tools(cluster.ledger, self)
        runner = Runner(self.link, services, specs=SPECS, load=load, clock=cluster.clock)
        pool = Pool(
            self.link, runner, worker=self.name, clock=cluster.clock, slots=cluster.slots, heartbeat=LEASE_SECONDS / 4
        )
        self.link.on_lost_reply = pool.reconcile_soon
        await pool.start()
        self._pool = pool

    def started(self, task_run: str) -> None:
        """A tool starts here."""
        self._cluster.check_start(task_run)

    def ended(self, task_run: str) -> None:
        """A tool has its effect."""
        self._cluster.check_end(self.name, task_run)

    def crash(self, *, others: bool) -> None:
        """A tool ends this process, and those of the other workers."""
        for name in [each.name for each in self._cluster.workers] if others else [self.name]:
            self._cluster.crash_worker(name)

    async def stop(self, grace: float) -> None:
        """Stop as on SIGTERM: unfinished runs are given back, then the process ends."""
        if self._pool is not None:
            await asyncio.wait((self.process.start(self._pool.stop(grace)),), timeout=grace + 60)
        self.process.kill()

    def freeze(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """Freeze the worker: its link is silent, then works again."""
        self.link.freeze(loop, seconds)

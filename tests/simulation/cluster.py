"""The simulated cluster: one or two servers, several workers, and their shared stores.

When a server crashes, all its tasks stop and a new server folds the logs. When a worker crashes, its runs stop
without a report; when it is frozen, its link is silent for longer than a lease and then works again; when it is
stopped, it gives its runs back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import copy_context
from typing import Any, TypeVar

import msgspec

from noetl.core.model.events import (
    IterationDone,
    IterationFailed,
    IterationStarted,
    Recorded,
    StepDone,
    StepFailed,
    StepStarted,
    TaskDone,
    WorkerLost,
)
from noetl.core.model.ids import execution_of, iteration_id, split_run_id, task_run_id
from noetl.core.model.work import Report
from noetl.errors import Conflict, CorruptLog, StoreUnavailable
from noetl.server.concurrency.limits import KIND, Limit
from noetl.server.orchestrator.catalog import Source, source_digest
from noetl.server.orchestrator.service import Orchestrator
from noetl.server.orchestrator.submissions import Submission
from noetl.server.scheduling.triggers import Overlap
from noetl.storage.playbooks.memory import MemoryPlaybookStore
from noetl.storage.ports.playbooks import StoredPlaybook
from noetl.storage.ports.triggers import StoredTrigger
from noetl.storage.triggers.delivery_memory import MemoryDeliveryStore
from noetl.storage.triggers.memory import MemoryTriggerStore
from tests.simulation.effects import EffectLedger
from tests.simulation.faults import FaultInjector
from tests.simulation.faulty_link import FaultyLink, ProcessCrashed
from tests.simulation.log_oracles import run_of, start_is_stored
from tests.simulation.processes import LEASE_SECONDS, ServerProcess, WorkerProcess
from tests.simulation.schedules import add_schedule
from tests.simulation.stores import CountingQueue, FaultyStore, MemoryHeartbeats, MemoryResultStore
from tests.simulation.virtual_time import VirtualClock, current_process

T = TypeVar("T")

DOWN_SECONDS = 2.0  # between a crash of a server and its restart
OUTAGE_SECONDS = (15.0, 60.0)  # the same of one in eight crashes
GRACE_SECONDS = 7.0  # time without a fault after which a lost reply must have been reconciled


class SeededNondeterminism:
    """A nondeterminism source from a seed and the virtual clock."""

    def __init__(self, clock: VirtualClock, seed: int) -> None:
        import random

        self._clock = clock
        self._random = random.Random(seed)

    def now(self) -> str:
        """The virtual time."""
        from noetl.core.model.events import instant

        return instant(self._clock.now())

    def uuid(self) -> str:
        """A random id."""
        return f"{self._random.getrandbits(128):032x}"

    def random(self) -> float:
        """A random number."""
        return self._random.random()


def _attempt(event: TaskDone) -> str:
    return task_run_id(iteration_id(event.step_run_id, event.path), event.task, event.visit, event.attempt)


class Cluster:
    """One or two servers, several workers, and their shared stores."""

    def __init__(
        self,
        injector: FaultInjector,
        clock: VirtualClock,
        texts: Mapping[str, str],
        workers: int = 2,
        limits: Mapping[str, int] | None = None,
        servers: int = 1,
        clock_jump: float = 5.0,
        overlap: Overlap | None = None,
    ) -> None:
        self.injector = injector
        self.clock = clock
        self.texts = dict(texts)
        self.nondeterminism = SeededNondeterminism(clock, 7)
        self.store = FaultyStore(injector, clock)
        self.store.crash = self.crash_current_server
        self.store.on_append = self._check_append
        self.playbooks = MemoryPlaybookStore()
        self.limits = MemoryTriggerStore()  # and the schedule
        self.deliveries = MemoryDeliveryStore()
        self.overlap = overlap  # of the schedule; None: there is none
        self.max_slots = dict(limits or {})
        self.results: Any = MemoryResultStore()
        self.ledger = EffectLedger()
        self.violations: list[str] = []  # invariants violated during the run
        self.received: set[tuple[str, str, int]] = set()  # worker, run and epoch of every received order
        self._restarted = 0.0  # time of the last server start
        self._stopped: dict[str, float] = {}  # runs that the server has ended, and when
        self._lost: dict[tuple[str, str], float] = {}  # worker and run of lost leases, and when
        self.server_count = servers
        self.servers: list[ServerProcess] = []
        self.queue = CountingQueue()
        self.heartbeats = MemoryHeartbeats(clock)
        # A single worker has one slot: it claims nothing before its late report has arrived.
        self.slots = 3 if workers > 1 else 1
        self.clock_jump = clock_jump  # seconds that a jump of the clock has at most
        self.workers: list[WorkerProcess] = []
        self._count = workers
        self._worker_count = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._context = copy_context()

    async def start(self) -> None:
        """Start the server, the workers and the process faults."""
        for path, text in self.texts.items():
            await self.playbooks.register(StoredPlaybook(path, 0, source_digest(Source(text)), text))
        for key, maximum in self.max_slots.items():
            subject, _, name = key.partition(" ")
            limit = Limit(subject, name, maximum)  # type: ignore[arg-type]
            await self.limits.add(StoredTrigger(KIND, key, msgspec.json.encode(limit)))
        if self.overlap is not None:
            await add_schedule(self, self.overlap)
        for _ in range(self.server_count):
            await self._new_server()
        for _ in range(self._count):
            await self._new_worker()
        self.spawn(self._inject_process_faults())

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Start a task that belongs to no simulated process."""
        task = asyncio.get_running_loop().create_task(coroutine, context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def is_stale(self, report: Report) -> bool:
        """Whether the run of a report is open under a newer epoch."""
        newest = 0
        for recorded in self.store.log_of(split_run_id(report.run_id)[0]):
            body: Any = recorded.body
            if (
                getattr(body, "step_run_id", None) is None
                or iteration_id(body.step_run_id, getattr(body, "path", ())) != report.run_id
            ):
                continue
            if isinstance(body, StepStarted | IterationStarted):
                newest = body.epoch
            elif isinstance(body, StepDone | StepFailed | IterationDone | IterationFailed):
                return False
        return newest > report.epoch

    def log_length(self, report: Report) -> int:
        """The length of the log of a report's execution."""
        return len(self.store.log_of(split_run_id(report.run_id)[0]))

    def was_accepted(self, report: Report, before: int) -> bool:
        """Whether a task of this report was appended after the log had this length.

        A positive acknowledgement does not prove it: another worker may have ended the run in the same way."""
        reported = {_attempt(event) for event in report.events if isinstance(event, TaskDone)}
        log = self.store.log_of(split_run_id(report.run_id)[0])
        return any(_attempt(each.body) in reported for each in log[before:] if isinstance(each.body, TaskDone))

    def _check_append(self, events: Sequence[Recorded]) -> None:
        for body in (each.body for each in events):
            if isinstance(body, WorkerLost):
                self._lost[body.worker, run_of(body)] = self.clock.monotonic()
                if not body.returned:
                    self._check_lost(body)
            elif isinstance(body, StepStarted | IterationStarted):
                self._lost.pop((body.worker, run_of(body)), None)
            elif isinstance(body, StepFailed | IterationFailed) and body.by_server:
                self._stopped[run_of(body)] = self.clock.monotonic()

    def _quiet(self, link: FaultyLink, seconds: float) -> bool:
        """Whether no fault has touched a worker, the store or the servers for this long."""
        last = max(link.last_fault, self.store.last_fault, self._restarted)
        return link.awake.is_set() and len(self.servers) == self.server_count and (
            self.clock.monotonic() - last > seconds
        )  # fmt: skip

    def _check_lost(self, body: WorkerLost) -> None:
        """Check that only a worker that was frozen, cut off or crashed loses a lease. A run whose order was lost is
        returned without using up an attempt, once a heartbeat got through. (With several servers the heartbeat may reach
        one that does not know the lease; then the lease expires.)"""
        link = next((worker.link for worker in self.workers if worker.name == body.worker), None)
        if link is None:
            return
        run_id = run_of(body)
        if (body.worker, run_id, body.epoch) in self.received:
            if self._quiet(link, LEASE_SECONDS + GRACE_SECONDS):
                self.violations.append(f"{run_id}: {body.worker} lost a lease although its heartbeats arrived")
        elif self.server_count == 1 and self._quiet(link, GRACE_SECONDS):
            self.violations.append(f"{run_id}: {body.worker} lost an attempt of a run that it never received")

    def check_end(self, worker: str, task_run: str) -> None:
        """Check that a tool does not run on for long after its run has ended, or belongs to another worker."""
        run = task_run.rsplit(":", 3)[0]
        stopped = self._stopped.get(run, self._lost.get((worker, run)))
        link = next((each.link for each in self.workers if each.name == worker), None)
        if stopped is None or link is None or task_run.endswith(":0"):
            return
        late = self.clock.monotonic() - stopped
        if late > LEASE_SECONDS + GRACE_SECONDS and self._quiet(link, LEASE_SECONDS + GRACE_SECONDS):
            self.violations.append(f"{task_run}: its tool ran on for {late:.0f} s after its run had ended")

    def check_start(self, task_run: str) -> None:
        """Check that the start of a tool is stored before it runs."""
        execution_id = execution_of(task_run)
        if task_run.endswith(":0"):
            return  # a `finally` task of a run that the server has ended
        if not start_is_stored(self.store.log_of(execution_id), task_run):
            self.violations.append(f"{task_run}: its tool was started before its start was stored")

    def crash_server(self, server: ServerProcess) -> None:
        """Crash a server; another one starts a little later."""
        if server in self.servers:
            self.servers.remove(server)
            server.process.dead = True
            self.spawn(self._replace(server))

    def crash_current_server(self) -> None:
        """Crash the server whose request is being processed."""
        process = current_process()
        for server in [each for each in self.servers if each.process is process]:
            self.crash_server(server)

    def any_server(self) -> ServerProcess | None:
        """A server that is up, as a load balancer chooses it."""
        up = self.servers
        return None if not up else up[0] if len(up) == 1 else up[self.injector.index(len(up))]

    async def submit(self, submission: Submission) -> str:
        """Submit until acknowledged, as a client with an idempotency key does."""
        return await self.request(lambda orchestrator: orchestrator.submit(submission))

    async def control(self, request: Callable[[Orchestrator], Coroutine[Any, Any, Any]]) -> bool:
        """Send a command until it is acknowledged (True) or rejected (False)."""
        try:
            await self.request(request)
        except Conflict:
            return False
        except CorruptLog as problem:
            self.violations.append(f"a command was answered with: {problem}")
            return False
        return True

    async def request(self, request: Callable[[Orchestrator], Coroutine[Any, Any, T]]) -> T:
        """Send a request until a server responds."""
        while True:
            server = self.any_server()
            if server is not None:
                try:
                    return await server.call(request, 30.0)
                except (ProcessCrashed, StoreUnavailable, TimeoutError):
                    pass
            await asyncio.sleep(0.3)

    async def _new_server(self) -> None:
        while True:
            server = ServerProcess(self)
            await server.start()
            if server.is_up:
                self.servers.append(server)
                self._restarted = self.clock.monotonic()
                return
            server.process.kill()
            await asyncio.sleep(0.5)

    async def _replace(self, dead: ServerProcess) -> None:
        dead.process.kill()
        await asyncio.sleep(DOWN_SECONDS if self.injector.index(8) else self.injector.uniform(*OUTAGE_SECONDS))
        await self._new_server()

    async def _new_worker(self) -> None:
        self._worker_count += 1
        worker = WorkerProcess(self, self._worker_count)
        self.workers.append(worker)
        await worker.start()

    def crash_worker(self, name: str) -> None:
        """Crash a worker, as a tool does that takes all memory."""
        for worker in [each for each in self.workers if each.name == name]:
            self.workers.remove(worker)
            worker.process.dead = True
            self.spawn(self._replace_worker(worker))

    async def _replace_worker(self, dead: WorkerProcess) -> None:
        dead.process.kill()
        await self._new_worker()

    async def _inject_process_faults(self) -> None:
        """Crash and freeze processes and set clocks at random times."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(1.0)
            if self.injector.should_inject("server.crash") and self.servers:
                self.crash_server(self.servers[self.injector.index(len(self.servers))])
            if self.injector.should_inject("worker.crash") and self.workers:
                self.workers.pop(self.injector.index(len(self.workers))).process.kill()
                await self._new_worker()
            if self.injector.should_inject("worker.sleep") and self.workers:
                worker = self.workers[self.injector.index(len(self.workers))]
                shortest = 1.0 if self._count > 1 else 1.1 * LEASE_SECONDS
                worker.freeze(loop, self.injector.uniform(shortest, 2.5 * LEASE_SECONDS))
            if self.injector.should_inject("worker.stop") and self.workers:
                worker = self.workers.pop(self.injector.index(len(self.workers)))
                self.spawn(worker.stop(self.injector.uniform(0.0, 1.0)))
                await self._new_worker()
            if self.injector.should_inject("clock.jump"):
                self.clock.jump(self.injector.uniform(-self.clock_jump, self.clock_jump))

"""The simulated cluster: a faulty event store, faulty links, and servers and workers that crash.

A *server* is a production orchestrator over the shared store; when it crashes, all its tasks stop and a
new server folds the logs. A *worker* is a production pool over a faulty link; when it crashes, its runs
stop without a report; when it is frozen, its link is silent for longer than a lease and then works again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
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
from noetl.core.model.ids import iteration_id, split_run_id, task_run_id
from noetl.core.model.outcome import Outcome, error, ok
from noetl.core.model.reference import Reference, ReferenceMeta
from noetl.core.model.tool import Field, ToolCall, ToolSpec
from noetl.core.model.work import Report
from noetl.errors import PayloadUnavailable, StoreUnavailable
from noetl.server.composition import Options, Stores, build_orchestrator
from noetl.server.concurrency.limits import KIND, Limit
from noetl.server.lifecycle import recovery
from noetl.server.lifecycle.wait_timers import WaitTimers
from noetl.server.orchestrator.catalog import Source, source_digest
from noetl.server.orchestrator.service import Orchestrator
from noetl.server.orchestrator.submissions import Submission
from noetl.storage.events.memory import MemoryEventStore
from noetl.storage.playbooks.memory import MemoryPlaybookStore
from noetl.storage.ports.events import Append
from noetl.storage.ports.playbooks import StoredPlaybook
from noetl.storage.ports.triggers import StoredTrigger
from noetl.storage.queue.memory import MemoryRunQueue
from noetl.storage.triggers.memory import MemoryTriggerStore
from noetl.tools.wait.spec import SPEC as WAIT
from noetl.worker.host import HostServices
from noetl.worker.pool import Pool
from noetl.worker.runner import Runner
from tests.simulation.faults import FaultInjector
from tests.simulation.faulty_link import FaultyLink, ProcessCrashed
from tests.simulation.virtual_time import Process, VirtualClock, block_if_dead

T = TypeVar("T")

LEASE_SECONDS = 10.0
DOWN_SECONDS = 2.0  # between a crash of the server and its restart
GRACE_SECONDS = 7.0  # time without a fault after which a lost reply must have been reconciled


# ── storage ─────────────────────────────────────────────────────────────────────────────


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
        self.on_append(append.events)
        if self._injector.should_inject("server.crash_after_commit"):
            self.crash()
            await block_if_dead()
        self.acknowledged[append.execution_id] = append.expected_seq + len(append.events)

    def log_of(self, execution_id: str) -> list[Recorded]:
        """The stored log of an execution."""
        return self._logs.get(execution_id, [])


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


# ── tools ───────────────────────────────────────────────────────────────────────────────

SPECS: dict[str, ToolSpec] = {
    "noop": ToolSpec(kind="noop", pure=True),
    "playbook": ToolSpec(
        kind="playbook", suspends=True, fields={"path": Field(type="string", required=True)}, open_fields=True
    ),
    "wait": WAIT,
    "effect": ToolSpec(kind="effect", fields={"value": Field(), "fails": Field(), "takes": Field()}),
}


class EffectLedger:
    """Counts the tool starts and the side effects of each attempt."""

    def __init__(self) -> None:
        self.started: Counter[str] = Counter()
        self.done: Counter[str] = Counter()

    def mark(self, task_run: str) -> None:
        """Count the side effect of an attempt."""
        self.done[task_run] += 1

    def has_run(self, run: str) -> bool:
        """Whether a tool of this run had its effect."""
        return any(task_run.startswith(f"{run}:") for task_run in self.done)


def tools(ledger: EffectLedger) -> Callable[[str], Callable[[ToolCall], Awaitable[Outcome]]]:
    """The tool kinds of the simulation: `effect` counts its call, takes time, and fails a given number of times."""

    async def noop(call: ToolCall) -> Outcome:
        return ok(None)

    async def effect(call: ToolCall) -> Outcome:
        await block_if_dead()
        ledger.started[call.task_run_id] += 1
        await asyncio.sleep(float(call.input.get("takes") or 0.01))
        await block_if_dead()
        ledger.mark(call.task_run_id)
        if call.attempt <= int(call.input.get("fails") or 0):
            return error("server_error", "scripted failure")
        return ok(call.input.get("value"))

    return lambda kind: {"noop": noop, "effect": effect}[kind]


# ── processes ───────────────────────────────────────────────────────────────────────────


class ServerProcess:
    """A server process: a production orchestrator over the shared store."""

    def __init__(self, cluster: Cluster) -> None:
        self.process = Process("server")
        self._orchestrator: Orchestrator | None = None
        self._cluster = cluster

    async def start(self) -> None:
        """Start, watch the leases, and resume unfinished executions."""
        await asyncio.wait((self.process.start(self._start()),))

    async def _start(self) -> None:
        cluster = self._cluster
        orchestrator = build_orchestrator(
            Stores(cluster.store, cluster.playbooks, cluster.results, MemoryRunQueue(), cluster.limits),
            lambda: SPECS,
            clock=cluster.clock,
            nondeterminism=cluster.nondeterminism,
            options=Options(lease_seconds=LEASE_SECONDS, stored_timers=True),
        )
        await orchestrator.load_limits()
        orchestrator.start()
        await recovery.resume(orchestrator, waiting=False)
        self.process.start(WaitTimers(orchestrator, cluster.clock).run())
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

    async def start(self) -> None:
        """Start claiming runs."""
        await asyncio.wait((self.process.start(self._start()),))

    async def _start(self) -> None:
        cluster = self._cluster
        services = HostServices(cluster.results)
        runner = Runner(self.link, services, specs=SPECS, load=tools(cluster.ledger), clock=cluster.clock)
        pool = Pool(self.link, runner, worker=self.name, clock=cluster.clock, slots=3, heartbeat=LEASE_SECONDS / 4)
        self.link.on_lost_reply = pool.reconcile_soon
        await pool.start()

    def freeze(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """Freeze the worker: its link is silent, then works again."""
        self.link.freeze(loop, seconds)


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
    """One server, several workers, and their shared stores."""

    def __init__(
        self,
        injector: FaultInjector,
        clock: VirtualClock,
        texts: Mapping[str, str],
        workers: int = 2,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        self.injector = injector
        self.clock = clock
        self.texts = dict(texts)
        self.nondeterminism = SeededNondeterminism(clock, 7)
        self.store = FaultyStore(injector, clock)
        self.store.crash = self.crash_server
        self.store.on_append = self._check_lost_attempts
        self.playbooks = MemoryPlaybookStore()
        self.limits = MemoryTriggerStore()
        self.max_slots = dict(limits or {})
        self.results: Any = MemoryResultStore()
        self.ledger = EffectLedger()
        self.violations: list[str] = []  # invariants violated during the run
        self.received: set[tuple[str, str, int]] = set()  # worker, run and epoch of every received order
        self._restarted = 0.0  # time of the last server start
        self.server: ServerProcess | None = None
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

    def _check_lost_attempts(self, events: Sequence[Recorded]) -> None:
        """Check that only a worker that received the run, was frozen or crashed uses up an attempt: a run whose order
        was lost is returned without that, once a heartbeat got through."""
        workers = {worker.name: worker.link for worker in self.workers}
        for body in (each.body for each in events):
            if not isinstance(body, WorkerLost) or body.returned:
                continue
            link = workers.get(body.worker)
            run_id = iteration_id(body.step_run_id, body.path)
            if link is None or not link.awake.is_set() or (body.worker, run_id, body.epoch) in self.received:
                continue
            if self.clock.monotonic() - max(link.last_fault, self.store.last_fault, self._restarted) > GRACE_SECONDS:
                self.violations.append(f"{run_id}: {body.worker} lost an attempt of a run that it never received")

    def crash_server(self) -> None:
        """Crash the server; another one starts a little later."""
        server, self.server = self.server, None
        if server is not None:
            server.process.dead = True
            self.spawn(self._replace(server))

    async def submit(self, submission: Submission) -> str:
        """Submit until acknowledged, as a client with an idempotency key does."""
        return await self._until_acknowledged(lambda orchestrator: orchestrator.submit(submission))

    async def signal(self, execution_id: str, name: str, data: dict[str, Any]) -> None:
        """Send a signal until it is acknowledged, as a client with an idempotency key does."""
        await self._until_acknowledged(
            lambda orchestrator: orchestrator.signal(execution_id, name, data, id=f"{execution_id}-{name}")
        )

    async def _until_acknowledged(self, request: Callable[[Orchestrator], Coroutine[Any, Any, T]]) -> T:
        while True:
            server = self.server
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
                self.server = server
                self._restarted = self.clock.monotonic()
                return
            server.process.kill()
            await asyncio.sleep(0.5)

    async def _replace(self, dead: ServerProcess) -> None:
        dead.process.kill()
        await asyncio.sleep(DOWN_SECONDS)
        await self._new_server()

    async def _new_worker(self) -> None:
        self._worker_count += 1
        worker = WorkerProcess(self, self._worker_count)
        self.workers.append(worker)
        await worker.start()

    async def _inject_process_faults(self) -> None:
        """Crash and freeze processes and set clocks at random times."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(1.0)
            if self.injector.should_inject("server.crash"):
                self.crash_server()
            if self.injector.should_inject("worker.crash") and self.workers:
                self.workers.pop(self.injector.index(len(self.workers))).process.kill()
                await self._new_worker()
            if self.injector.should_inject("worker.sleep") and self.workers:
                worker = self.workers[self.injector.index(len(self.workers))]
                worker.freeze(loop, self.injector.uniform(1.0, 2.5 * LEASE_SECONDS))
            if self.injector.should_inject("clock.jump"):
                self.clock.jump(self.injector.uniform(-5.0, 5.0))

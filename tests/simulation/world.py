"""The simulated world: a disk that may fail, wires that lose and double, servers and workers that die.

A *server* is a real orchestrator over the shared store; when it crashes all its tasks end where they are
and a new one folds the logs. A *worker* is a real pool over a wire; when it crashes its runs end without
a word, when it sleeps (a zombie) its wire is silent for longer than a lease and then speaks again.
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
from noetl.server.concurrency.limits import KIND, Limit
from noetl.server.lifecycle import recovery
from noetl.server.orchestrator.catalog import Source, source_digest
from noetl.server.orchestrator.service import Orchestrator
from noetl.server.orchestrator.submissions import Submission
from noetl.storage.events.memory import MemoryEventStore
from noetl.storage.playbooks.memory import MemoryPlaybookStore
from noetl.storage.ports.events import Append
from noetl.storage.ports.triggers import StoredTrigger
from noetl.storage.queue.memory import MemoryRunQueue
from noetl.storage.triggers.memory import MemoryTriggerStore
from noetl.worker.pool import Pool
from noetl.worker.runner import Runner
from tests.simulation.faults import Dice
from tests.simulation.virtual import Process, VirtualClock, alive
from tests.simulation.wire import Crashed, FaultyLink

T = TypeVar("T")

LEASE_SECONDS = 10.0
DOWN_SECONDS = 2.0  # how long a server is gone
CALM = 7.0  # seconds without a fault within which a lost answer must have been made good


# ── the disk ────────────────────────────────────────────────────────────────────────────


class FaultyStore(MemoryEventStore):
    """The log, with a disk that is slow, away, or the last thing a server saw."""

    def __init__(self, dice: Dice, clock: VirtualClock) -> None:
        super().__init__()
        self._dice = dice
        self._clock = clock
        self.crash: Callable[[], None] = lambda: None
        self.witness: Callable[[Sequence[Recorded]], None] = lambda events: None
        self.troubled = 0.0  # when it last did what a disk should not
        self.acknowledged: dict[str, int] = {}
        self.order: list[Append] = []  # as they were committed

    async def append(self, append: Append) -> None:
        """Add events; what can go wrong with a disk may go wrong."""
        await alive()
        await asyncio.sleep(0.001)
        if self._dice.strikes("store.unavailable"):
            self.troubled = self._clock.monotonic()
            raise StoreUnavailable("the simulated disk is away")
        if self._dice.strikes("store.slow"):
            await asyncio.sleep(self._dice.between(0.1, 2.0))
            self.troubled = self._clock.monotonic()
        if self._dice.strikes("server.crash_before_commit"):
            self.crash()
            await alive()
        await alive()
        await super().append(append)
        self.order.append(append)
        self.witness(append.events)
        if self._dice.strikes("server.crash_after_commit"):
            self.crash()
            await alive()
        self.acknowledged[append.execution_id] = append.expected_seq + len(append.events)

    def log_of(self, execution_id: str) -> list[Recorded]:
        """The log as it is on disk."""
        return self._logs.get(execution_id, [])


class MemoryResults:
    """`ports.ResultStore` in memory."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

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
        """Keep it."""
        import hashlib

        data = b"".join([chunk async for chunk in chunks])
        digest = hashlib.sha256(data).hexdigest()
        self._kept[digest] = data
        return Reference("blob", {"key": digest}, ReferenceMeta(content_type, len(data), digest, rows=rows))

    async def open(self, reference: Reference, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Give it back."""
        data = self._kept.get(str(reference.locator.get("key")))
        if data is None:
            raise PayloadUnavailable("it was never kept")
        yield data[offset : None if length is None else offset + length]

    async def delete(self, reference: Reference) -> None:
        """Forget it."""
        self._kept.pop(str(reference.locator.get("key")), None)

    async def collect(self, now: float) -> int:
        """Nothing outlives anything here."""
        return 0

    async def forget(self, executions: Sequence[str]) -> int:
        """What is kept is named by its digest and stays."""
        return 0

    async def close(self) -> None:
        """Let go."""


# ── the tools ───────────────────────────────────────────────────────────────────────────

SPECS: dict[str, ToolSpec] = {
    "noop": ToolSpec(kind="noop", pure=True),
    "playbook": ToolSpec(
        kind="playbook", suspends=True, fields={"path": Field(type="string", required=True)}, open_fields=True
    ),
    "effect": ToolSpec(kind="effect", fields={"value": Field(), "fails": Field(), "takes": Field()}),
}


class Ledger:
    """What the tools did to the world: how often each visit's effect happened."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()

    def mark(self, task_run: str) -> None:
        """The effect of this attempt has happened."""
        self.done[task_run] += 1


def tools(ledger: Ledger) -> Callable[[str], Callable[[ToolCall], Awaitable[Outcome]]]:
    """The kinds of the simulation: `effect` leaves a mark, takes time, and fails as often as it is told."""

    async def noop(call: ToolCall) -> Outcome:
        return ok(None)

    async def effect(call: ToolCall) -> Outcome:
        await asyncio.sleep(float(call.input.get("takes") or 0.01))
        await alive()
        ledger.mark(call.task_run_id)
        if call.attempt <= int(call.input.get("fails") or 0):
            return error("server_error", "as it was told")
        return ok(call.input.get("value"))

    return lambda kind: {"noop": noop, "effect": effect}[kind]


# ── who lives in it ─────────────────────────────────────────────────────────────────────


class SimServer:
    """A server process: a real orchestrator over the shared disk."""

    def __init__(self, world: World) -> None:
        self.process = Process("server")
        self._orchestrator: Orchestrator | None = None
        self._world = world

    async def start(self) -> None:
        """Come up, watch leases, take over what is unfinished."""
        await asyncio.wait((self.process.start(self._start()),))

    async def _start(self) -> None:
        world = self._world
        orchestrator = Orchestrator(
            store=world.store,
            playbooks=world.playbooks,
            results=world.results,
            queue=MemoryRunQueue(),
            specs=lambda: SPECS,
            clock=world.clock,
            nondeterminism=world.nondeterminism,
            lease_seconds=LEASE_SECONDS,
            limits=world.limits,
        )
        await orchestrator.heed_limits()
        orchestrator.start()
        await recovery.resume(orchestrator)
        self._orchestrator = orchestrator

    @property
    def is_up(self) -> bool:
        """Whether it has taken everything over and answers."""
        return self._orchestrator is not None and not self.process.dead

    async def ask(self, question: Callable[[Orchestrator], Coroutine[Any, Any, T]], within: float) -> T:
        """One request; Crashed when the process ends before it has answered."""
        if self.process.dead or self._orchestrator is None:
            raise Crashed
        task = self.process.start(question(self._orchestrator))
        try:
            await asyncio.wait((task,), timeout=within)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not task.done():
            task.cancel()
            raise TimeoutError
        if task.cancelled():
            raise Crashed
        answer: T = task.result()
        return answer


class SimWorker:
    """A worker process: a real pool over a faulty wire."""

    def __init__(self, world: World, number: int) -> None:
        self.name = f"w{number}"
        self.process = Process(self.name)
        self.link = FaultyLink(world, self.name)
        self._world = world

    async def start(self) -> None:
        """Begin to claim."""
        await asyncio.wait((self.process.start(self._start()),))

    async def _start(self) -> None:
        world = self._world
        runner = Runner(self.link, world.results, specs=SPECS, load=tools(world.ledger), clock=world.clock)
        pool = Pool(self.link, runner, worker=self.name, clock=world.clock, slots=3, heartbeat=LEASE_SECONDS / 4)
        self.link.doubt = pool.doubt
        await pool.start()

    def sleep(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """Be a zombie: silent, then back as if nothing had happened."""
        self.link.sleep(loop, seconds)


class SimDraws:
    """Recorded chance, from the seed."""

    def __init__(self, clock: VirtualClock, seed: int) -> None:
        import random

        self._clock = clock
        self._random = random.Random(seed)

    def now(self) -> str:
        """The virtual instant."""
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


class World:
    """Everything there is."""

    def __init__(
        self,
        dice: Dice,
        clock: VirtualClock,
        texts: Mapping[str, str],
        workers: int = 2,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        self.dice = dice
        self.clock = clock
        self.texts = dict(texts)
        self.nondeterminism = SimDraws(clock, 7)
        self.store = FaultyStore(dice, clock)
        self.store.crash = self.crash_server
        self.store.witness = self._witness
        self.playbooks = MemoryPlaybookStore()
        self.limits = MemoryTriggerStore()
        self.most = dict(limits or {})
        self.results: Any = MemoryResults()
        self.ledger = Ledger()
        self.complaints: list[str] = []  # promises that were seen broken on the way
        self.heard: set[tuple[str, str, int]] = set()  # worker, run and epoch of every order that arrived
        self._restarted = 0.0  # when the last server came up
        self.server: SimServer | None = None
        self.workers: list[SimWorker] = []
        self._count = workers
        self._born = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._context = copy_context()

    async def begin(self) -> None:
        """One server, some workers, and fate."""
        for path, text in self.texts.items():
            await self.playbooks.register(path, source_digest(Source(text)), text, 0.0)
        for key, most in self.most.items():
            subject, _, name = key.partition(" ")
            limit = Limit(subject, name, most)  # type: ignore[arg-type]
            await self.limits.add(StoredTrigger(KIND, key, msgspec.json.encode(limit)))
        await self._new_server()
        for _ in range(self._count):
            await self._new_worker()
        self.spawn(self._fate())

    def spawn(self, deed: Coroutine[Any, Any, Any]) -> None:
        """Let something happen beside everything else, in no process."""
        task = asyncio.get_running_loop().create_task(deed, context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def has_passed_on(self, report: Report) -> bool:
        """Whether the log says that this run, still open, is in other hands."""
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

    def length_of(self, report: Report) -> int:
        """How long the log of a report's execution is."""
        return len(self.store.log_of(split_run_id(report.run_id)[0]))

    def was_believed(self, report: Report, before: int) -> bool:
        """Whether a task of this report was written into the log after it had this length.

        That the answer was yes does not say so: a run that somebody else has ended the same way is known."""
        told = {_attempt(event) for event in report.events if isinstance(event, TaskDone)}
        log = self.store.log_of(split_run_id(report.run_id)[0])
        return any(_attempt(each.body) in told for each in log[before:] if isinstance(each.body, TaskDone))

    def _witness(self, events: Sequence[Recorded]) -> None:
        """An attempt is used up only by a worker that knew of the run, was silent or is no more: what nobody has begun
        is given on without that, once the faults have let a heartbeat pass."""
        workers = {worker.name: worker.link for worker in self.workers}
        for body in (each.body for each in events):
            if not isinstance(body, WorkerLost) or body.returned:
                continue
            link = workers.get(body.worker)
            run_id = iteration_id(body.step_run_id, body.path)
            if link is None or not link.awake.is_set() or (body.worker, run_id, body.epoch) in self.heard:
                continue
            if self.clock.monotonic() - max(link.troubled, self.store.troubled, self._restarted) > CALM:
                self.complaints.append(f"{run_id}: {body.worker} lost an attempt at what it had never heard of")

    def crash_server(self) -> None:
        """The server process dies now; another one comes up a little later."""
        server, self.server = self.server, None
        if server is not None:
            server.process.dead = True
            self.spawn(self._replace(server))

    async def submit(self, submission: Submission) -> str:
        """Ask until it is acknowledged, as a client with an idempotency key does."""
        while True:
            server = self.server
            if server is not None:
                try:
                    return await server.ask(lambda orchestrator: orchestrator.submit(submission), 30.0)
                except (Crashed, StoreUnavailable, TimeoutError):
                    pass
            await asyncio.sleep(0.3)

    async def _new_server(self) -> None:
        while True:
            server = SimServer(self)
            await server.start()
            if server.is_up:
                self.server = server
                self._restarted = self.clock.monotonic()
                return
            server.process.kill()
            await asyncio.sleep(0.5)

    async def _replace(self, dead: SimServer) -> None:
        dead.process.kill()
        await asyncio.sleep(DOWN_SECONDS)
        await self._new_server()

    async def _new_worker(self) -> None:
        self._born += 1
        worker = SimWorker(self, self._born)
        self.workers.append(worker)
        await worker.start()

    async def _fate(self) -> None:
        """Processes die, sleep and have their clocks set, out of the blue."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(1.0)
            if self.dice.strikes("server.crash"):
                self.crash_server()
            if self.dice.strikes("worker.crash") and self.workers:
                self.workers.pop(self.dice.choose(len(self.workers))).process.kill()
                await self._new_worker()
            if self.dice.strikes("worker.sleep") and self.workers:
                worker = self.workers[self.dice.choose(len(self.workers))]
                worker.sleep(loop, self.dice.between(1.0, 2.5 * LEASE_SECONDS))
            if self.dice.strikes("clock.jump"):
                self.clock.jump(self.dice.between(-5.0, 5.0))

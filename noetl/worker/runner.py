"""One run from its lease to its last event: ask the pipeline, do the deed, report, ask again.

Before a tool touches the world its start is on disk: by the append that gave the lease, or by
the report that carries the task before it. Kinds that change nothing (`ToolSpec.pure`) do not wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from noetl.core.model.events import (
    Event,
    IterationFailed,
    StepFailed,
    TaskProgress,
    instant,
)
from noetl.core.model.outcome import ERROR_KINDS, ErrorInfo, Outcome, error, error_info
from noetl.core.model.playbook import OutputPolicy, Step, Task
from noetl.core.model.position import Position
from noetl.core.model.tool import ToolCall, ToolFunction, ToolSpec
from noetl.core.model.work import Item, RunOrder
from noetl.core.pipeline.actions import Finished, KnownOutcome, RunTask, Suspend, Wait
from noetl.core.pipeline.advance import abort, abort_calls, apply_outcome, next_action
from noetl.core.pipeline.frame import Frame, open_frame
from noetl.core.pipeline.nondeterminism_log import NondeterminismLog
from noetl.core.pipeline.program import Program
from noetl.core.pipeline.scopes import NeedsSecret
from noetl.core.templates.template import compile_value
from noetl.core.templates.views import NeedsPayload
from noetl.errors import NoetlError, PayloadUnavailable, SecretUnavailable, StoreUnavailable, TemplateError
from noetl.observability import logging as logs
from noetl.observability import tracing
from noetl.runtime.clock import Clock
from noetl.runtime.network_policy import AddressPolicy
from noetl.runtime.nondeterminism import SystemNondeterminism
from noetl.storage.ports.results import ResultStore
from noetl.storage.ports.work_link import WorkLink
from noetl.worker.cache import PlaybookCache, Secrets
from noetl.worker.collections import StoredCollections
from noetl.worker.event_masking import mask_event, mask_outcome
from noetl.worker.host import Surroundings, TaskHost, Watcher
from noetl.worker.payloads import Payloads, is_parked
from noetl.worker.reports import RunReports
from noetl.worker.tool_call import BadSpec, call_tool, timeout_of

TURN = 8  # tasks of a run before others have their turn
OPENING_PAUSES = (0.1, 0.5, 1.0, 2.0, 5.0)
PROGRESS_AFTER = 2.0  # seconds that a task runs before its progress is worth an event
PROGRESS_EVERY = 5.0  # seconds between two of them

T = TypeVar("T")

_log = logging.getLogger("noetl.work")


class Job:
    """A run in this worker's hands."""

    __slots__ = ("deadlines", "frame", "limit", "order", "outlet", "parked", "rest", "secrets")

    def __init__(
        self, order: RunOrder, outlet: RunReports, frame: Frame, secrets: Secrets, rest: Callable[[bool], None]
    ):
        self.order = order
        self.outlet = outlet
        self.frame = frame
        self.secrets = secrets
        self.limit = frame.playbook.executor.limits.max_payload_bytes
        self.parked: dict[int, tuple[Any, Any]] = {}
        self.deadlines: dict[int, float] = {}  # depth of a workbook call -> instant at which its time is up
        self.rest = rest


class Counter:
    """Tells the server how far a task is, but not too often."""

    __slots__ = ("_action", "_job", "_next", "_runner")

    def __init__(self, runner: Runner, job: Job, action: RunTask, started: float) -> None:
        self._runner = runner
        self._job = job
        self._action = action
        self._next = started + PROGRESS_AFTER

    def __call__(self, counts: dict[str, float]) -> None:
        """The task has come so far."""
        now = self._runner.clock.monotonic()
        if not self._runner.progress_events or now < self._next:
            return
        self._next = now + PROGRESS_EVERY
        order, action = self._job.order, self._action
        event = TaskProgress(
            step=order.context.step,
            step_run_id=order.context.step_run_id,
            task=action.label,
            visit=action.visit,
            attempt=action.attempt,
            path=order.path,
            counts={name: float(value) for name, value in counts.items()},
        )
        self._job.outlet.queue((event,))


class Runner:
    """Carries out run orders."""

    def __init__(
        self,
        link: WorkLink,
        results: ResultStore,
        *,
        specs: Mapping[str, ToolSpec],
        load: Callable[[str], ToolFunction],
        clock: Clock,
        policy: AddressPolicy | None = None,
        watcher: Watcher | None = None,
        progress_events: bool = True,
    ) -> None:
        self.library = PlaybookCache(link, specs, clock)
        self.payloads = Payloads(results)
        self.around = Surroundings(results, policy or AddressPolicy(), watcher or Watcher())
        self._collections = StoredCollections(results)
        self._specs = specs
        self._load = load
        self.clock = self._clock = clock
        self._nondeterminism = SystemNondeterminism(clock)
        self.progress_events = progress_events
        self._tools: dict[str, tuple[ToolFunction, bool]] = {}
        self._second = (0, "")

    async def run(
        self, order: RunOrder, outlet: RunReports, rest: Callable[[bool], None] = lambda resting: None
    ) -> None:
        """Carry out one order; its last events are handed to the outlet before this returns."""
        context = order.context
        ids = {"execution_id": context.execution_id, "step": context.step, "run_id": order.run_id}
        masker = self.library.secrets(context.execution_id).masker
        if tracing.ACTIVE is None:
            logs.begin(masker, ids)
            await self._carry_out(order, outlet, rest)
            return
        traced = tracing.ACTIVE.run(context.execution_id, context.trace, order.run_id, context.step)
        with traced as trace_id:
            logs.begin(masker, ids | {"trace_id": trace_id})
            await self._carry_out(order, outlet, rest)

    async def _carry_out(self, order: RunOrder, outlet: RunReports, rest: Callable[[bool], None]) -> None:
        job: Job | None = None
        try:
            job = await self._open(order, outlet, rest)
            if order.timeout_s is None:
                await self._drive(job)
                return
            try:
                async with asyncio.timeout(order.timeout_s) as limit:
                    await self._drive(job)
            except TimeoutError:
                if not limit.expired():
                    raise
                message = f"the step's time is up: {order.timeout_s:g} s (lifecycle.timeout_s, deadline_s)"
                await self._end(job, error_info("timeout", message))
        except NoetlError as problem:
            await self._fail(order, outlet, job, problem)

    # ── opening ─────────────────────────────────────────────────────────────────────────

    async def _open(self, order: RunOrder, outlet: RunReports, rest: Callable[[bool], None]) -> Job:
        context = order.context
        programs = self.library.known_programs(context.playbook)
        if programs is None:
            programs = await self._patiently(lambda: self.library.programs(context.playbook))
        shared = self.library.shared(context, programs)
        values: list[Any] | None = None
        if order.items and any(item.collection is not None for item in order.items):
            values = [
                item.value if item.collection is None else await self._patiently(partial(self._element, item))
                for item in order.items
            ]
        if order.position is not None or order.step_scope:
            order = await self._patiently(partial(self._unpark, order))
        frame = open_frame(order, programs, shared, NondeterminismLog(self._nondeterminism), values)
        return Job(order, outlet, frame, self.library.secrets(context.execution_id), rest)

    async def _patiently(self, fetch: Callable[[], Awaitable[T]]) -> T:
        """Fetch what the run needs to begin; a back end that is away for a moment does not fail it."""
        for pause in OPENING_PAUSES:
            try:
                return await fetch()
            except StoreUnavailable as problem:
                _log.warning("a run has to wait for what it needs: %s", problem)
                await self._clock.sleep(pause)
        return await fetch()

    async def _element(self, item: Item) -> Any:
        assert item.collection is not None
        return await self._collections.element(item.collection, item.index)

    async def _unpark(self, order: RunOrder) -> RunOrder:
        """Bring back what an earlier lease put into the store."""
        position, scope = order.position, order.step_scope
        if position is not None:
            position = await self.payloads.unpark(position)
            assert isinstance(position, Position)
        if any(is_parked(value) for value in scope.values()):
            scope = await self.payloads.unpark(scope)
        return replace(order, position=position, step_scope=scope)

    # ── driving ─────────────────────────────────────────────────────────────────────────

    async def _drive(self, job: Job) -> None:
        frame, outlet = job.frame, job.outlet
        pending: tuple[Event, ...] = ()
        ran = 0
        while True:
            try:
                action = next_action(frame)
            except (NeedsPayload, NeedsSecret) as need:
                await self._provide(job, need)
                continue
            pending += action.events
            if isinstance(action, RunTask):
                run, pure = self._tool(action.task.kind)
                sent = pending if self._plain(job, pending) else await self._packed(job, pending)
                if pure or action.start_recorded:
                    outlet.queue(sent)
                else:
                    await outlet.flush(sent)
                ran += 1
                if ran % TURN == 0:
                    await asyncio.sleep(0)  # tasks that wait for nothing would keep all others waiting
                outcome = await self._run_task(job, action, run)
                pending = await self._apply(job, action.task, outcome, action.task_run_id)
            elif isinstance(action, KnownOutcome):
                # What was pending is settled by the event that follows: they leave in one report.
                outcome = self._with_meta(action.outcome, frame.top.attempt)
                pending += await self._apply(job, action.task, outcome, frame.run_id)
            elif isinstance(action, Wait):
                await outlet.flush(await self._packed(job, pending))
                pending = ()
                await self._rest(job, action.seconds)
            elif isinstance(action, Suspend):
                outlet.finish(await self._packed(job, pending))
                return
            else:
                await self._finish(job, action, pending)
                return

    async def _apply(self, job: Job, task: Task, outcome: Outcome, name: str) -> tuple[Event, ...]:
        """Pack the outcome, then let the pipeline judge it."""
        frame = job.frame
        compiled = frame.top.compiled
        masker = job.secrets.masker
        recorded: Outcome | None = None
        shown = mask_outcome(masker, outcome) if masker else outcome
        if shown is not outcome or not self.payloads.fits(shown, job.limit, task.output, stored=compiled.stored):
            policy = self._output_policy(job, task)
            packed, recorded = await self.payloads.pack(
                shown,
                name=f"{job.order.context.execution_id}/{job.order.context.step}/{name.partition(':')[2]}",
                limit=job.limit,
                policy=policy,
                stored=compiled.stored and outcome.status == "ok",
            )
            if packed.status == outcome.status:
                outcome = replace(outcome, ref=packed.ref)  # the data stays as the tool gave it
            else:
                outcome = packed
        while True:
            try:
                return apply_outcome(frame, outcome, recorded)
            except (NeedsPayload, NeedsSecret) as need:
                await self._provide(job, need)

    def _output_policy(self, job: Job, task: Task) -> OutputPolicy:
        """`output: {store}` with its templates rendered; one that cannot be leaves the store to the size."""
        policy = task.output
        store = compile_value(policy.store)
        if store.static:
            return policy
        try:
            return replace(policy, store=store.evaluate(job.frame.top.names))
        except TemplateError as problem:
            _log.warning("%s: output.store: %s", job.frame.playbook.where(task.path), problem)
            return replace(policy, store={})

    async def _finish(self, job: Job, finished: Finished, pending: tuple[Event, ...]) -> None:
        output, results = finished.recorded, finished.results
        if tracing.ACTIVE is not None:
            tracing.failed(output.error)
        program = job.frame.root.program
        step = program.owner
        assert isinstance(step, Step)
        if output.ref is not None or step.output.store or program.stored or results:
            output, results = await self._packed_output(job, finished, program, step)
        sent = (*pending, finished.event(output, results))
        job.outlet.finish(sent if self._plain(job, sent) else await self._packed(job, sent))

    async def _packed_output(
        self, job: Job, finished: Finished, program: Program, step: Step
    ) -> tuple[Outcome, dict[str, Outcome]]:
        name = f"{job.order.context.execution_id}/{step.name}/{job.frame.run_id.partition(':')[2]}"
        masker = job.secrets.masker
        output = await self.payloads.final(
            mask_outcome(masker, finished.outcome) if masker else finished.outcome,
            finished.recorded,
            step=step,
            looping=finished.looping,
            name=name,
            limit=job.limit,
            stored=program.stored,
        )
        results = finished.results
        if results:
            results = await self.payloads.fit_results(results, name, job.limit)
        return output, results

    async def _end(self, job: Job, problem: ErrorInfo) -> None:
        """End the run with an error of its own."""
        while True:
            try:
                finished = abort(job.frame, problem)
                break
            except (NeedsPayload, NeedsSecret) as need:
                await self._provide(job, need)
        await self._finish(job, finished, finished.events)

    async def _fail(self, order: RunOrder, outlet: RunReports, job: Job | None, problem: NoetlError) -> None:
        """What stopped the run is not the author's: say so in the run's last event."""
        kind = getattr(problem, "kind", "unknown")
        told = error_info(kind if kind in ERROR_KINDS else "unknown", str(problem))
        if job is not None:
            await self._end(job, told)
            return
        outlet.finish((failure_of(order, told),))

    # ── one task ────────────────────────────────────────────────────────────────────────

    def _tool(self, kind: str) -> tuple[ToolFunction, bool]:
        known = self._tools.get(kind)
        if known is None:
            spec = self._specs.get(kind)
            known = self._tools[kind] = (self._load(kind), spec is not None and spec.pure)
        return known

    async def _run_task(self, job: Job, action: RunTask, run: ToolFunction) -> Outcome:
        order, clock = job.order, self._clock
        context = order.context
        where, code_line = job.frame.programs.location_of(action.task)
        began = clock.now()
        started = clock.monotonic()
        try:
            call = ToolCall(
                kind=action.task.kind,
                input=action.input,
                spec=action.spec,
                host=TaskHost(
                    (context.execution_id, context.step, action.label, action.task_run_id),
                    job.frame.playbook.file,
                    job.secrets,
                    self.around,
                    Counter(self, job, action, started),
                ),
                execution_id=context.execution_id,
                step=context.step,
                task=action.label,
                task_run_id=action.task_run_id,
                attempt=action.attempt,
                timeout=timeout_of(action.spec),
                scopes=action.scopes,
                where=where,
                code_line=code_line,
            )
            if tracing.ACTIVE is None:
                outcome = await self._call(job, run, call)
            else:
                with tracing.ACTIVE.task(action.task_run_id, action.label, call.kind, action.attempt) as span:
                    outcome = await self._call(job, run, call)
                    tracing.outcome(span, outcome)
        except BadSpec as problem:
            outcome = error("schema", f"{where}: {problem}")
        meta = {
            **outcome.meta,
            "attempt": action.attempt,
            "duration_ms": round((clock.monotonic() - started) * 1000, 3),
            "ts": self._stamp(began),
        }
        return replace(outcome, meta=meta)

    def _with_meta(self, outcome: Outcome, attempt: int) -> Outcome:
        """An outcome that no tool gave here, with what every outcome says of itself; how long it took is not known."""
        known = {"attempt": attempt, "duration_ms": None, "ts": self._stamp(self._clock.now())}
        return replace(outcome, meta={**known, **outcome.meta})

    def _stamp(self, at: float) -> str:
        """The instant as ISO 8601 text; the second is written once and kept."""
        second = int(at)
        if second != self._second[0]:
            self._second = (second, instant(second)[:19])
        return f"{self._second[1]}.{int((at - second) * 1e6):06d}Z"

    async def _call(self, job: Job, run: ToolFunction, call: ToolCall) -> Outcome:
        if len(job.frame.levels) == 1:
            return await call_tool(run, call, self._clock)
        return await self._inside_calls(job, run, call)

    async def _inside_calls(self, job: Job, run: ToolFunction, call: ToolCall) -> Outcome:
        """Run a tool of a called block within what is left of its callers' own time."""
        depth, left = self._time_left(job)
        if left is None:
            return await call_tool(run, call, self._clock)
        try:
            async with asyncio.timeout(max(left, 0)) as limit:
                return await call_tool(run, call, self._clock)
        except TimeoutError:
            if not limit.expired():
                raise
        abort_calls(job.frame, depth)
        job.deadlines = {number: at for number, at in job.deadlines.items() if number < depth}
        return error("timeout", "the called block took longer than the calling task's spec.timeout")

    def _time_left(self, job: Job) -> tuple[int, float | None]:
        """The call whose time is up first: its depth, and the seconds it has left."""
        now = self._clock.monotonic()
        levels = job.frame.levels
        job.deadlines = {depth: at for depth, at in job.deadlines.items() if depth < len(levels)}
        for depth in range(1, len(levels)):
            caller = levels[depth - 1].compiled
            total = timeout_of(caller.static_spec).total
            if total is not None:
                job.deadlines.setdefault(depth, now + total)
        if not job.deadlines:
            return 0, None
        depth = min(job.deadlines, key=lambda depth: job.deadlines[depth])
        return depth, job.deadlines[depth] - now

    async def _rest(self, job: Job, seconds: float) -> None:
        """Wait without keeping others from working."""
        job.rest(True)
        try:
            _, left = self._time_left(job)
            await self._clock.sleep(seconds if left is None else max(0.0, min(seconds, left)))
        finally:
            job.rest(False)

    # ── what templates ask for ──────────────────────────────────────────────────────────

    async def _provide(self, job: Job, need: NeedsPayload | NeedsSecret) -> None:
        """Fetch what a template needs; what cannot be had becomes that template's error."""
        frame = job.frame
        if isinstance(need, NeedsSecret):
            try:
                frame.keychain.provide(await job.secrets.get([need.secret]))
            except SecretUnavailable as problem:
                frame.keychain.fail(need.secret, str(problem))
            return
        limit = frame.playbook.executor.limits.max_hydrate_bytes
        try:
            data = await self.payloads.read(need.reference, limit=limit)
        except PayloadUnavailable as problem:
            frame.shared.fail(need.reference, str(problem), problem.kind)
            return
        frame.shared.provide(need.reference, data)
        self.library.note_hydrated(need.reference.meta.bytes)

    # ── what leaves ─────────────────────────────────────────────────────────────────────

    def _plain(self, job: Job, events: tuple[Event, ...]) -> bool:
        """Whether the events can leave just as they are."""
        return not job.secrets.masker and not self.payloads.must_park(events, job.limit)

    async def _packed(self, job: Job, events: tuple[Event, ...]) -> tuple[Event, ...]:
        """The events without secrets and without large private values."""
        masker = job.secrets.masker
        if masker:
            events = tuple(mask_event(masker, event) for event in events)
        if self.payloads.must_park(events, job.limit):
            context = job.order.context
            name = f"{context.execution_id}/{context.step}/{job.frame.run_id.partition(':')[2]}"
            events = await self.payloads.park(events, name, job.limit, job.parked)
        return events


def failure_of(order: RunOrder, problem: ErrorInfo) -> Event:
    """The terminal event of a run that could not even begin."""
    output = Outcome(status="error", error=problem)
    context = order.context
    if order.path or order.items:
        return IterationFailed(step=context.step, step_run_id=context.step_run_id, path=order.path, output=output)
    return StepFailed(step=context.step, step_run_id=context.step_run_id, output=output)

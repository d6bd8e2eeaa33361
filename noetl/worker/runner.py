"""Execution of one run, from its lease to its last event: the pipeline decides, the runner calls tools and reports.

Before a tool can have effects its start is stored: by the append that granted the lease, or by the report of the
task before it. Kinds without effects (`ToolSpec.pure`) do not wait for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct, field
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
from noetl.core.model.position import Item, Position
from noetl.core.model.quotas.token_bucket import Demand
from noetl.core.model.reference import Reference, is_stored
from noetl.core.model.tool import ToolCall, ToolFunction, ToolSpec
from noetl.core.model.work import RunOrder
from noetl.core.pipeline.actions import Finished, KnownOutcome, RecordedInput, RunTask, Suspend, TakeToken, Wait
from noetl.core.pipeline.advance import abort, abort_calls, apply_outcome, final_tasks, next_action, start_final
from noetl.core.pipeline.error_locations import MISSING_DATA
from noetl.core.pipeline.frame import Frame, open_frame
from noetl.core.pipeline.nondeterminism_log import NondeterminismLog
from noetl.core.pipeline.quotas import next_turn, token_taken, wait_for_token
from noetl.core.pipeline.scopes import NeedsSecret
from noetl.core.templates.template import compile_value
from noetl.core.templates.views import NeedsPayload, NeedsReference
from noetl.errors import NoetlError, PayloadUnavailable, SecretUnavailable, StoreUnavailable, TemplateError
from noetl.observability import logging as logs
from noetl.observability import tracing
from noetl.runtime.clock import Clock
from noetl.runtime.nondeterminism import SystemNondeterminism
from noetl.storage.ports.work_link import WorkLink
from noetl.worker.cache import PlaybookCache, Secrets, expiring_entries, inline_entries
from noetl.worker.collections import StoredCollections
from noetl.worker.event_masking import bounded_error, mask_event, mask_outcome
from noetl.worker.host import HostServices, TaskHost
from noetl.worker.payloads import Payloads
from noetl.worker.quotas import MAX_QUOTA_SLEEP, WorkerQuotas
from noetl.worker.reports import RunEnded, RunReports
from noetl.worker.schemas import Schemas
from noetl.worker.task_inputs import InputRecorder
from noetl.worker.tool_call import BadSpec, BeforeRetry, call_tool, timeout_of

TASKS_PER_TURN = 8  # tasks of a run before it yields to the event loop
FETCH_PAUSES = (0.1, 0.5, 1.0, 2.0, 5.0)  # seconds between attempts to fetch what a run needs
FINALLY_SECONDS = 4.0  # that a `finally` task of a cancelled run may take
PROGRESS_AFTER = 2.0  # seconds until the first progress event of a task
PROGRESS_EVERY = 5.0  # seconds between two progress events

T = TypeVar("T")

_log = logging.getLogger("noetl.work")


class ActiveRun(Struct, eq=False):
    """The state of a run while it is executed."""

    order: RunOrder
    reports: RunReports
    frame: Frame
    secrets: Secrets
    set_waiting: Callable[[bool], None]
    limit: int  # bytes of a value in an event
    offloaded: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    deadlines: dict[int, float] = field(default_factory=dict)  # depth of a workbook call -> its deadline
    attributes: dict[str, Any] = field(default_factory=dict)  # the playbook's own attributes of spans


class ProgressReporter(Struct, eq=False):
    """Reports a task's progress at a limited rate."""

    _runner: Runner
    _active: ActiveRun
    _action: RunTask
    _next: float

    def __call__(self, counts: dict[str, float]) -> None:
        """Queue a progress event if one is due."""
        now = self._runner.clock.monotonic()
        if not self._runner.progress_events or now < self._next:
            return
        self._next = now + PROGRESS_EVERY
        order, action = self._active.order, self._action
        event = TaskProgress(
            step=order.context.step,
            step_run_id=order.context.step_run_id,
            task=action.label,
            visit=action.visit,
            attempt=action.attempt,
            path=order.path,
            counts={name: float(value) for name, value in counts.items()},
        )
        self._active.reports.queue((event,))


class Runner:
    """Executes run orders."""

    def __init__(
        self,
        link: WorkLink,
        services: HostServices,
        *,
        specs: Mapping[str, ToolSpec],
        load: Callable[[str], ToolFunction],
        clock: Clock,
        progress_events: bool = True,
    ) -> None:
        self.cache = PlaybookCache(link, specs, clock, services.bundles)
        self.services = services
        self.payloads = Payloads(services.results)
        self._inputs = InputRecorder(self.payloads) if services.record_inputs else None
        self._schemas = Schemas(link, services.results, clock)
        self._quotas = WorkerQuotas(link)
        self._collections = StoredCollections(services.results)
        self._specs = specs
        self._load = load
        self.clock = self._clock = clock
        self._nondeterminism = SystemNondeterminism(clock)
        self.progress_events = progress_events
        self._tools: dict[str, tuple[ToolFunction, bool]] = {}
        self._second = (0, "")

    async def run(
        self, order: RunOrder, reports: RunReports, set_waiting: Callable[[bool], None] = lambda waiting: None
    ) -> None:
        """Execute one order; its last events are in `reports` when this returns."""
        context = order.context
        ids = {"execution_id": context.execution_id, "step": context.step, "run_id": order.run_id}
        masker = self.cache.secrets(context.execution_id).masker
        logs.set_log_context(masker, ids)
        try:
            active = await self._open(order, reports, set_waiting)
            policy = active.frame.playbook.executor.tracing
            trace = tracing.trace_of(policy, context.execution_id, context.trace)
            if trace is None:
                await self._execute(active)
                return
            logs.set_log_context(masker, ids | {"trace_id": trace.text})
            active.attributes = tracing.attributes_of(policy, context.workload, context.execution_id)
            with tracing.run_span(trace, context.execution_id, order.run_id, context.step, active.attributes):
                await self._execute(active)
        except NoetlError as problem:
            reports.finish((failure_of(order, _error_of(problem)),))

    async def _execute(self, active: ActiveRun) -> None:
        seconds = active.order.timeout_s
        try:
            if seconds is None:
                await self._drive(active)
                return
            try:
                async with asyncio.timeout(seconds) as limit:
                    await self._drive(active)
            except TimeoutError:
                if not limit.expired():
                    raise
                message = f"the step exceeded its timeout of {seconds:g} s (lifecycle.timeout_s, deadline_s)"
                await self._run_finally(active)
                await self._end(active, error_info("timeout", message))
        except NoetlError as problem:
            await self._end(active, _error_of(problem))
        except (asyncio.CancelledError, RunEnded):
            if active.reports.revoked:  # else another worker continues the run
                await self._run_finally(active)
            raise

    async def _run_finally(self, active: ActiveRun) -> None:
        """Run the `finally` tasks of a run that is ended from outside, within the grace period; the log has no events
        of them, because the run has ended there."""
        for level, index in final_tasks(active.frame):
            has_begun = index == level.current
            try:
                async with asyncio.timeout(FINALLY_SECONDS):
                    task = level.program.tasks[index].task
                    if task.effect == "at_most_once" and (has_begun or await self._may_have_run(active)):
                        _log.warning("finally: task %s may have run already, and is not run again", task.name)
                        continue
                    action = start_final(active.frame, level, index)
                    if isinstance(action, RunTask):
                        outcome = await self._run_task(active, action, self._tool(action.task.kind)[0])
                        if outcome.error is not None:
                            _log.warning("finally: task %s failed: %s", action.label, outcome.error.message)
            except TimeoutError:
                _log.warning(
                    "finally: a task of step %s took more than %g s", active.order.context.step, FINALLY_SECONDS
                )
            except (*MISSING_DATA, NoetlError) as problem:
                _log.warning("finally: a task of step %s could not run: %s", active.order.context.step, problem)

    async def _may_have_run(self, active: ActiveRun) -> bool:
        """Whether another worker may have executed the rest of a run that is ended from outside."""
        reports = active.reports
        if reports.revoked:
            return reports.doubtful
        try:
            await reports.confirm(())
        except RunEnded:
            return True
        return False

    # ── opening ─────────────────────────────────────────────────────────────────────────

    async def _open(self, order: RunOrder, reports: RunReports, set_waiting: Callable[[bool], None]) -> ActiveRun:
        context = order.context
        programs = self.cache.known_programs(context.playbook)
        if programs is None:
            programs = await self._retry_unavailable(lambda: self.cache.programs(context.playbook))
        shared = self.cache.shared(context, programs)
        values: list[Any] | None = None
        if order.items and any(item.collection is not None for item in order.items):
            values = [
                item.value if item.collection is None else await self._retry_unavailable(partial(self._element, item))
                for item in order.items
            ]
        stored_args = any(map(is_stored, context.args.values()))
        if order.position is not None or order.step_scope or context.output is not None or stored_args:
            order = await self._retry_unavailable(partial(self._restore, order))
        frame = open_frame(order, programs, shared, NondeterminismLog(self._nondeterminism), values)
        limit = frame.playbook.executor.limits.max_payload_bytes
        secrets = self.cache.secrets(context.execution_id)
        if frame.playbook.keychain:
            secrets.expiring = expiring_entries(frame.playbook.keychain)
            secrets.inline = inline_entries(frame.playbook.keychain)
        return ActiveRun(order, reports, frame, secrets, set_waiting, limit)

    async def _retry_unavailable(self, fetch: Callable[[], Awaitable[T]]) -> T:
        """Fetch what the run needs to start, with retries while a back end is unavailable."""
        for pause in FETCH_PAUSES:
            try:
                return await fetch()
            except StoreUnavailable as problem:
                _log.warning("fetching the data of a run failed, retrying: %s", problem)
                await self._clock.sleep(pause)
        return await fetch()

    async def _element(self, item: Item) -> Any:
        assert item.collection is not None
        return await self._collections.element(item.collection, item.index)

    async def _restore(self, order: RunOrder) -> RunOrder:
        """Read back the values that an earlier lease offloaded."""
        position, scope = order.position, order.step_scope
        if position is not None:
            position = await self.payloads.restore(position)
            assert isinstance(position, Position)
        if any(is_stored(value) for value in scope.values()):
            scope = await self.payloads.restore(scope)
        context = order.context
        if any(map(is_stored, context.args.values())):
            context = replace(context, args=await self.payloads.restore(context.args))
        if context.output is not None:  # a compensation: the recorded input of the run that it undoes
            context = replace(context, input=await self.payloads.restore(context.input))
        return replace(order, position=position, step_scope=scope, context=context)

    # ── driving ─────────────────────────────────────────────────────────────────────────

    async def _drive(self, active: ActiveRun) -> None:
        frame, reports = active.frame, active.reports
        step: Any = frame.root.program.owner
        checks_input = (
            step.validation is not None and step.validation.input is not None and frame.order.position is None
        )
        pending: tuple[Event, ...] = ()
        ran = 0
        while True:
            try:
                action = next_action(frame)
            except MISSING_DATA as need:
                await self._provide(active, need)
                continue
            pending += action.events
            if checks_input:
                checks_input = False
                problem = await self._schemas.problem("input", step.validation.input, frame.root.input)
                if problem is not None:
                    await self._end(active, problem)
                    return
            if isinstance(action, RunTask):
                ran += 1
                if ran % TASKS_PER_TURN == 0:
                    await asyncio.sleep(0)  # tasks that never wait would block the event loop
                pending = await self._perform(active, action, pending)
            elif isinstance(action, TakeToken):
                if await self._take_token(active, action, pending):
                    pending = ()
                else:
                    return
            elif isinstance(action, KnownOutcome):
                # The pending events are completed by the next event: all go into one report.
                outcome = self._with_meta(action.outcome, frame.top.attempt)
                if action.task.validation is not None and outcome.status == "ok":
                    outcome = await self._schemas.checked(action.task.validation.output, outcome)
                pending += await self._apply(active, action.task, outcome, frame.run_id)
            elif isinstance(action, Wait):
                await reports.flush(await self._prepare_events(active, pending))
                pending = ()
                await self._wait(active, action.seconds)
            elif isinstance(action, Suspend):
                reports.finish(await self._prepare_events(active, pending))
                return
            else:
                await self._finish(active, action, pending)
                return

    async def _perform(self, active: ActiveRun, action: RunTask, pending: tuple[Event, ...]) -> tuple[Event, ...]:
        """Run the tool of a task after its start is reported, and apply the outcome."""
        frame, reports = active.frame, active.reports
        run, pure = self._tool(action.task.kind)
        sent = pending if self._sendable(active, pending) else await self._prepare_events(active, pending)
        if action.task.effect == "at_most_once":
            await reports.confirm(sent)
        elif pure or (action.start_recorded and not active.order.alone):
            reports.queue(sent)
        else:
            await reports.flush(sent)
        reports.begun = reports.begun or not pure
        if action.task.validation is None:
            outcome = await self._run_task(active, action, run)
        else:
            outcome = await self._run_validated(active, action, run)
        if action.quotas:
            await self._quotas.pause(action.quotas, outcome)
        task_input = None if self._inputs is None else await self._inputs.record(frame, action, active.secrets)
        return await self._apply(active, action.task, outcome, action.task_run_id, task_input)

    async def _take_token(self, active: ActiveRun, action: TakeToken, pending: tuple[Event, ...]) -> bool:
        """Take a token of a quota; False: the run is released until its turn."""
        masker = active.secrets.masker
        if masker:
            action = replace(action, demand=replace(action.demand, key=masker.mask(action.demand.key)))
        while True:
            reply = await self._retry_unavailable(partial(self._quotas.take, action.demand, action.turn))
            if reply.seconds > MAX_QUOTA_SLEEP:
                released = wait_for_token(active.frame, action, reply.at)
                active.reports.finish(await self._prepare_events(active, pending + released.events))
                return False
            if pending:
                await active.reports.flush(await self._prepare_events(active, pending))
                pending = ()
            if not reply.seconds:
                token_taken(active.frame, action)
                return True
            await self._wait(active, reply.seconds)
            action = replace(action, turn=next_turn(action, reply.at))  # the quota may have been paused meanwhile

    async def _apply(
        self, active: ActiveRun, task: Task, outcome: Outcome, name: str, task_input: RecordedInput | None = None
    ) -> tuple[Event, ...]:
        """Store the outcome if it is large, then apply it to the pipeline."""
        frame = active.frame
        masker = active.secrets.masker
        recorded: Outcome | None = None
        shown = mask_outcome(masker, outcome) if masker else outcome
        if shown.error is not None and (error := bounded_error(shown.error)) is not shown.error:
            outcome = shown = replace(shown, error=error)
        first = frame.playbook.executor.reference_first and outcome.status == "ok"
        if first or shown is not outcome or not self.payloads.fits(shown, active.limit, task.output):
            policy = self._output_policy(active, task)
            packed, recorded = await self.payloads.pack(
                shown,
                name=f"{active.order.context.execution_id}/{active.order.context.step}/{name.partition(':')[2]}",
                limit=active.limit,
                policy=policy,
                stored=first,
            )
            if packed.status == outcome.status:
                outcome = replace(outcome, ref=packed.ref)  # the data stays unmasked inside the pipeline
            else:
                outcome = packed
        while True:
            try:
                return apply_outcome(frame, outcome, recorded, task_input)
            except MISSING_DATA as need:
                await self._provide(active, need)

    def _output_policy(self, active: ActiveRun, task: Task) -> OutputPolicy:
        """`output: {store}` with its templates evaluated; on an error the default store is used."""
        policy = task.output
        store = compile_value(policy.store)
        if store.static:
            return policy
        try:
            return replace(policy, store=active.frame.evaluate(active.frame.top, store))
        except TemplateError as problem:
            _log.warning("%s: output.store: %s", active.frame.playbook.where(task.path), problem)
            return replace(policy, store={})

    async def _finish(self, active: ActiveRun, finished: Finished, pending: tuple[Event, ...]) -> None:
        output, results = finished.recorded, finished.results
        tracing.record_failure(output.error)
        step = active.frame.root.program.owner
        assert isinstance(step, Step)
        if step.validation is not None and step.validation.output is not None and finished.status == "done":
            checked = await self._schemas.checked(step.validation.output, finished.outcome)
            output = replace(output, status=checked.status, error=checked.error, meta=checked.meta)
            status = "done" if checked.status == "ok" else "failed"
            finished = replace(finished, status=status, outcome=checked, recorded=output)
        if output.ref is not None or step.output != OutputPolicy() or results:
            output, results = await self._prepare_output(active, finished, step)
            if output.status == "error" and finished.status == "done":  # it could not be stored
                finished = replace(finished, status="failed")
        sent = (*pending, finished.event(output, results))
        active.reports.finish(sent if self._sendable(active, sent) else await self._prepare_events(active, sent))

    async def _prepare_output(
        self, active: ActiveRun, finished: Finished, step: Step
    ) -> tuple[Outcome, dict[str, Outcome]]:
        name = self._name(active)
        masker = active.secrets.masker
        output = await self.payloads.final(
            mask_outcome(masker, finished.outcome) if masker else finished.outcome,
            finished.recorded,
            step=step,
            looping=finished.looping,
            name=name,
            limit=active.limit,
        )
        results = finished.results
        if results:
            results = await self.payloads.fit_results(results, name, active.limit)
        return output, results

    async def _end(self, active: ActiveRun, problem: ErrorInfo) -> None:
        """End the run with an error of its own."""
        while True:
            try:
                finished = abort(active.frame, problem)
                break
            except MISSING_DATA as need:
                await self._provide(active, need)
        await self._finish(active, finished, finished.events)

    # ── one task ────────────────────────────────────────────────────────────────────────

    def _tool(self, kind: str) -> tuple[ToolFunction, bool]:
        known = self._tools.get(kind)
        if known is None:
            spec = self._specs.get(kind)
            known = self._tools[kind] = (self._load(kind), spec is not None and spec.pure)
        return known

    async def _run_validated(self, active: ActiveRun, action: RunTask, run: ToolFunction) -> Outcome:
        """Run a task whose input and output must fit schemas; a value that does not is its error."""
        validation = action.task.validation
        assert validation is not None
        if validation.input is not None:
            given = {name: value for name, value in action.input.items() if name not in action.task.raw}
            problem = await self._schemas.problem("input", validation.input, given)
            if problem is not None:
                return self._with_meta(Outcome("error", error=problem), action.attempt)
        outcome = await self._run_task(active, action, run)
        if validation.output is None or outcome.status != "ok":
            return outcome
        return await self._schemas.checked(validation.output, outcome)

    async def _run_task(self, active: ActiveRun, action: RunTask, run: ToolFunction) -> Outcome:
        order, clock = active.order, self._clock
        context = order.context
        where, code_line = active.frame.programs.location_of(action.task)
        began = clock.now()
        started = clock.monotonic()
        try:
            call = ToolCall(
                kind=action.task.kind,
                input=action.input,
                spec=action.spec,
                host=TaskHost(
                    (context.execution_id, context.step, action.label, action.task_run_id),
                    self.services.bundles.local_file(active.frame.playbook.file),
                    active.secrets,
                    self.services,
                    ProgressReporter(self, active, action, started + PROGRESS_AFTER),
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
                labels=getattr(active.frame.root.program.owner, "labels", ()),
                cost=order.cost,
                playbook=context.playbook,
                path=active.frame.playbook.path,
                state=action.state,
                state_writers=action.state_writers,
            )
            span = tracing.current()
            if span is None:
                outcome = await self._call(active, run, call, action.quotas)
            else:
                ids = (action.task_run_id, action.label, call.kind, action.attempt)
                with tracing.task_span(span, *ids, active.attributes):
                    outcome = tracing.record_outcome(await self._call(active, run, call, action.quotas))
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
        """An outcome of a called block with the meta fields of every outcome; the duration is unknown."""
        known = {"attempt": attempt, "duration_ms": None, "ts": self._stamp(self._clock.now())}
        return replace(outcome, meta={**known, **outcome.meta})

    def _stamp(self, at: float) -> str:
        """The instant as ISO 8601 text; the text of the second is cached."""
        second = int(at)
        if second != self._second[0]:
            self._second = (second, instant(second)[:19])
        return f"{self._second[1]}.{int((at - second) * 1e6):06d}Z"

    async def _call(self, active: ActiveRun, run: ToolFunction, call: ToolCall, quotas: tuple[Demand, ...]) -> Outcome:
        again = self._quotas.before_retry(quotas, partial(self._wait, active)) if quotas else None
        if len(active.frame.levels) == 1:
            return await call_tool(run, call, self._clock, again)
        return await self._inside_calls(active, run, call, again)

    async def _inside_calls(
        self, active: ActiveRun, run: ToolFunction, call: ToolCall, again: BeforeRetry | None
    ) -> Outcome:
        """Call a tool of a workbook block within the remaining time of its callers."""
        depth, left = self._time_left(active)
        if left is None:
            return await call_tool(run, call, self._clock, again)
        try:
            async with asyncio.timeout(max(left, 0)) as limit:
                return await call_tool(run, call, self._clock, again)
        except TimeoutError:
            if not limit.expired():
                raise
        abort_calls(active.frame, depth)
        active.deadlines = {number: at for number, at in active.deadlines.items() if number < depth}
        return error("timeout", "the called block exceeded the spec.timeout of the calling task")

    def _time_left(self, active: ActiveRun) -> tuple[int, float | None]:
        """The call with the earliest deadline: its depth and the seconds left."""
        now = self._clock.monotonic()
        levels = active.frame.levels
        active.deadlines = {depth: at for depth, at in active.deadlines.items() if depth < len(levels)}
        for depth in range(1, len(levels)):
            caller = levels[depth - 1].compiled
            total = timeout_of(caller.static_spec).total
            if total is not None:
                active.deadlines.setdefault(depth, now + total)
        if not active.deadlines:
            return 0, None
        depth = min(active.deadlines, key=lambda depth: active.deadlines[depth])
        return depth, active.deadlines[depth] - now

    async def _wait(self, active: ActiveRun, seconds: float) -> None:
        """Sleep without occupying a slot."""
        active.set_waiting(True)
        try:
            _, left = self._time_left(active)
            await self._clock.sleep(seconds if left is None else max(0.0, min(seconds, left)))
        finally:
            active.set_waiting(False)

    # ── data requests of templates ──────────────────────────────────────────────────────

    async def _provide(self, active: ActiveRun, need: NeedsPayload | NeedsReference | NeedsSecret) -> None:
        """Fetch or store what a template needs; a failure becomes an error of that template."""
        frame = active.frame
        if isinstance(need, NeedsReference):
            frame.shared.references[need.key] = await self._stored(active, need)
            return
        if isinstance(need, NeedsSecret):
            try:
                frame.keychain.provide(await active.secrets.get([need.secret]))
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
        self.cache.limit_hydrated(need.reference.meta.bytes)

    async def _stored(self, active: ActiveRun, need: NeedsReference) -> Reference | TemplateError:
        """Store an output whose `ref` a template reads."""
        masker = active.secrets.masker
        outcome = Outcome("ok", data=need.data)
        policy = getattr(active.frame.root.program.owner, "output", None) or OutputPolicy()
        stored, _ = await self.payloads.pack(
            mask_outcome(masker, outcome) if masker else outcome,
            name=self._name(active),
            limit=active.limit,
            policy=policy,
            stored=True,
        )
        if stored.ref is not None:
            return stored.ref
        problem = stored.error
        return TemplateError(problem.message if problem else "the output could not be stored", kind="storage.access")

    def _name(self, active: ActiveRun) -> str:
        context = active.order.context
        return f"{context.execution_id}/{context.step}/{active.frame.run_id.partition(':')[2]}"

    # ── outgoing events ─────────────────────────────────────────────────────────────────

    def _sendable(self, active: ActiveRun, events: tuple[Event, ...]) -> bool:
        """Whether the events need neither masking nor offloading."""
        return not active.secrets.masker and not self.payloads.must_offload(events, active.limit)

    async def _prepare_events(self, active: ActiveRun, events: tuple[Event, ...]) -> tuple[Event, ...]:
        """The events with secrets masked and large private values offloaded."""
        masker = active.secrets.masker
        if masker:
            events = tuple(mask_event(masker, event) for event in events)
        if self.payloads.must_offload(events, active.limit):
            events = await self.payloads.offload(events, self._name(active), active.limit, active.offloaded)
        return events


def _error_of(problem: NoetlError) -> ErrorInfo:
    """An error that the playbook did not cause."""
    kind = getattr(problem, "kind", "unknown")
    return error_info(kind if kind in ERROR_KINDS else "unknown", str(problem))


def failure_of(order: RunOrder, problem: ErrorInfo) -> Event:
    """The terminal event of a run that could not be started."""
    output = Outcome(status="error", error=problem)
    context = order.context
    if order.path:
        return IterationFailed(step=context.step, step_run_id=context.step_run_id, path=order.path, output=output)
    return StepFailed(step=context.step, step_run_id=context.step_run_id, output=output)

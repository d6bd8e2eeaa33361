"""Planted bugs as edits of production code: one expression of one function is replaced by another.

They are what a hurried change would do: a comparison lost, a condition turned round, a line left out. An edit whose text
is not in its function any more is an error, so that none is left without effect.
"""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from noetl.core.engine import accept, advance, attempt_ledger, lease_rules, outstanding, snapshot
from noetl.core.engine.evolve import execution, runs
from noetl.core.engine.evolve import loops as loop_appliers
from noetl.core.engine.handlers import admission, execution_completion, loops, routing, signals
from noetl.core.pipeline import advance as pipeline_advance
from noetl.core.pipeline import task_start
from noetl.server.concurrency.limiter import ConcurrencyLimiter
from noetl.server.dispatch.leases import Leases
from noetl.server.dispatch.worker_service import WorkerService
from noetl.server.lifecycle import children
from noetl.server.lifecycle.wait_timers import WaitTimers
from noetl.server.orchestrator import execution_actor
from noetl.server.orchestrator.execution_starter import ExecutionStarter
from noetl.server.scheduling import scheduler
from noetl.server.scheduling.deliveries import Deliveries
from noetl.server.scheduling.scheduler import Scheduler
from noetl.storage.events.memory import MemoryEventStore
from noetl.worker.pool import Pool

# name -> edits: a function, its text, and the text that replaces it
EDITS: dict[str, tuple[tuple[Any, str, str], ...]] = {
    # fencing and leases
    "a lease of an old epoch ends the current one": ((accept._end_lease, " or run.epoch != command.epoch", ""),),
    "a run that is leased is leased again": (
        (lease_rules.claim_rejection, 'return None if run.status == "queued" else f"the run is {run.status}"', "return None"),
    ),
    "an ended iteration is leased again": ((lease_rules.claim_rejection, "loop.status(index) != PENDING", "False"),),
    "a heartbeat does not extend leases": ((Leases.extend, "self._leases[run_id].expires_at = end", "pass"),),
    "an expired lease is released and the log is not told": (
        (WorkerService._end_expired, "self._expire(ExpireLease(lease.run_id, lease.epoch, together=together))", "pass"),
    ),
    "a lease expires although another server had its heartbeat": (
        (WorkerService._end_expired, "if await self._seen_elsewhere(self.heartbeats, lease, term):", "if False:"),
    ),
    "returned runs stay leased": ((accept._returned, "return _end_lease(state, command, record, returned=True, begun=command.begun)", "return Reply(True)"),),
    # attempts
    "a lost worker uses up two attempts of three": ((lease_rules.worker_lost, "run.suspect < SUSPECT", "False"),
                                                     (lease_rules.worker_lost, "run.suspect < needed * POISON and run.lost < needed * MAX_LOST", "run.lost < 2")),
    "a poisonous run is retried for ever": ((lease_rules.worker_lost, "return [end_run(state, env, run, why)]", "return []"),),
    "a returned run uses up an attempt": ((runs._worker_lost, "not event.returned or event.begun", "True"),),
    "a begun run that is returned uses up no attempt": (
        (runs._worker_lost, "not event.returned or event.begun", "not event.returned"),
        (accept._reused_number, "event.attempt <= used", "False"),
        (attempt_ledger.AttemptLedger.violations, "not event.returned or event.begun", "not event.returned"),
    ),
    "a number that a lost worker used up is accepted": (
        (runs._worker_lost, "run.lost += 1", "pass"),
        (attempt_ledger.AttemptLedger._start, "event.attempt <= run.used", "False"),
    ),
    "the ambiguous outcome survives the end of its task": ((runs._task_done, "run.resume = None", "pass"),),
    "a resumed run starts at its first task": ((runs._task_done, "run.position = event.position", "pass"),),
    # reports and idempotency
    "a report with another body is accepted": (
        (accept._report, "check is not None and check != checksum(event)", "False"),
        (accept._report, "if check is None]", "if True]"),
    ),
    "only the last reported event is remembered": ((runs._remember_report, "compact_reports(run)", "pass"),
                                                   (runs._remember_report, "(*run.latest, event)", "(event,)")),
    "a repeated command is executed again": ((execution.remember_key, "state.signal_ids[event.id] = recorded_content(event)", "pass"),),
    # ends
    "an execution ends while a token has not been examined": ((execution_completion.conclude, " or state.unexamined", ""),
                                                             (execution_completion.conclude, " or state.runs", "")),
    "a paused execution ends": ((execution_completion.conclude, " or state.paused", ""),),
    "waiting tokens are left when an execution fails": (
        (execution_completion._shut_down, "[*_skip_waiting(state), *_finish(ending.status, last)]", "_finish(ending.status, last)"),
    ),
    "a failed execution does not stop its open steps": (
        (execution_completion._shut_down, "len(state.runs) > len(state.compensating) or state.runs.keys() - state.compensating.keys()", "False"),
    ),
    "the output is that of another step": ((execution_completion._output, "else state.last_leaf", "else next(iter(state.steps))"),),
    # loops
    "one iteration too many is in flight": (
        (loops._window, "return min(window, most)", "return min(window + 1, most)"),
    ),
    "a loop ends one iteration early": ((loops.iteration_ended, "if loop.complete:", "if loop.complete or loop.finished == loop.count - 1:"),),
    "outputs of a loop are in the order of completion": ((loop_appliers._finish, "if index != loop.order:", "if False:"),),
    "contributions out of order are dropped": ((loop_appliers._finish, "loop.out_of_order_parts[index] = parts", "pass"),),
    "a failed iteration counts as a success": ((loop_appliers._iteration_ended, "loop.failed += 1\n        _list_failure(loop, index, event.output.error)", "loop.succeeded += 1"),
                                               (loops.iteration_ended, "most == 0 and type(event) is IterationFailed", "False")),
    "leased iterations are not cancelled when their loop fails": (
        (advance._Advance._cancel_leased_runs, 'if each.status == "leased":', 'if each.status == "leased" and not each.path:'),
    ),
    "the workers of a step that times out are not notified": (
        (advance._Advance._cancel_leased_runs, 'if each.status == "leased":', 'if each.status == "leased" and each.path:'),
    ),
    "a sequential loop runs in parallel": ((loops._window, 'level.loop.mode == "sequential"', "False"),),
    "iterations issued later are not announced": ((advance._Advance._on_loop_progress, "self.loops[event.step_run_id, path] = None", "pass"),),
    "a loop tolerates one failed iteration fewer": ((loops.iteration_ended, "loop.failed > most", "loop.failed >= most"),),
    "contributions are joined in the order of completion": (
        (loop_appliers._finish, "loop.out_of_order_parts[index] = parts", "_join_parts(state, loop, parts)"),
    ),
    "a loop goes on after its end condition": ((loop_appliers._iteration_ended, "loop.target = loop.issued", "loop.target = loop.issued + 1"),),
    "parallel iterations overwrite each other": ((accept._conflict, "writer != owner and (other != key or present != value)", "False"),),
    # joins, gates, arcs
    "a router takes an arc at each boundary of a loop": (
        (routing._choose, "if step_run.fired and not step.inclusive:", "if False:"),
        (routing._choose, "if arc.index in step_run.fired:", "if False:"),
    ),
    "a join runs once per token": ((admission._examine_group, 'admission.join == "each"', "True"),),
    "an exclusive router takes every arc": ((routing._choose, "if held and not step.inclusive:", "if False:"),),
    "an inclusive router takes the first arc": ((routing._choose, "if held and not step.inclusive:", "if held:"),),
    "a guard that is false is true": ((routing._choose, 'held = env.holds(arc.when, names, f"{arc.path}/when")', "held = True"),),
    "a closed gate opens": ((admission._admitted, "return False", "return True"),),
    # timers and waits
    "a timer fires early": ((accept._timer, "if at <= env.at]", "if at <= env.at + 30]"),),
    "a signal is taken by two waits": ((runs._wait_finished, "del state.signals[event.signal]", "pass"),),
    "a wait that has ended keeps its timer": ((runs._wait_finished, "state.due.pop(key, None)", "pass"),
                                              (accept._timer, "if wait is not None:", "if wait is not None or run_id.count(':') > 2:")),
    "a wait that times out ends with success": ((signals.end_due_wait, "ends_at is not None and (", "True or ("),),
    "a wait takes a signal of another name": (
        (signals._is_addressed, "wait.request.signal == command.name", "True"),
        (signals.is_for_wait, "wait.request.signal == command.name", "True"),
        (signals.take_kept, "if kept.signal.name != event.signal:", "if False:"),
    ),
    "a signal that changes ctx opens no gate": ((accept._signal, "if patch:", "if False:"),),
    # limits of two servers
    "an append reserves no slots": (
        (ConcurrencyLimiter.reservations, "if count > 0 and key in known", "if False"),
        (ConcurrencyLimiter.capacity_for, "- held[key] + own.get(key, 0)", "- 0"),
    ),
    "slots that other servers hold are not counted": (
        (ConcurrencyLimiter.capacity_for, "- held[key] + own.get(key, 0)", "- own.get(key, 0)"),
        (ConcurrencyLimiter.reservations, "SlotReservation(key, count, known[key])", "SlotReservation(key, 0, known[key])"),
    ),
    # snapshots
    "a snapshot forgets kept signals": ((snapshot.encode_state, "signals=state.signals,", "signals={},"),),
    "a snapshot forgets the keys of signals": (
        (snapshot.encode_state, "signal_ids=list(state.signal_ids),", "signal_ids=[],"),
        (snapshot.encode_state, "signal_contents=list(state.signal_ids.values()),", "signal_contents=[],"),
    ),
    "a snapshot forgets what must be undone": ((snapshot.encode_state, "completed=state.completed,", "completed=[],"),),
    "the event at a snapshot is applied again": (
        (execution_actor.load_state, "after = state.seq if state is not None else 0", "after = state.seq - 1 if state is not None else 0"),
    ),
    # take-over
    "children are not awaited after a take-over": (
        (outstanding.outstanding, "effects += (effect_for(state, child) for child in state.children.values())", "pass"),
        (children.Children._answer_parent, "await self._executions.send(parent.execution_id, ended)", "pass"),
    ),
    "open iterations are not enqueued after a take-over": (
        (outstanding.outstanding, "for index in loop.unclaimed())", "for index in ())"),
    ),
    # state between executions
    "`state` is committed although another execution has changed it": ((MemoryEventStore.append, "self.state.check(append.state)", "pass"),),
    # schedules
    "the executions of a tick have different keys": (
        (Deliveries.start, "key=delivery.key,", "key=None,"),
    ),
    "a schedule goes on although a tick was not recorded": (
        (Scheduler._process, "for tick in (*schedule.queued, *chosen):", "for tick in chosen[1:]:"),
    ),
    "a delivery counts as started before its execution": (
        (Deliveries.start, 'document = msgspec.json.decode(delivery.data)', 'document = msgspec.json.decode(delivery.data)\n    await self._started(trigger, delivery, "1")'),
    ),
    "ticks that were missed are dropped": ((scheduler._caught_up, 'schedule.catch_up == "all" or', ""),),
    "executions of a schedule with `overlap: queue` overlap": (
        (Deliveries._act, "len(running) >= trigger.concurrency", "False"),
    ),
    "a later tick overtakes one that waits": (
        (Deliveries._process, "if not await self._act(trigger, delivery):\n                return", "if not await self._act(trigger, delivery):\n                break"),
        (Deliveries._process, "for delivery in found:", "for delivery in found[::-1]:"),
    ),
    # the same promises, broken at other places
    "a tool goes on after the lease of its run is lost": ((Pool._cancel, "held.slot.cancel()", "pass"),),
    "a snapshot forgets the partition of a step run": (
        (snapshot._to_step_run, "if name not in _STEP_RUN_OWN:", 'if name not in (*_STEP_RUN_OWN, "partition"):'),
    ),
    "the next start ignores the attempts that lost workers used up": ((task_start.start, "level.attempt += frame.lost", "pass"),),
    "a start that is not recorded counts as recorded": (
        (task_start.start, "start_recorded, frame.only_starts = frame.only_starts, False", "start_recorded, frame.only_starts = True, False"),
    ),
    "a retry has the number of the attempt before": ((pipeline_advance._move, "level.attempt += 1", "pass"),),
    "a run whose lease expired is returned for free": (
        (WorkerService._end_expired, "self._expire(ExpireLease(lease.run_id, lease.epoch, together=together))", "self._expire(ReturnRun(lease.run_id, lease.epoch))"),
    ),
    "a rejection by a stale state is final": (
        (execution_actor.ExecutionActor._decide, "elif self._dependencies.shared and await self._is_behind(before):", "elif False:"),
    ),
    "a report after the end of its lease is judged like any other": ((accept._report, 'if run.status == "queued":', "if False:"),),
    "a snapshot forgets the queued runs": ((snapshot.encode_state, "queued=list(state.queued),", "queued=[],"),),
    "timers are no outstanding effects": (
        (outstanding.outstanding, "effects.append(SetTimer(due))", "pass"),
        (WaitTimers.load, "self._orchestrator.timers.set(execution_id, at)", "pass"),
    ),
    "a cancellation of a paused execution is ignored": ((accept._cancel, "if state.ending is None:", "if state.paused:\n        return _ACCEPTED\n    if state.ending is None:"),),
    "a signal that a wait has taken is kept": (
        (signals.deliver, "record([_taken(wait, received, state.seq, at)], wait.seq)\n            return Reply(True)", "record([_taken(wait, received, state.seq, at)], wait.seq)"),
    ),
    "a suspended run holds its slot": ((runs._suspend, "release_lease(state, run)", "pass"),),
    "the key of a request is stored with the id of its execution": (
        (ExecutionStarter._start, "await execution.begin(playbook, command, submission.key)", "await execution.begin(playbook, command, submission.key and submission.key + execution.id)"),
    ),
}  # fmt: skip

# Caught by the first seeds.
QUICK_EDITS = (
    "a heartbeat does not extend leases",
    "an expired lease is released and the log is not told",
    "a lost worker uses up two attempts of three",
    "a number that a lost worker used up is accepted",
    "a loop ends one iteration early",
    "contributions are joined in the order of completion",
    "`state` is committed although another execution has changed it",
    "outputs of a loop are in the order of completion",
    "contributions out of order are dropped",
    "a failed iteration counts as a success",
    "iterations issued later are not announced",
    "a guard that is false is true",
    "a returned run uses up an attempt",
    "leased iterations are not cancelled when their loop fails",
    "the workers of a step that times out are not notified",
)


@contextmanager
def edited(name: str) -> Iterator[None]:
    """The process with a planted bug."""
    changes: dict[Any, list[tuple[str, str]]] = {}
    for function, old, new in EDITS[name]:
        changes.setdefault(function, []).append((old, new))
    before = {function: function.__code__ for function in changes}
    try:
        for function, pairs in changes.items():
            function.__code__ = _code(function, pairs)
        yield
    finally:
        for function, code in before.items():
            function.__code__ = code


def _code(function: Any, pairs: list[tuple[str, str]]) -> Any:
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in pairs:
        if source.count(textwrap.dedent(old)) != 1 and source.count(old) != 1:
            raise ValueError(f"{function.__qualname__} does not contain {old!r} once")
        source = source.replace(old, new)
    flags = __future__.annotations.compiler_flag
    module = compile(source, inspect.getsourcefile(function) or "", "exec", flags=flags, dont_inherit=True)
    return next(each for each in module.co_consts if getattr(each, "co_name", None) == function.__name__)

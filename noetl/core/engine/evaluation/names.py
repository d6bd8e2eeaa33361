"""The names visible to server-side templates (LANGUAGE section 4, the server's rows).

`ServerNames` is lazy: a guard that reads `ctx.x` pays for `ctx` only. Bare names are looked up in
this order: names of the template's site, the iterator, steps, `ctx`, `workload`. Secrets are not
available, and reading one is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from noetl.core.engine.evaluation.context import EvaluationContext
from noetl.core.engine.state import BoundaryEvent, Loop, State, StepRecord, StepRun, Token
from noetl.core.model.compensation import CompletedRun
from noetl.core.model.events import Event, LoopDone, StepDone, StepFailed, WorkflowStarted, instant
from noetl.core.model.ids import IterationPath, event_id
from noetl.core.model.outcome import Outcome
from noetl.core.model.playbook import ctx_part, state_part
from noetl.core.model.position import Item
from noetl.core.templates.lookup import Undefined, lookup
from noetl.core.templates.status_helpers import STATUS_FUNCTIONS, status_functions
from noetl.core.templates.views import Missing, OutputView, ResultView, View, plain, with_stored
from noetl.errors import TemplateError

_NEVER = "this step has not run"


class EventName(str):
    """The name of a boundary event; equals its older name `call.done` or `call.error` too."""

    __slots__ = ()
    _ALIASES = {"call.done": "step.done", "call.error": "step.failed"}

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, self._ALIASES.get(other, other) if type(other) is str else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


class EventView(View):
    """The envelope of a boundary event. As a whole it is plain data, with the payloads of its output and result."""

    __slots__ = ("_fields",)

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def field(self, key: Any) -> Any:
        """A field of the envelope."""
        return lookup(self._fields, key)

    def fields(self) -> list[str]:
        """The fields of the envelope."""
        return list(self._fields)

    def value(self) -> Any:
        """The envelope as plain data."""
        return {key: plain(value) for key, value in self._fields.items() if not isinstance(value, Undefined)}


class ServerNames(Mapping[str, Any]):
    """The names that a server-side template can read; each value is created on first use."""

    __slots__ = (
        "_factories",
        "_values",
        "ctx",
        "env",
        "outcome",
        "own",
        "path",
        "scope",
        "state",
        "step_run",
        "token",
    )

    def __init__(self, state: State, env: EvaluationContext, factories: Factories, values: dict[str, Any]) -> None:
        self.state = state
        self.env = env
        self.ctx = with_stored(state.ctx, env.resolve)
        self._factories = factories
        self._values = values
        self.step_run: StepRun | None = None
        self.token: Token | None = None
        self.outcome: Outcome | None = None
        self.own: ResultView | None = None  # of the step whose `set` or arcs are evaluated: the run that has ended
        self.scope: dict[str, Any] = {}
        self.path: IterationPath = ()

    def __getitem__(self, name: str) -> Any:
        values = self._values
        if name in values:
            return values[name]
        create = self._factories.get(name)
        if create is not None:
            value = values[name] = create(self)
            return value
        if name == "ctx":
            return ctx_part(self.ctx) if self.state.playbook.uses_state else self.ctx
        if name == "steps":
            return StepsView(self.state, self.env, self.own)
        read = _SHARED.get(name)
        if read is not None:
            return read(self.state, self.env)
        state = self.state
        if self.own is not None and name == self.own.name:
            return self.own
        if name in state.net.steps:
            return result_of(state, self.env, name)
        if name in self.ctx:
            return self.ctx[name]
        if name in state.workload:
            return state.workload[name]
        if name == "state":
            return state_part(self.ctx)
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return any(name in layer for layer in self._layers())

    def __iter__(self) -> Iterator[str]:
        known: dict[str, None] = {}
        for layer in self._layers():
            known.update(dict.fromkeys(layer))
        known.pop("keychain", None)
        return iter(known)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _layers(self) -> tuple[Mapping[str, Any], ...]:
        state = self.state
        return self._values, self._factories, _SCOPES, _SHARED, state.net.steps, self.ctx, state.workload


_SCOPES = {"ctx": None, "state": None}
Factories = Mapping[str, Callable[[ServerNames], Any]]


# ── template sites ──────────────────────────────────────────────────────────────────────


def at_gate(state: State, env: EvaluationContext, token: Token, args: dict[str, Any]) -> ServerNames:
    """Names of admission rules: the token's args and the boundary event that created the token."""
    args = with_stored(args, env.resolve)
    names = ServerNames(state, env, _GATE, {"args": args, "input": args})
    names.token = token
    return names


def at_input(state: State, env: EvaluationContext, args: dict[str, Any]) -> ServerNames:
    """Names of a step's `input`, `loop.in`, timeout and deadline."""
    args = with_stored(args, env.resolve)
    return ServerNames(state, env, {}, {"args": args, "input": args})


def at_loop(
    state: State, env: EvaluationContext, step_run: StepRun, path: IterationPath, outcome: Outcome | None = None
) -> ServerNames:
    """Names of an inner `loop.in` (the outer iteration) and of `until` of an outer loop (with its output)."""
    names = ServerNames(state, env, _LOOP if outcome is None else _UNTIL, {})
    names.step_run = step_run
    names.outcome = outcome
    names.path = path
    for depth in range(len(path)):
        iterator = state.net.compiled(step_run.step.name).loops[depth].loop.iterator
        names._values[iterator] = item_of(env, step_run.loops[path[:depth]], path[depth])
    return names


def at_step_set(state: State, env: EvaluationContext, step_run: StepRun, outcome: Outcome) -> ServerNames:
    """Names of a step's own `set` where the server evaluates it (loops, steps without a task)."""
    names = ServerNames(state, env, _STEP_SET, {})
    run = state.open.get(step_run.id)
    names.scope = run.position.step if run is not None and run.position is not None else step_run.scope
    names.step_run = step_run
    names.outcome = outcome
    names.own = _own_result(names, step_run)
    return names


def at_arcs(state: State, env: EvaluationContext, step_run: StepRun) -> ServerNames:
    """Names of arcs: the boundary event and the step's output."""
    names = ServerNames(state, env, _ARCS, {})
    names.step_run = step_run
    names.outcome = step_run.outcome
    names.own = _own_result(names, step_run)
    return names


def at_compensation(
    state: State, env: EvaluationContext, step: str, run: CompletedRun, args: dict[str, Any], failure: dict[str, Any]
) -> ServerNames:
    """Names of a compensation's `when`: input, output and iteration of the run that it undoes, and the failure."""
    values: dict[str, Any] = {"args": args, "input": {**args, **run.input}, "failure": failure}
    if run.items:
        values["iter"] = scope = _completed_iteration(env, run.items, f"{state.net.steps[step].path}/loop")
        values["loop_index"] = scope["index"]
    names = ServerNames(state, env, {"output": _output, "outcome": _output, "result": _result}, values)
    names.outcome = run.output
    names.own = ResultView(run.output, name=step, resolve=env.resolver(run.output))
    return names


def _completed_iteration(env: EvaluationContext, items: Sequence[Item], path: str) -> dict[str, Any]:
    """`iter` of an iteration that has completed, with `parent` chained."""
    scope: dict[str, Any] = {}
    for item in items:
        value = item.value if item.collection is None else env.fetch(item.collection, path)[item.index]
        inner = {item.name: value, "index": item.index, "count": item.count}
        inner |= {"first": item.index == 0, "last": item.index == item.count - 1}
        if scope:
            inner["parent"] = scope
        scope = inner
    return scope


def _own_result(names: ServerNames, step_run: StepRun) -> ResultView:
    """The result of the run that has just completed, which its step's name means in its own `set` and arcs."""
    outcome = names.outcome
    assert outcome is not None
    results = step_run.results or None
    return ResultView(
        outcome, name=step_run.step.name, results=results, resolve=names.env.resolver(outcome), locate=names.env.locate
    )


def _input(names: ServerNames) -> Any:
    step_run = names.step_run
    assert step_run is not None
    return with_stored({**step_run.args, **step_run.input}, names.env.resolve)


def _output(names: ServerNames) -> Any:
    outcome, step_run = names.outcome, names.step_run
    assert outcome is not None
    results = step_run.results if step_run is not None else None
    return OutputView(outcome, results=results or None, resolve=names.env.resolver(outcome), locate=names.env.locate)


def _result(names: ServerNames) -> Any:
    outcome, step_run = names.outcome, names.step_run
    assert outcome is not None
    results = step_run.results if step_run is not None else None
    return ResultView(
        outcome, name="result", results=results or None, resolve=names.env.resolver(outcome), locate=names.env.locate
    )


def _arc_event(names: ServerNames) -> Any:
    step_run = names.step_run
    assert step_run is not None
    if step_run.event is None:  # of an older snapshot
        return {}
    return _event(names.state, names.env, step_run.event, step_run.step.name)


def _gate_event(names: ServerNames) -> Any:
    token, state = names.token, names.state
    assert token is not None
    event = token.event
    if event is None:  # of an older snapshot
        record = state.steps.get(token.origin or "")
        name = token.boundary or WorkflowStarted.NAME
        event = BoundaryEvent(name, token.seq, state.at, outcome=record.outcome if record else None)
    return _event(state, names.env, event, token.origin)


def _outer_iteration(names: ServerNames) -> Any:
    assert names.step_run is not None
    return iteration_scope(names.env, names.step_run, names.path)


_GATE: Factories = {"event": _gate_event}
_OF_STEP: Factories = {"input": _input, "args": _input}
_LOOP: Factories = {**_OF_STEP, "iter": _outer_iteration, "loop_index": lambda names: names.path[-1]}
_UNTIL: Factories = {**_LOOP, "output": _output, "outcome": _output}
_AT_END: Factories = {**_OF_STEP, "output": _output, "outcome": _output, "result": _result}
_STEP_SET: Factories = {**_AT_END, "step": lambda names: names.scope}
_ARCS: Factories = {**_AT_END, "event": _arc_event}


def _event(state: State, env: EvaluationContext, boundary: BoundaryEvent, step: str | None) -> EventView:
    """The envelope of a boundary event, with its `output`, `result` and `error` also beside the payload."""
    body = _BOUNDARIES[boundary.name]
    parent = boundary.parent_seq
    payload: dict[str, Any] = {"entry": state.entry} if step is None else {"step": step}
    event: dict[str, Any] = {
        "event_id": event_id(state.execution_id, boundary.seq),
        "execution_id": state.execution_id,
        "seq": boundary.seq,
        "timestamp": instant(boundary.at),
        "source": "server" if boundary.by_server else body.SOURCE,
        "name": EventName(boundary.name),
        "version": body.VERSION,
        "entity_type": body.ENTITY,
        "entity_id": boundary.step_run_id or state.execution_id,
        "status": body.STATUS,
        "step": step,
        "step_run_id": boundary.step_run_id,
        "iteration_id": None,
        "iteration_index": None,
        "task_run_id": None,
        "task_label": None,
        "attempt": None,
        "parent_event_id": event_id(state.execution_id, parent) if parent else None,
        "payload": EventView(payload),
    }
    outcome = boundary.outcome
    if outcome is not None:
        output = OutputView(outcome, name="event.output", resolve=env.resolver(outcome), locate=env.locate)
        event["output"] = output
        event["result"] = ResultView(outcome, name="event.result", resolve=env.resolver(outcome), locate=env.locate)
        payload |= {"output": output, "result": event["result"]}
        event["error"] = output.field("error")
        if body is LoopDone:
            payload |= outcome.helpers.get("loop", {})
    return EventView(event)


_BOUNDARIES: dict[str, type[Event]] = {each.NAME: each for each in (StepDone, StepFailed, LoopDone, WorkflowStarted)}


def iteration_scope(env: EvaluationContext, step_run: StepRun, path: IterationPath) -> dict[str, Any]:
    """`iter` of an outer iteration, with `parent` chained."""
    scope: dict[str, Any] | None = None
    level = step_run.step.loop
    for depth in range(len(path)):
        if level is None:
            break
        loop = step_run.loops[path[:depth]]
        index = path[depth]
        inner: dict[str, Any] = {
            level.iterator: item_of(env, loop, index),
            "index": index,
            "count": loop.count,
            "first": index == 0,
            "last": index == loop.count - 1,
        }
        if scope is not None:
            inner["parent"] = scope
        scope = inner
        level = level.inner
    return scope or {}


def item_of(env: EvaluationContext, loop: Loop, index: int) -> Any:
    """One element of a loop's collection."""
    if loop.items is not None:
        return loop.items[index]
    if loop.collection is None:
        return None
    return env.fetch(loop.collection, loop.step_run.step.path)[index]


# ── names of all sites ──────────────────────────────────────────────────────────────────


def result_of(state: State, env: EvaluationContext, name: str) -> Any:
    """The result of a step by its name; undefined until it has run."""
    record = state.steps.get(name)
    if record is None or record.outcome is None:
        return Missing(name, _NEVER)
    resolve = env.resolver(record.outcome)
    return ResultView(record.outcome, name=name, results=record.results or None, resolve=resolve, locate=env.locate)


def status_of(state: State, name: str) -> dict[str, Any]:
    """`steps.<name>.status`: the status of the step's latest run."""
    record = state.steps.get(name) or StepRecord(name)
    outcome = record.outcome
    done = outcome is not None and record.open == 0
    status: dict[str, Any] = {
        "done": done,
        "ok": not record.failed if done else None,
        "running": record.running > 0,
        "started_at": record.started_at,
        "finished_at": record.finished_at if done else None,
        "error": outcome.error.message if done and outcome is not None and outcome.error else None,
        "runs": record.number,
    }
    step = state.net.steps.get(name)
    if step is not None and step.loop is not None:
        status.update(_loop_status(state, name, outcome if done else None))
    return status


def _loop_status(state: State, name: str, outcome: Outcome | None) -> dict[str, Any]:
    if outcome is not None:
        counts = outcome.helpers.get("loop", {})
        total, succeeded, failed = counts.get("total", 0), counts.get("succeeded", 0), counts.get("failed", 0)
        skipped = counts.get("skipped", 0)
        return {"total": total, "completed": total - skipped, "succeeded": succeeded, "failed": failed}
    for step_run in reversed(state.runs.values()):
        if step_run.step.name == name and () in step_run.loops:
            loop = step_run.loops[()]
            return {
                "total": loop.count,
                "completed": loop.finished,
                "succeeded": loop.succeeded,
                "failed": loop.failed,
            }
    return {"total": 0, "completed": 0, "succeeded": 0, "failed": 0}


class StepView(View):
    """`steps.<name>`: the status of a step, and its result."""

    __slots__ = ("_env", "_name", "_own", "_state")

    def __init__(self, state: State, env: EvaluationContext, name: str, own: ResultView | None) -> None:
        self._state = state
        self._env = env
        self._name = name
        self._own = own

    def field(self, key: Any) -> Any:
        """`steps.fetch.status`, or a field of the result."""
        if key == "status":
            return status_of(self._state, self._name)
        return self._result().field(key)

    def fields(self) -> list[str]:
        """Names of the fields."""
        return ["status", "data", "error", "ref"]

    def value(self) -> Any:
        """The result as a whole."""
        found = self._result()
        if isinstance(found, Missing):
            found.fail()
        return found.value()

    def _result(self) -> Any:
        return result_of(self._state, self._env, self._name) if self._own is None else self._own


class StepsView(View):
    """`steps`: every step by its name, dashes included."""

    __slots__ = ("_env", "_own", "_state")

    def __init__(self, state: State, env: EvaluationContext, own: ResultView | None = None) -> None:
        self._state = state
        self._env = env
        self._own = own

    def field(self, key: Any) -> Any:
        """One step."""
        if key in self._state.net.steps:
            own = self._own if self._own is not None and self._own.name == key else None
            return StepView(self._state, self._env, key, own)
        raise TemplateError(f'"steps.{key}": there is no step "{key}"')

    def fields(self) -> list[str]:
        """Names of the steps."""
        return list(self._state.net.steps)

    def value(self) -> Any:
        """The results of all steps that have run."""
        return {
            name: result_of(self._state, self._env, name).value()
            for name, record in self._state.steps.items()
            if record.outcome is not None
        }


class _Statuses(Mapping[str, str]):
    """The status of each step's latest run, as the status functions expect it."""

    __slots__ = ("_state",)

    def __init__(self, state: State) -> None:
        self._state = state

    def __getitem__(self, name: str) -> str:
        record = self._state.steps[name]
        if record.running:
            return "running"
        if record.open or record.outcome is None:
            return "waiting"
        return "error" if record.failed else "ok"

    def __iter__(self) -> Iterator[str]:
        return iter(self._state.steps)

    def __len__(self) -> int:
        return len(self._state.steps)


def _helper(name: str) -> Callable[[State, EvaluationContext], Any]:
    def bind(state: State, env: EvaluationContext) -> Any:
        drained = [run.step.name for run in state.runs.values() if run.phase == "looped"] if name == "loop_done" else ()
        return status_functions(_Statuses(state), loops_done=drained, known=state.net.steps)[name]

    return bind


def _keychain(state: State, env: EvaluationContext) -> Any:
    raise TemplateError(
        "secrets are not available to templates that the server evaluates (`keychain` in an arc, a gate, a loop, "
        "a step's input or a `set`); read the secret in the task that uses it"
    )


_SHARED: dict[str, Callable[[State, EvaluationContext], Any]] = {
    "workload": lambda state, env: state.workload,
    "execution_id": lambda state, env: state.execution_id,
    "job": lambda state, env: {"uuid": state.execution_id, "execution_id": state.execution_id},
    "steps": StepsView,
    **{name: _helper(name) for name in STATUS_FUNCTIONS},
    "keychain": _keychain,
}

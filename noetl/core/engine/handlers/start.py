"""The request: the payload merged over the workload, templates among the defaults, the entry step.

Only the playbook's own defaults are templates; the payload of the request is data and is never
rendered. A default may read other keys of the workload, in any order; a cycle is an error that
names its keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from noetl.core.engine.commands import StartExecution
from noetl.core.engine.evaluation.context import EvaluationContext, Failure
from noetl.core.engine.handlers.state_commit import changed_since
from noetl.core.engine.state import State
from noetl.core.model.events import Event, RequestEvaluated, WorkflowStarted
from noetl.core.model.outcome import ErrorInfo, error_info
from noetl.core.templates.template import Compiled, compile_value

Path = tuple[str, ...]
MAX_DEFAULTS = 64 * 1024 * 1024  # bytes that the templates of `workload` return together; they are in the log

_json = msgspec.json.Encoder().encode


def evaluate_request(
    state: State, command: StartExecution, env: EvaluationContext, values: dict[str, Any]
) -> RequestEvaluated:
    """Evaluate the request: the workload of the execution, or why it cannot run; `values` of `state` as logged."""
    error = command.error or _refusal(state) or changed_since(command)
    source = command.request.compensates
    if source is not None:
        return RequestEvaluated(workload=source.workload, keychain=command.keychain, error=error)
    workload: dict[str, Any] = {}
    if error is None:
        try:
            workload = merged_workload(env, command.request.payload, state.execution_id, command.state)
        except Failure as failure:
            error = failure.error
    return RequestEvaluated(workload, command.keychain, error, values, command.state_versions)


def start_workflow(state: State, event: RequestEvaluated, env: EvaluationContext) -> list[Event]:
    """Start the workflow: the first token waits before the entry step."""
    return [] if event.error is not None else [WorkflowStarted(entry=_entry(state))]


def _entry(state: State) -> str:
    request = state.request
    assert request is not None
    if request.entry_step:
        return request.entry_step
    rerun = request.rerun
    return rerun.from_step if rerun and rerun.from_step else state.playbook.entry


def _refusal(state: State) -> ErrorInfo | None:
    """Why the request is rejected, apart from its data."""
    request = state.request
    assert request is not None
    steps = state.net.steps
    for what, name in (("entry step", _entry(state)), ("return step", request.return_step)):
        if name and name not in steps:
            return error_info(
                "not_found",
                f'the {what} "{name}" is not a step of {state.playbook.path}; its steps are: {", ".join(steps)}',
            )
    deepest = state.playbook.executor.limits.max_call_depth
    if state.depth > deepest:
        return error_info("limit", f"the call depth of playbooks exceeds {deepest} levels")
    return None


# ── the workload ────────────────────────────────────────────────────────────────────────


def merged_workload(
    env: EvaluationContext, payload: Mapping[str, Any], execution_id: str, state: Mapping[str, Any]
) -> dict[str, Any]:
    """The defaults with the payload merged over them, and the templates among the defaults evaluated."""
    templates: dict[Path, Compiled] = {}
    tree = _overlay(env.playbook.workload, payload, (), templates)
    if templates:
        identity = {"uuid": execution_id, "execution_id": execution_id}
        # A workload key of that name takes precedence.
        request = {"input": payload, "payload": payload, "state": state}
        names = {**request, **tree, "workload": tree, "job": identity, "execution_id": execution_id}
        _Resolution(env, tree, templates, names).run()
    return tree


def _overlay(
    defaults: Mapping[str, Any], payload: Mapping[str, Any], at: Path, templates: dict[Path, Compiled]
) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for key, value in defaults.items():
        given = key in payload
        if given and not (isinstance(value, Mapping) and isinstance(payload[key], Mapping)):
            merged[key] = payload[key]
        elif isinstance(value, Mapping):
            merged[key] = _overlay(value, payload[key] if given else {}, (*at, key), templates)
        else:
            merged[key] = value
            compiled = compile_value(value)
            if not compiled.static:
                templates[*at, key] = compiled
    merged.update((key, value) for key, value in payload.items() if key not in defaults)
    return merged


class _Resolution:
    """Evaluates templates in the order of their dependencies."""

    def __init__(
        self, env: EvaluationContext, tree: dict[str, Any], templates: dict[Path, Compiled], names: dict[str, Any]
    ) -> None:
        self.env = env
        self.tree = tree
        self.templates = templates
        self.done: set[Path] = set()
        self.under_way: list[Path] = []
        self.names = names
        self.bytes = 0

    def run(self) -> None:
        for path in self.templates:
            self._resolve(path)

    def _resolve(self, path: Path) -> None:
        if path in self.done:
            return
        where = f"workload/{'/'.join(path)}"
        if path in self.under_way:
            cycle = " -> ".join(".".join(each) for each in (*self.under_way[self.under_way.index(path) :], path))
            raise self.env.fail("template", f"cyclic workload defaults: {cycle}", where)
        self.under_way.append(path)
        reads = list(self._reads(self.templates[path]))
        for needed, whole in reads:
            if needed[: len(path)] == path:
                continue
            for other in self.templates:
                overlaps = other[: len(needed)] == needed or needed[: len(other)] == other
                # A read of the whole `workload` does not depend on the default that is being evaluated.
                if overlaps and not (whole and other in self.under_way):
                    self._resolve(other)
        holder = self.tree
        for key in path[:-1]:
            holder = holder[key]
        if any(needed[: len(path)] == path for needed, _ in reads):
            # Inside its own default a key is not defined: `region: "{{ region | default('eu') }}"`.
            del holder[path[-1]]
            if len(path) == 1:
                self.names.pop(path[0], None)
        value = holder[path[-1]] = self.env.evaluate(self.templates[path], self.names, where)
        self.bytes += len(_json(value))
        if self.bytes > MAX_DEFAULTS:
            raise self.env.fail("limit", f"the templates of `workload` return more than {MAX_DEFAULTS:,} bytes", where)
        if len(path) == 1 and path[0] not in ("workload", "job", "execution_id"):
            self.names[path[0]] = value
        self.under_way.pop()
        self.done.add(path)

    def _reads(self, compiled: Compiled) -> Iterator[tuple[Path, bool]]:
        """Paths below the workload that a template reads; True: the whole workload."""
        for name in _dotted(compiled.names):
            if name[0] == "workload":
                yield (name[1:], False) if len(name) > 1 else ((), True)
            elif name[0] in self.tree:
                yield name, False


def _dotted(names: Iterable[str]) -> Iterator[Path]:
    for name in names:
        yield tuple(name.split("."))

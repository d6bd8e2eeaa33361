"""Lower the syntax tree to the model: expand shorthand, layer specs, and give every value a path to its line.

Lowering runs only for documents without errors, so it does not validate. Paths are those of the normal form:
`workflow/2/tool/0/input/url` is the url of a step's first task, even if it is written beside `kind` of a single
mapping.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from msgspec.structs import replace

from noetl.core.language.flow.result_reads import exports_of, reads_of
from noetl.core.language.resource_limits import with_limits
from noetl.core.language.source.node_reader import has_template
from noetl.core.language.source.nodes import Mapping as MappingNode
from noetl.core.language.source.nodes import Node, Scalar, Sequence, data_of, node_from, scalar_node
from noetl.core.language.syntax.constructs import expand
from noetl.core.language.syntax.tree import (
    AdmitSyntax,
    BlockSyntax,
    BodySyntax,
    DocumentSyntax,
    ExecutorSyntax,
    LoopSyntax,
    OutputSyntax,
    PlacementSyntax,
    QuotaSyntax,
    RouterSyntax,
    RuleSyntax,
    SetSyntax,
    StepSyntax,
    TaskSyntax,
    ValidationSyntax,
)
from noetl.core.model.merge import deep_merge
from noetl.core.model.playbook import (
    COMPENSATION,
    DEFAULT_ATTEMPTS,
    DEFAULT_MAX_DELAY,
    DEFAULT_MAX_IDLE_TASK_RUNS,
    DEFAULT_MAX_TASK_RUNS,
    STATE_KEY,
    STEP_KEY,
    Admission,
    AdmitRule,
    Arc,
    Assignment,
    Block,
    Compensation,
    Directive,
    Emit,
    Executor,
    KeychainEntry,
    Limits,
    Location,
    Loop,
    OutputPolicy,
    Playbook,
    Quota,
    Router,
    Rule,
    Step,
    Synthesis,
    Task,
    TracePolicy,
    Validation,
)
from noetl.core.model.tool import ToolSpec

# Keys of a spec that apply to the node itself and are not defaults for its tasks.
_ONLY_LARGE = 1 << 40  # bytes; the limit of the executor applies
_NOT_DEFAULTS = {
    "executor": frozenset(
        {"policy", "placement", "pool", "cost", "tracing", "entry_step", "return_step", "extensions", "state"}
    ),
    "step": frozenset({"policy", "pool", "cost", "validation", "placement"}),
    "loop": frozenset({"policy", "mode", "max_in_flight", "until"}),
    "task": frozenset({"policy", "effect", "retry", "validation", "placement", "pool", "cost"}),
}


class _Layer:
    """One level of spec: its defaults for tasks, and the positions of those that may fail at run time."""

    __slots__ = ("data", "places")

    def __init__(self, data: dict[str, Any], places: dict[str, Location]) -> None:
        self.data = data
        self.places = places


def _retry(given: Any) -> dict[str, Any]:
    """A tool's own retry in its canonical spelling."""
    if not isinstance(given, dict):
        return {"attempts": given}
    found = dict(given)
    for old, new in (("max_attempts", "attempts"), ("initial_delay", "delay"), ("backoff_seconds", "delay")):
        if old in found:
            found.setdefault(new, found.pop(old))
    if found.get("backoff") == "fixed":
        found["backoff"] = "none"
    if isinstance(found.get("on"), str):
        found["on"] = [found["on"]]
    return found


class Lowering:
    """Lowers the tree of one document to the model."""

    def __init__(self, specs: Mapping[str, ToolSpec]) -> None:
        self.specs = specs
        self.places: dict[str, Location] = {}
        self.kinds = frozenset(specs)
        self.placement = PlacementSyntax()  # of the executor

    # --- the document ---

    def playbook(self, document: DocumentSyntax, *, file: str, digest: str, uses_state: bool) -> Playbook:
        """The whole playbook."""
        outer = self.executor_layers(document.executor)
        if document.executor is not None:
            self.placement = document.executor.placement
        steps = tuple(self.step(step, outer) for step in document.steps)
        blocks = {block.name: self.block(block, outer) for block in document.blocks}
        executor = document.executor
        return_step = executor.return_step.text if executor and executor.return_step else None
        steps = _with_result_reads(steps, exports_of(steps), reads_of(steps, blocks))
        return Playbook(
            name=document.name,
            path=document.catalog_path,
            entry=document.entry(),
            steps=steps,
            version=document.version,
            description=document.description,
            surface=document.surface,
            return_step=return_step,
            workload=self.mapping(document.workload, "workload"),
            keychain=tuple(
                KeychainEntry(
                    name=entry.name,
                    kind=entry.kind,
                    fields={key: self.value(node, f"{entry.path}/{key}") for key, node in entry.fields.items()},
                    path=self.record_place(entry.path, entry.node),
                )
                for entry in document.keychain
            ),
            executor=self.executor(executor),
            blocks=blocks,
            locations=self.places,
            file=file,
            digest=digest,
            metadata=data_of(document.metadata) if document.metadata else {},
            uses_state=uses_state,
        )

    def synthesized(self, document: DocumentSyntax, playbook: Playbook) -> tuple[Step, ...]:
        """Steps created at run time, with the defaults of the running playbook."""
        outer = tuple(_Layer(layer, {}) for layer in _executor_data(playbook.executor.spec))
        self.placement = _placement_of(playbook.executor)
        steps = tuple(self.step(step, outer) for step in document.steps)
        everything = (*playbook.steps, *steps)
        return _with_result_reads(steps, exports_of(everything), reads_of(everything, playbook.blocks))

    def executor(self, executor: ExecutorSyntax | None) -> Executor:
        """`executor`."""
        if executor is None:
            return Executor()
        return Executor(
            profile=cast(Any, executor.profile),
            version=executor.version,
            spec=self.mapping(executor.spec, "executor/spec"),
            limits=Limits(**executor.limits),
            reference_first=executor.reference_first,
            pool=executor.placement.pool.text if executor.placement.pool is not None else None,
            labels=_labels([executor.placement]),
            cost=executor.placement.cost.value if executor.placement.cost is not None else 1,
            tracing=TracePolicy(
                **{key: self.value(node, f"executor/spec/tracing/{key}") for key, node in executor.tracing.items()}
            ),
            extensions=executor.extensions,
            state_commit=cast(Any, executor.state_commit),
        )

    def executor_layers(self, executor: ExecutorSyntax | None) -> tuple[_Layer, ...]:
        """Defaults of the whole playbook: `policy.defaults` under the executor's own spec."""
        if executor is None:
            return ()
        layers = []
        if executor.defaults is not None:
            layer = self.layer(executor.defaults, "executor", "executor/spec/policy/defaults")
            _normalize_defaults(layer.data)
            layers.append(layer)
        if executor.spec is not None:
            layers.append(self.layer(executor.spec, "executor", "executor/spec"))
        return tuple(layers)

    # --- steps and blocks ---

    def step(self, step: StepSyntax, outer: tuple[_Layer, ...]) -> Step:
        """One step; `exports` and `reads` are added when all steps are known."""
        layers = self.body_layers(step, outer)
        synthesis = step.synthesis
        tasks = self.tasks(step, layers)
        return Step(
            name=step.name,
            description=step.description,
            admission=self.admission(step.admit),
            input=self.mapping(step.input, f"{step.path}/input"),
            loop=self.loop(step.loop),
            tasks=tasks,
            assignments=self.assignments(step.sets),
            router=self.router(step.router),
            failure=cast(Any, step.failure),
            max_failed=step.max_failed,
            timeout_s=self.value(step.timeout_s, f"{step.path}/spec/policy/lifecycle/timeout_s"),
            deadline_s=self.value(step.deadline_s, f"{step.path}/spec/policy/lifecycle/deadline_s"),
            max_task_runs=_max_task_runs(layers, tasks),
            synthesize=None
            if synthesis is None
            else Synthesis(
                source=self.value(synthesis.source, synthesis.path),
                max_steps=synthesis.max_steps,
                kinds=synthesis.kinds,
                path=self.record_place(synthesis.path, synthesis.node),
            ),
            compensation=self.compensation(step, outer),
            emits=tuple(
                Emit(
                    emit.name,
                    self.value(emit.payload, f"{emit.path}/payload"),
                    self.value(emit.when, f"{emit.path}/when"),
                    self.record_place(emit.path, emit.node),
                )
                for emit in step.emits
            ),
            quota=self.quota(step.quota),
            validation=self.validation(step.validation),
            output=self.output(step.output),
            spec=self.layer(step.spec, "step", step.spec_path).data if step.spec else {},
            **self.placed(step),
            path=self.record_place(step.path, step.node),
        )

    def compensation(self, step: StepSyntax, outer: tuple[_Layer, ...]) -> Compensation | None:
        """How a step is undone: a step of its own, with the defaults of the step's spec and its pool."""
        body = step.compensation
        if body is None:
            return None
        layers = self.body_layers(step, outer)
        tasks = self.tasks(body, layers)
        undo = Step(
            name=step.name + COMPENSATION,
            tasks=tasks,
            max_task_runs=_max_task_runs(layers, tasks),
            spec=self.layer(step.spec, "step", step.spec_path).data if step.spec else {},
            **self.placed(step),
            path=self.record_place(body.path, body.node),
        )
        return Compensation(undo, self.value(body.when, f"{body.path}/when"), body.path)

    def placed(self, step: StepSyntax) -> dict[str, Any]:
        """Pool, labels (`key=value`) and cost of a step, from executor, step and tasks; the innermost value counts."""
        around = (self.placement, step.placement)
        tasks = [task.placement for task in step.tasks()]
        pools = [level.pool.text for level in (*around, *tasks) if level.pool is not None]
        outer = next((level.cost.value for level in reversed(around) if level.cost is not None), 1)
        costs = [outer if level.cost is None else level.cost.value for level in tasks]
        return {
            "pool": pools[-1] if pools else None,
            "labels": _labels([*around, *tasks]),
            "cost": max(costs, default=outer),
        }

    def block(self, block: BlockSyntax, outer: tuple[_Layer, ...]) -> Block:
        """One block of the workbook."""
        layers = self.body_layers(block, outer)
        tasks = self.tasks(block, layers)
        return Block(
            name=block.name,
            input=self.mapping(block.input, f"{block.path}/input"),
            loop=self.loop(block.loop),
            tasks=tasks,
            assignments=self.assignments(block.sets),
            failure=cast(Any, block.failure),
            max_failed=block.max_failed,
            max_task_runs=_max_task_runs(layers, tasks),
            path=self.record_place(block.path, block.node),
        )

    def body_layers(self, body: BodySyntax, outer: tuple[_Layer, ...]) -> tuple[_Layer, ...]:
        """The specs around a body's tasks, outermost first."""
        layers = list(outer)
        if body.spec is not None:
            layers.append(self.layer(body.spec, "step", body.spec_path))
        levels = body.loops()
        layers += [self.layer(level.spec, "loop", level.spec_path) for level in levels if level.spec is not None]
        return tuple(layers)

    def admission(self, admit: AdmitSyntax | None) -> Admission:
        """The gate before a step."""
        if admit is None:
            return Admission()
        rules = tuple(
            AdmitRule(
                when=None if rule.is_else else self.value(rule.when, f"{rule.path}/when"),
                allow=self.value(rule.allow, f"{rule.path}/then/allow"),
                path=self.record_place(rule.path, rule.node),
            )
            for rule in admit.rules
        )
        return Admission(rules=rules, on_deny=cast(Any, admit.on_deny), join=cast(Any, admit.join), once=admit.once)

    def loop(self, loop: LoopSyntax | None) -> Loop | None:
        """A loop and the loops inside it."""
        if loop is None:
            return None
        reduce = {_reduced_key(key): name for key, name in data_of(loop.reduce).items()} if loop.reduce else {}
        return Loop(
            collection=self.value(loop.collection, f"{loop.path}/in"),
            iterator=loop.iterator or "item",
            mode=cast(Any, loop.mode),
            max_in_flight=self.value(loop.max_in_flight, f"{loop.path}/spec/max_in_flight"),
            until=self.value(loop.until, f"{loop.path}/spec/until"),
            exec=cast(Any, loop.exec or "distributed"),
            reduce=reduce,
            inner=self.loop(loop.inner),
            path=self.record_place(loop.path, loop.node),
        )

    def router(self, router: RouterSyntax | None) -> Router:
        """The arcs of a step."""
        if router is None:
            return Router()
        arcs = tuple(
            Arc(
                target=arc.target or "",
                when=None if arc.when is None else self.guard(arc.when, f"{arc.path}/when"),
                assignments=self.assignments(arc.sets),
                dedupe=self.value(arc.dedupe, f"{arc.path}/spec/dedupe"),
                partition=self.value(arc.partition, f"{arc.path}/spec/partition"),
                priority=self.value(arc.priority, f"{arc.path}/spec/priority"),
                path=self.record_place(arc.path, arc.node),
            )
            for arc in router.arcs
        )
        return Router(arcs=arcs, mode=cast(Any, router.mode))

    # --- tasks ---

    def tasks(self, body: BodySyntax, layers: tuple[_Layer, ...]) -> tuple[Task, ...]:
        """The pipeline, with `choose`, `while` and `until` expanded to tasks."""
        tasks = expand(body.items, lambda task: self.task(task, layers), self.guard)
        for construct in body.constructs():
            self.record_place(construct.path, construct.node)  # generated tasks have the position of their construct
        return tasks

    def task(self, task: TaskSyntax, layers: tuple[_Layer, ...]) -> Task:
        """One task with its effective spec."""
        kind = task.kind or ""
        input = {
            name: parameter.value.value
            if parameter.raw and isinstance(parameter.value, Scalar)
            else self.value(parameter.value, parameter.path)
            for name, parameter in task.parameters.items()
        }
        for parameter in task.parameters.values():
            self.record_place(parameter.path, parameter.value)
        spec = self.effective_spec(task, kind, layers)
        effect = spec.pop("effect", "at_least_once")
        policy = task.policy
        unmatched = spec.pop("on_unmatched", None)
        if policy is not None and policy.on_unmatched is not None:
            unmatched = policy.on_unmatched
        return Task(
            name=task.name,
            kind=kind,
            input=input,
            assignments=self.assignments(task.sets),
            rules=None if policy is None or not policy.has_rules else tuple(self.rule(rule) for rule in policy.rules),
            on_unmatched="fail" if policy is not None and unmatched == "fail" else "continue",
            spec=spec,
            raw=tuple(name for name, parameter in task.parameters.items() if parameter.raw),
            effect=effect if effect in ("at_least_once", "at_most_once") else "at_least_once",
            output=self.output(task.output, spec),
            validation=self.validation(task.validation),
            quota=self.quota(policy.quota if policy is not None else None),
            path=self.record_place(task.path, task.node),
        )

    def effective_spec(self, task: TaskSyntax, kind: str, layers: tuple[_Layer, ...]) -> dict[str, Any]:
        """The merged spec: kind defaults, executor, step, loop and task."""
        path = f"{task.path}/spec"
        spec: dict[str, Any] = dict(task.tool.defaults) if task.tool else {}
        own = [self.layer(task.spec, "task", path)] if task.spec is not None else []
        for layer in (*layers, *own):
            general = {key: value for key, value in layer.data.items() if key not in self.kinds}
            special = layer.data.get(kind)
            spec = _merge_spec(spec, general)
            if isinstance(special, dict):
                spec = _merge_spec(spec, special)
            for key, place in layer.places.items():
                if key not in self.kinds:
                    self.places[f"{path}/{key}"] = place
        if task.spec is not None and "effect" in task.spec.entries:
            spec["effect"] = data_of(task.spec.get("effect"))
        if task.timeout is not None and (task.spec is None or "timeout" not in task.spec.entries):
            spec = _merge_spec(spec, {"timeout": self.value(task.timeout, f"{path}/timeout")})
        if task.retry is not None:
            spec["retry"] = _retry(self.value(task.retry, f"{path}/retry"))
        return spec

    def rule(self, rule: RuleSyntax) -> Rule:
        """One rule of a task's policy."""
        fields, path = rule.fields, rule.then_path
        to = fields.get("to")
        backoff = data_of(fields["backoff"]) if "backoff" in fields else "none"
        then = Directive(
            do=cast(Any, rule.do),
            attempts=self.value(fields["attempts"], f"{path}/attempts") if "attempts" in fields else DEFAULT_ATTEMPTS,
            backoff=cast(Any, "none" if backoff == "fixed" else backoff),
            delay=self.value(fields["delay"], f"{path}/delay") if "delay" in fields else 0,
            max_delay=self.value(fields["max_delay"], f"{path}/max_delay")
            if "max_delay" in fields
            else DEFAULT_MAX_DELAY,
            to=to.text if isinstance(to, Scalar) else None,
            message=self.value(fields.get("message"), f"{path}/message"),
            kind=data_of(fields.get("kind")),
            assignments=self.assignments(rule.sets),
        )
        when = None if rule.is_else else self.value(rule.when, f"{rule.path}/when")
        return Rule(when=when, then=then, path=self.record_place(rule.path, rule.node))

    def assignments(self, sets: Iterable[SetSyntax]) -> tuple[Assignment, ...]:
        """The assignments of a `set` block, in order."""
        return tuple(
            Assignment(
                scope=cast(Any, "ctx" if entry.scope == "state" else entry.scope),
                keys=(STATE_KEY + entry.keys[0], *entry.keys[1:]) if entry.scope == "state" else entry.keys,
                value=self.value(entry.value, entry.path),
                path=self.record_place(entry.path, entry.key),
            )
            for entry in sets
        )

    def output(self, output: OutputSyntax | None, spec: dict[str, Any] | None = None) -> OutputPolicy:
        """Where a result is stored: declared here, or in a surrounding spec (`spec.result.store`)."""
        result = (spec or {}).get("result")
        around: dict[str, Any] = result if isinstance(result, dict) else {}
        store = around.get("store")
        own = self.mapping(output.store, f"{output.path}/store") if output is not None else {}
        store = own or (store if isinstance(store, dict) else {})
        inline = output.inline_max_bytes.value if output is not None and output.inline_max_bytes is not None else None
        for most in (inline, store.get("inline_max_bytes"), around.get("inline_max_bytes")):
            if isinstance(most, int) and not isinstance(most, bool):
                break
        else:
            most = None
        if most is None and not own and store:
            most = _ONLY_LARGE  # a default says where large results go
        select = tuple(_select_path(node.text) for node in output.select) if output is not None else ()
        return OutputPolicy(store=store, select=select, inline_max_bytes=most)

    def quota(self, quota: QuotaSyntax | None) -> Quota | None:
        """How often a step or a task starts."""
        if quota is None:
            return None
        path = self.record_place(quota.path, quota.node)
        rate, burst, key = (self.value(getattr(quota, name), f"{path}/{name}") for name in ("rate", "burst", "key"))
        return Quota(rate, burst, key, path)

    def validation(self, validation: ValidationSyntax | None) -> Validation | None:
        """The schemas of input and output; data, never templates."""
        if validation is None:
            return None
        schemas = (validation.input, validation.output)
        return Validation(*(None if node is None else data_of(node) for node in schemas))

    # --- values and places ---

    def layer(self, node: MappingNode, level: str, path: str) -> _Layer:
        """The defaults that a spec gives to the tasks below it."""
        left_out = _NOT_DEFAULTS[level]
        data: dict[str, Any] = {}
        places: dict[str, Location] = {}
        for key, (_, value) in node.entries.items():
            if key in left_out:
                continue
            data[key] = self.value(value, f"{path}/{key}")
            if key == "retry":
                data[key] = _retry(data[key])
            elif key in self.kinds and isinstance(data[key], dict) and "retry" in data[key]:
                data[key]["retry"] = _retry(data[key]["retry"])
            if _may_fail(value):
                places[key] = Location(value.line, value.column)
        return _Layer(data, places)

    def record_place(self, path: str, node: Node) -> str:
        """Record the position of a path in the author's text."""
        self.places[path] = Location(node.line, node.column)
        return path

    def mapping(self, node: Node | None, path: str) -> dict[str, Any]:
        """A mapping's data; an absent one is empty."""
        if not isinstance(node, MappingNode):
            return {}
        return cast(dict[str, Any], self.value(node, path))

    def value(self, node: Node | None, path: str) -> Any:
        """A node's data; the positions of containers and templates are recorded for run-time errors."""
        if isinstance(node, Scalar):
            value = node.value
            if isinstance(value, str) and has_template(value):
                self.places[path] = Location(node.line, node.column)
            return value
        if isinstance(node, MappingNode):
            self.places[path] = Location(node.line, node.column)
            return {key: self.value(value, f"{path}/{key}") for key, (_, value) in node.entries.items()}
        if isinstance(node, Sequence):
            self.places[path] = Location(node.line, node.column)
            return [self.value(item, f"{path}/{number}") for number, item in enumerate(node.items)]
        return None

    def guard(self, node: Node | None, path: str) -> Any:
        """A guard's value, with old event names replaced."""
        value = self.value(node, path)
        if isinstance(value, str) and "call.done" in value:
            return _CALL_DONE.sub(r"\1step.done\1", value)
        return value


def _labels(levels: Iterable[PlacementSyntax]) -> tuple[str, ...]:
    """The labels of some specs, outermost first; the innermost value of a label counts."""
    found = {name: node.text for level in levels for name, node in level.labels.items()}
    return tuple(sorted(f"{name}={value}" for name, value in found.items()))


def _placement_of(executor: Executor) -> PlacementSyntax:
    """The placement of a compiled executor, for steps that join it."""
    place = node_from(None)
    labels = {name: scalar_node(value, place) for name, _, value in (label.partition("=") for label in executor.labels)}
    pool = None if executor.pool is None else scalar_node(executor.pool, place)
    return PlacementSyntax(pool, scalar_node(executor.cost, place), labels)


_CALL_DONE = re.compile(r"""(['"])call\.done\1""")


def _executor_data(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The layers of an executor's spec that is already data."""
    policy = spec.get("policy")
    defaults = policy.get("defaults") if isinstance(policy, dict) else None
    own = {key: value for key, value in spec.items() if key not in _NOT_DEFAULTS["executor"]}
    if not isinstance(defaults, dict):
        return [own]
    return [_normalize_defaults({key: v for key, v in defaults.items() if key not in _NOT_DEFAULTS["executor"]}), own]


def _normalize_defaults(defaults: dict[str, Any]) -> dict[str, Any]:
    """`defaults.timeouts` is the default of `timeout`, and `defaults.resources` that of `limits`."""
    if "timeouts" in defaults:
        defaults.setdefault("timeout", defaults.pop("timeouts"))
    return with_limits(defaults)


def _merge_spec(outer: dict[str, Any], inner: dict[str, Any]) -> dict[str, Any]:
    """Deep merge, in which a number of seconds is the `total` of a timeout that names its parts."""
    timeout = outer.get("timeout")
    if isinstance(inner.get("timeout"), dict) and timeout is not None and not isinstance(timeout, dict):
        outer = {**outer, "timeout": {"total": timeout}}
    return deep_merge(outer, inner)


def _reduced_key(target: str) -> str:
    """The key of a reducer: a path below ctx, or the prefix of another scope and a path below it."""
    scope, _, path = target.partition(".")
    return f"{_PREFIXES[scope]}{path}" if scope in _PREFIXES else target.removeprefix("ctx.")


_PREFIXES = {"step": STEP_KEY, "state": STATE_KEY}


def _max_task_runs(layers: tuple[_Layer, ...], tasks: tuple[Task, ...]) -> int:
    """The bound of one pipeline run, for tasks whose own spec states none: that of the nearest layer."""
    for layer in reversed(layers):
        if isinstance(layer.data.get("max_task_runs"), int):
            return int(layer.data["max_task_runs"])
    return DEFAULT_MAX_IDLE_TASK_RUNS if _jumps_unconditionally(tasks) else DEFAULT_MAX_TASK_RUNS


def _jumps_unconditionally(tasks: Iterable[Task]) -> bool:
    """Whether a pipeline has unconditional jumps and does nothing else, so that it cycles without an end."""
    rules = [rule for task in tasks for rule in task.rules or ()]
    directives = {rule.then.do for rule in rules}
    conditional = any(rule.when is not None for rule in rules)
    return (
        "jump" in directives
        and "retry" not in directives
        and not conditional
        and all(task.kind == "noop" for task in tasks)
    )


def _may_fail(node: Node) -> bool:
    if isinstance(node, Scalar):
        return isinstance(node.value, str) and has_template(node.value)
    return True


def _select_path(text: str) -> str:
    """A selected field as a path below the payload: `output.data.x` and `data.x` are `x`."""
    return text.removeprefix("output.").removeprefix("data.")


def _with_result_reads(
    steps: Iterable[Step], exports: dict[str, tuple[str, ...]], reads: dict[str, tuple[str, ...]]
) -> tuple[Step, ...]:
    """The steps, and the steps that undo them, with what they export and read."""
    completed = []
    for step in steps:
        undo = step.compensation
        if undo is not None:
            undo = replace(undo, step=replace(undo.step, reads=reads[undo.step.name]))
        completed.append(replace(step, exports=exports[step.name], reads=reads[step.name], compensation=undo))
    return tuple(completed)

"""Programs: the compiled pipelines of steps and blocks.

Everything that does not depend on a single run is computed here once: compiled templates, the fields
of a task in rendering order, rules split into pre-conditions and policy, and the names that the
templates of the pipeline read, so that a `Position` contains only those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, field

from noetl.core.model.playbook import (
    Assignment,
    Backoff,
    Block,
    Directive,
    Loop,
    Playbook,
    Quota,
    Rule,
    Scope,
    Step,
    Task,
    target_name,
)
from noetl.core.model.tool import ToolSpec, named_input
from noetl.core.templates.binding import compile_bound
from noetl.core.templates.deferred import compile_deferred
from noetl.core.templates.paths import with_checked_paths
from noetl.core.templates.template import Compiled, compile_value

PLAYBOOK = "playbook"

# Spec keys for the server or the pipeline, never passed to a tool.
_NOT_FOR_TOOLS = frozenset(
    {"policy", "mode", "max_in_flight", "until", "exec", "lifecycle", "max_task_runs", "extensions", "entry_step"}
    | {"return_step", "pool"}
)
_OUTPUT_NAMES = frozenset({"output", "outcome"})


class CompiledAssignment(Struct, frozen=True):
    """`set` of one target."""

    scope: Scope
    keys: tuple[str, ...]
    value: Compiled
    path: str
    literal: Any  # the uncompiled value, for the `_ref` rules
    reads_secret: bool

    @property
    def target(self) -> str:
        """The target as the author writes it."""
        dotted = ".".join(self.keys)
        return target_name(dotted) if self.scope == "ctx" else f"{self.scope}.{dotted}"


class CompiledDirective(Struct, frozen=True):
    """`then:` with compiled numbers."""

    do: str
    attempts: Compiled
    backoff: Backoff
    delay: Compiled
    max_delay: Compiled
    to: str | None
    assignments: tuple[CompiledAssignment, ...]
    message: Compiled | None
    kind: str | None


class CompiledRule(Struct, frozen=True):
    """A rule of a task's policy; `when` None is `else`."""

    index: int
    when: Compiled | None
    then: CompiledDirective
    path: str


class CompiledField(Struct, frozen=True):
    """One parameter of a task."""

    name: str
    value: Compiled
    paths: tuple[str, ...]  # its possible paths in the playbook


class CompiledQuota(Struct, frozen=True):
    """A compiled quota; `default_key` is used without a key."""

    rate: Compiled
    burst: Compiled
    key: Compiled
    default_key: str
    path: str

    @property
    def names(self) -> set[str]:
        """The names that its templates read."""
        return {name for value in (self.rate, self.burst, self.key) for name in value.names}


class CompiledTask(Struct, frozen=True):
    """A compiled task."""

    task: Task
    index: int
    static_input: dict[str, Any]
    fields: tuple[CompiledField, ...]  # the templated ones, in rendering order
    static_spec: dict[str, Any]
    spec: tuple[CompiledField, ...]
    skips: tuple[CompiledRule, ...]
    rules: tuple[CompiledRule, ...] | None
    assignments: tuple[CompiledAssignment, ...]
    tool: ToolSpec | None
    suspends: bool
    max_task_runs: int  # of the pipeline, counted before this task starts
    reads_previous: bool  # its templates read `_prev` or the previous `output`, or it may be skipped
    without_policy: bool  # no `set` and no rules: nothing is evaluated after its tool
    fields_read_input: bool
    policy_reads_input: bool
    quota: CompiledQuota | None = None


class Hooks(Struct, frozen=True):
    """Where the tasks around a task are: the first one of each kind, and what follows the last one."""

    main: int
    before: int | None
    after: int | None
    final: int | None
    end: int


class CompiledLoop(Struct, frozen=True):
    """One compiled level of a block's loop, which runs on the worker."""

    collection: Compiled
    iterator: str
    until: Compiled | None
    path: str


class Program(Struct, frozen=True):
    """A compiled pipeline: its tasks, its own templates, and the names that its templates read."""

    owner: Step | Block
    tasks: tuple[CompiledTask, ...]
    index: dict[str, int]
    input: tuple[CompiledField, ...]
    static_input: dict[str, Any]
    assignments: tuple[CompiledAssignment, ...]
    until: Compiled | None
    loops: tuple[CompiledLoop, ...]  # of a block; the loop of a step runs on the server
    bare: frozenset[str]  # first components of all names read
    retained: frozenset[str]  # labels whose results must survive a change of worker
    repeats: bool  # a task may be visited again: by a jump, or because the tasks before a task run again
    composite: bool  # some template reads the step's `results.<task>`
    hooks: dict[str, Hooks] = field(default_factory=dict)  # by the name of the task that they are around
    quota: CompiledQuota | None = None  # of every run
    reports_input: bool = False  # the server needs the step's input at its end

    def entry(self, name: str) -> int:
        """Where a jump to a task leads: to the first task before it."""
        around = self.hooks.get(name)
        return self.index[name] if around is None or around.before is None else around.before

    def label_at(self, index: int | None) -> str | None:
        """The name of the task at an index; None: the end of the pipeline."""
        return None if index is None or index >= len(self.tasks) else self.tasks[index].task.name

    def hook_after(self, index: int) -> int | None:
        """The next task of the same kind around the same task."""
        task = self.tasks[index].task
        following = self.tasks[index + 1].task if index + 1 < len(self.tasks) else None
        same = following is not None and (following.hook_of, following.hook) == (task.hook_of, task.hook)
        return index + 1 if same else None


class Programs(Struct):
    """The programs of one playbook, compiled on first use."""

    playbook: Playbook
    specs: Mapping[str, ToolSpec]
    _steps: dict[str, Program] = field(default_factory=dict)
    _blocks: dict[str, Program] = field(default_factory=dict)
    _reads_results: bool | None = None
    _locations: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()  # declared keychain entries

    def __post_init__(self) -> None:
        self.secrets = tuple(entry.name for entry in self.playbook.keychain)

    def step(self, name: str) -> Program:
        """The program of a step."""
        known = self._steps.get(name)
        if known is None:
            known = self._steps[name] = self._compile(self.playbook.step(name))
        return known

    def synthesized(self, step: Step) -> Program:
        """The program of a synthesized step."""
        known = self._steps.get(step.name)
        if known is None or known.owner != step:
            known = self._steps[step.name] = self._compile(step)
        return known

    def location_of(self, task: Task) -> tuple[str, int | None]:
        """`file:line:column` of a task, and the first line of its code (computed once)."""
        known = self._locations.get(task.path)
        if known is None:
            known = self._locations[task.path] = (self.playbook.where(task.path), self._code_line(task))
        return known

    def _code_line(self, task: Task) -> int | None:
        code = task.input.get("code")
        location = self.playbook.locations.get(f"{task.path}/input/code")
        if location is None or not isinstance(code, str):
            return None
        return location.line + 1 if "\n" in code else location.line  # a block scalar starts below its `|`

    def block(self, name: str) -> Program | None:
        """The program of a workbook block; None if there is no such block."""
        known = self._blocks.get(name)
        if known is None:
            block = self.playbook.blocks.get(name)
            if block is None:
                return None
            known = self._blocks[name] = self._compile(block)
        return known

    def _compile(self, owner: Step | Block) -> Program:
        reads = _names_of_tasks(owner.tasks)
        tasks = tuple(
            _task(
                task,
                number,
                self.specs.get(task.kind),
                owner.max_task_runs,
                _quota(task.quota, f"{self.playbook.path}/{owner.name}/{task.name}"),
            )
            for number, task in enumerate(owner.tasks)
        )
        assignments = _assignments(owner.assignments)
        is_block = isinstance(owner, Block)
        fields, static = _fields(owner.input, owner.path)
        loops = _loops(owner.loop) if is_block else ()
        until = None if is_block else _until(owner.loop)
        quota = None if is_block else _quota(owner.quota, f"{self.playbook.path}/{owner.name}")  # type: ignore[union-attr]
        every = set(reads) | (quota.names if quota is not None else set())
        for assignment in assignments:
            every |= set(assignment.value.names)
        for compiled in fields:
            every |= set(compiled.value.names)
        for loop in loops:
            every |= set(loop.collection.names) | (set(loop.until.names) if loop.until else set())
        if until is not None:
            every |= set(until.names)
        bare = frozenset(name.partition(".")[0] for name in every)
        labels = frozenset(task.name for task in owner.tasks)
        composite = not is_block and bool(labels) and self.reads_results
        retained = labels if composite or "steps" in bare else labels & bare | _mentioned_in_code(owner.tasks, labels)
        return Program(
            owner=owner,
            tasks=tasks,
            index={task.name: number for number, task in enumerate(owner.tasks)},
            input=fields,
            static_input=static,
            assignments=assignments,
            until=until,
            loops=loops,
            bare=bare,
            retained=retained,
            repeats=any(each.task.hook == "before" or _has_jump(each) for each in tasks),
            composite=composite,
            hooks=_hooks(owner.tasks),
            quota=quota,
            reports_input=isinstance(owner, Step) and bool(owner.input) and _server_needs_input(owner),
        )

    @property
    def reads_results(self) -> bool:
        """Whether a template mentions `results`, so that the results of tasks are sent to other steps."""
        if self._reads_results is None:
            texts = _texts((self.playbook.steps, self.playbook.blocks))
            self._reads_results = any("results" in text for text in texts)
        return self._reads_results


def _hooks(tasks: tuple[Task, ...]) -> dict[str, Hooks]:
    """The tasks around tasks; they stand beside them."""
    found: dict[str, Hooks] = {}
    for name in dict.fromkeys(task.hook_of for task in tasks if task.hook):
        main = next(number for number, task in enumerate(tasks) if task.name == name)
        places = {
            word: [n for n, task in enumerate(tasks) if (task.hook_of, task.hook) == (name, word)] for word in _HOOKS
        }
        before, after, final = (places[word][0] if places[word] else None for word in _HOOKS)
        found[name] = Hooks(main, before, after, final, max([main, *places["after"], *places["finally"]]) + 1)
    return found


_HOOKS = ("before", "after", "finally")


def _texts(node: Any) -> Iterable[str]:
    """Every templated string below a node of the model."""
    if isinstance(node, str):
        if "{{" in node or "{%" in node:
            yield node
    elif isinstance(node, Mapping):
        for value in node.values():
            yield from _texts(value)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _texts(value)
    elif hasattr(node, "__struct_fields__"):
        for name in node.__struct_fields__:
            yield from _texts(getattr(node, name))


def _server_needs_input(step: Step) -> bool:
    """Whether a compensation, an arc or a custom event reads the step's input."""
    if step.compensation is not None:
        return True
    if step.loop is not None:  # each iteration has its own
        return False
    texts = _texts((step.router, step.emits, step.synthesize))
    return any(name.partition(".")[0] in ("input", "args") for text in texts for name in compile_value(text).names)


def _quota(quota: Quota | None, default_key: str) -> CompiledQuota | None:
    if quota is None:
        return None
    rate, burst, key = (compile_value(value) for value in (quota.rate, quota.burst, quota.key))
    return CompiledQuota(rate, burst, key, default_key, quota.path)


def _task(task: Task, index: int, spec: ToolSpec | None, most_runs: int, quota: CompiledQuota | None) -> CompiledTask:
    given = named_input(spec, task.input) if spec else task.input
    bound = tuple(name for name, field in spec.fields.items() if field.bind) if spec else ()
    late = {name: frozenset(field.late) for name, field in spec.fields.items() if field.late} if spec else {}
    if spec:
        files = {
            name: with_checked_paths(given[name], late.get(name, frozenset()), files=field.files)
            for name, field in spec.fields.items()
            if field.files and name in given
        }
        given = {**given, **files} if files else given
    fields, static = _fields(given, task.path, raw=task.raw, bound=bound, late=late)
    tool_spec = {key: value for key, value in task.spec.items() if key not in _NOT_FOR_TOOLS}
    spec_fields, static_spec = _fields(tool_spec, f"{task.path}/spec")
    rules = None if task.rules is None else tuple(_rule(number, rule) for number, rule in enumerate(task.rules))
    before = {name for compiled in (*fields, *spec_fields) for name in compiled.value.names}
    before |= quota.names if quota is not None else set()
    assignments = _assignments(task.assignments)
    after: set[str] = {name for assignment in assignments for name in assignment.value.names}
    for rule in rules or ():
        after |= set(rule.when.names) if rule.when else set()
        after |= {name for assignment in rule.then.assignments for name in assignment.value.names}
        for value in (rule.then.attempts, rule.then.delay, rule.then.max_delay, rule.then.message):
            after |= set(value.names) if value is not None else set()
    skips = tuple(rule for rule in rules or () if rule.then.do == "skip")
    roots_before = {name.partition(".")[0] for name in before}
    roots_after = {name.partition(".")[0] for name in after}
    return CompiledTask(
        task=task,
        index=index,
        static_input=static,
        fields=fields,
        static_spec=static_spec,
        spec=spec_fields,
        skips=skips,
        rules=None if rules is None else tuple(rule for rule in rules if rule.then.do != "skip"),
        assignments=assignments,
        tool=spec,
        max_task_runs=most if isinstance(most := task.spec.get("max_task_runs"), int) else most_runs,
        suspends=bool(spec and spec.suspends) or task.kind == PLAYBOOK,
        reads_previous=bool(skips or task.hook)  # a task around another one does not change it
        or task.generated is not None  # it is transparent: the next task reads the output of the previous one
        or bool(roots_before & (_OUTPUT_NAMES | {"_prev"}))
        or "_prev" in roots_after
        or task.kind == "python",  # its code may read all scopes
        without_policy=not assignments and not rules,
        fields_read_input="input" in roots_before,
        policy_reads_input=bool(roots_after & {"input", "args"}),
        quota=quota,
    )


def _has_jump(task: CompiledTask) -> bool:
    return any(rule.then.do == "jump" for rule in task.rules or ())


def _fields(
    values: Mapping[str, Any],
    path: str,
    *,
    raw: tuple[str, ...] = (),
    bound: tuple[str, ...] = (),
    late: Mapping[str, frozenset[str]] | None = None,
) -> tuple[tuple[CompiledField, ...], dict[str, Any]]:
    """Templated fields in rendering order, and the static ones."""
    static: dict[str, Any] = {}
    templated: list[CompiledField] = []
    for name, value in values.items():
        if name in raw:
            static[name] = value
            continue
        if late and name in late:
            compiled = compile_deferred(value, late[name])
        else:
            compiled = compile_bound(value) if name in bound else compile_value(value)
        if compiled.static:
            static[name] = value
        else:
            templated.append(CompiledField(name, compiled, (f"{path}/input/{name}", f"{path}/{name}")))
    return tuple(_rendering_order(templated)), static


def _rendering_order(fields: list[CompiledField]) -> list[CompiledField]:
    """A field that reads `input.x` of its own task comes after x; in a cycle the written order is used."""
    own = {compiled.name for compiled in fields}
    needs = {
        compiled.name: {
            parts[1]
            for parts in (name.split(".") for name in compiled.value.names)
            if len(parts) > 1 and parts[0] == "input" and parts[1] in own and parts[1] != compiled.name
        }
        for compiled in fields
    }
    ordered: list[CompiledField] = []
    waiting = list(fields)
    ready: set[str] = set()
    while waiting:
        chosen = next((compiled for compiled in waiting if needs[compiled.name] <= ready), waiting[0])
        waiting.remove(chosen)
        ordered.append(chosen)
        ready.add(chosen.name)
    return ordered


def _rule(index: int, rule: Rule) -> CompiledRule:
    when = None if rule.when is None else compile_value(rule.when)
    return CompiledRule(index, when, _directive(rule.then), rule.path)


def _directive(then: Directive) -> CompiledDirective:
    return CompiledDirective(
        do=then.do,
        attempts=compile_value(then.attempts),
        backoff=then.backoff,
        delay=compile_value(then.delay),
        max_delay=compile_value(then.max_delay),
        to=then.to,
        assignments=_assignments(then.assignments),
        message=None if then.message is None else compile_value(then.message),
        kind=then.kind,
    )


def _assignments(assignments: Iterable[Assignment]) -> tuple[CompiledAssignment, ...]:
    return tuple(_assignment(assignment) for assignment in assignments)


def _assignment(assignment: Assignment) -> CompiledAssignment:
    value = compile_value(assignment.value)
    secret = any(name.partition(".")[0] == "keychain" for name in value.names)
    return CompiledAssignment(assignment.scope, assignment.keys, value, assignment.path, assignment.value, secret)


def _loops(loop: Loop | None) -> tuple[CompiledLoop, ...]:
    found: list[CompiledLoop] = []
    while loop is not None:
        until = None if loop.until is None else compile_value(loop.until)
        found.append(CompiledLoop(compile_value(loop.collection), loop.iterator, until, loop.path))
        loop = loop.inner
    return tuple(found)


def _until(loop: Loop | None) -> Compiled | None:
    """`until` of the innermost loop; the server evaluates those of the outer ones."""
    if loop is None:
        return None
    while loop.inner is not None:
        loop = loop.inner
    return None if loop.until is None else compile_value(loop.until)


def _names_of_tasks(tasks: Iterable[Task]) -> frozenset[str]:
    """Every dotted name that templates of these tasks read."""
    found: set[str] = set()
    for task in tasks:
        for name, value in task.input.items():
            if name not in task.raw:
                found |= set(compile_value(value).names)
        found |= set(compile_value({k: v for k, v in task.spec.items() if k not in _NOT_FOR_TOOLS}).names)
        if task.quota is not None:
            found |= set(compile_value([task.quota.rate, task.quota.burst, task.quota.key]).names)
        for assignment in task.assignments:
            found |= set(compile_value(assignment.value).names)
        for rule in task.rules or ():
            found |= set(compile_value(rule.when).names) if rule.when is not None else set()
            for value in (rule.then.attempts, rule.then.delay, rule.then.max_delay, rule.then.message):
                found |= set(compile_value(value).names)
            for assignment in rule.then.assignments:
                found |= set(compile_value(assignment.value).names)
    return frozenset(found)


def _mentioned_in_code(tasks: Iterable[Task], labels: frozenset[str]) -> frozenset[str]:
    """Labels that code may read: the scopes are visible by name, and all of them as `context`."""
    found: set[str] = set()
    for task in tasks:
        for name in task.raw:
            code = str(task.input.get(name, ""))
            if "context" in code or "results" in code:
                return labels
            found |= {label for label in labels if label in code}
    return frozenset(found)

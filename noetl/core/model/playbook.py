"""The intermediate representation (IR) that every dialect is lowered to.

The engine, the worker and the tools use a playbook only in this form. It is frozen and can be
encoded as JSON, which is how a remote worker receives it.

Values. A `Value` is plain JSON data in which any string may be a template (`"{{ ... }}"`).
Mapping keys are never templates. A value is compiled once before it is evaluated
(`templates.template.compile_value`).

Locations. Every node that can fail at run time has its `path` (`workflow/2/tool/0/input/url`);
`Playbook.locations` maps a path to line and column of the source, for errors and for the debug map of
generated tasks. The longest known prefix of a path counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field

from noetl.core.model.bundle import shown_file

Value = Any

Surface = Literal["canonical", "v10", "2025-11"]
Scope = Literal["ctx", "step", "iter", "args"]
Backoff = Literal["none", "linear", "exponential"]
Action = Literal["continue", "skip", "retry", "jump", "break", "fail"]
FailureMode = Literal["fail_fast", "best_effort"]
Reducer = Literal["sum", "min", "max", "count", "append", "extend", "merge", "any", "all", "last"]

DEFAULT_ATTEMPTS = 3
DEFAULT_MAX_DELAY = 300.0
DEFAULT_MAX_TASK_RUNS = 100_000
DEFAULT_MAX_IDLE_TASK_RUNS = 5_000  # of a pipeline of noop tasks that jumps unconditionally and never ends
DEFAULT_MAX_STEP_RUNS = 1_000_000
MAX_CALL_DEPTH = 32

ALL = "*"
COMPENSATION = ".compensation"  # ends the name of a step that undoes another one
WORKBOOK = "workbook"  # the kind of a call of a block: it starts no tool of its own
WAIT = "wait"  # the kind of a task that waits for a signal or for time: the server ends it
# Where paths below `ctx` have no prefix, paths below other scopes have one:
STEP_KEY = "step:"
STATE_KEY = "state:"  # a value of `state` is stored among those of `ctx`, under a key that no template can read


def target_name(key: str) -> str:
    """A path of shared values (`cursor`, `state:cursor`, `step:cursor`) as the author writes it."""
    for prefix in (STATE_KEY, STEP_KEY):
        if key.startswith(prefix):
            return f"{prefix[:-1]}.{key.removeprefix(prefix)}"
    return f"ctx.{key}"


def ctx_part(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `ctx`, without those of `state`."""
    return {key: value for key, value in values.items() if not key.startswith(STATE_KEY)}


def state_part(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `state` among those of `ctx`."""
    return {key.removeprefix(STATE_KEY): value for key, value in values.items() if key.startswith(STATE_KEY)}


class Location(Struct, frozen=True, array_like=True):
    """A position in the source text; line and column are counted from 1."""

    line: int
    column: int


class Assignment(Struct, frozen=True, omit_defaults=True):
    """`set`: write a value to a scope. `args` is the arc payload of v10, which the token carries."""

    scope: Scope
    keys: tuple[str, ...]  # ctx.a.b -> ("a", "b")
    value: Value
    path: str = ""


class Directive(Struct, frozen=True, omit_defaults=True):
    """`then:` of a task rule."""

    do: Action
    attempts: Value = DEFAULT_ATTEMPTS
    backoff: Backoff = "none"
    delay: Value = 0
    max_delay: Value = DEFAULT_MAX_DELAY
    to: str | None = None
    assignments: tuple[Assignment, ...] = ()
    message: Value = None  # fail: the message of the error
    kind: str | None = None  # fail: the kind of the error


class Rule(Struct, frozen=True, omit_defaults=True):
    """One rule of a task policy; `when` None is `else`."""

    when: Value
    then: Directive
    path: str = ""


class OutputPolicy(Struct, frozen=True, omit_defaults=True):
    """`output: {store, select, inline_max_bytes}`: where a large result is stored and what is inline."""

    store: dict[str, Value] = field(default_factory=dict)
    select: tuple[str, ...] = ()
    inline_max_bytes: int | None = None


class Validation(Struct, frozen=True, omit_defaults=True):
    """`spec.validation`: JSON Schemas of input and output, inline or by the name of a registered one (`orders/v2`)."""

    input: Value = None
    output: Value = None


class Quota(Struct, frozen=True, omit_defaults=True):
    """`spec.policy.quotas`: how often runs start, over all executions that share the key."""

    rate: Value
    burst: Value = None
    key: Value = None  # None: the playbook with its step or task
    path: str = ""


class Task(Struct, frozen=True, omit_defaults=True):
    """One tool invocation of a pipeline.

    `rules` None means the default policy (ok continues, error fails); an empty tuple means a
    policy that matches nothing (continue). `spec` is the effective spec: kind defaults,
    executor, step, loop and task merged, without `policy`.
    `on_unmatched` is the directive for an error that no rule matches.
    `raw` names the input fields that are never rendered (python's `code`).
    `effect` at_most_once: after a lost worker the task fails as `ambiguous`.
    A `generated` task (a noop of choose, while or until) is transparent: its rules read the `output` of the
    author's task before it, and it does not change `output`, `_prev` and the pipeline's result.
    """

    name: str
    kind: str
    input: dict[str, Value] = field(default_factory=dict)
    assignments: tuple[Assignment, ...] = ()
    rules: tuple[Rule, ...] | None = None
    on_unmatched: Literal["continue", "fail"] = "continue"
    spec: dict[str, Value] = field(default_factory=dict)
    raw: tuple[str, ...] = ()
    effect: Literal["at_least_once", "at_most_once"] = "at_least_once"
    output: OutputPolicy = OutputPolicy()
    validation: Validation | None = None
    quota: Quota | None = None  # every attempt takes a token
    generated: str | None = None  # the author's construct, for tasks generated by choose/while/until
    hook: Literal["", "before", "after", "finally"] = ""  # of the task `hook_of`, beside which it stands
    hook_of: str = ""
    path: str = ""


class AdmitRule(Struct, frozen=True, omit_defaults=True):
    """One rule of an admission gate; `when` None is `else`."""

    when: Value
    allow: Value
    path: str = ""


class Admission(Struct, frozen=True, omit_defaults=True):
    """The gate before a step. No rules: open. Rules that all fail without an `else`: closed."""

    rules: tuple[AdmitRule, ...] = ()
    on_deny: Literal["park", "discard"] = "park"
    join: Literal["all", "each"] = "all"
    once: bool = False


class Loop(Struct, frozen=True, omit_defaults=True):
    """Iterate a step's pipeline over a collection; `inner` is `loop.loop`."""

    collection: Value
    iterator: str
    mode: Literal["sequential", "parallel"] = "sequential"
    max_in_flight: Value = None
    until: Value = None
    exec: Literal["local", "distributed"] = "distributed"
    reduce: dict[str, Reducer] = field(default_factory=dict)  # "total" or "a.b" below ctx, "step:total" -> reducer
    inner: Loop | None = None
    path: str = ""


class Arc(Struct, frozen=True, omit_defaults=True):
    """An arc out of a step. `when` None is the success path: it does not fire on step.failed."""

    target: str
    when: Value = None
    assignments: tuple[Assignment, ...] = ()
    dedupe: Value = None  # tokens for one target with an equal key are merged
    partition: Value = None  # tokens with an equal key run one at a time
    priority: Value = None  # of the runs of its tokens among those that wait for a worker
    path: str = ""


class Router(Struct, frozen=True, omit_defaults=True):
    """The arcs of a step, in the author's order."""

    arcs: tuple[Arc, ...] = ()
    mode: Literal["exclusive", "inclusive"] = "exclusive"


class Synthesis(Struct, frozen=True, omit_defaults=True):
    """`spec.policy.synthesize`: workflow nodes that a step returns as data."""

    source: Value
    max_steps: int = 100
    kinds: tuple[str, ...] = ()
    path: str = ""


class Compensation(Struct, frozen=True, omit_defaults=True):
    """`spec.policy.compensation`: how a completed run of a step is undone.

    `step` is a step of its own that no arc leads to, named `STEP.compensation`; `when` decides whether it runs."""

    step: Step
    when: Value = None
    path: str = ""


class Emit(Struct, frozen=True, omit_defaults=True):
    """A custom event at the end of a step; `when` None: if the step succeeded."""

    name: str
    payload: Value = None
    when: Value = None
    path: str = ""


class Block(Struct, frozen=True, omit_defaults=True):
    """A workbook block: similar to a step, called by `kind: workbook`, with its own scopes."""

    name: str
    input: dict[str, Value] = field(default_factory=dict)
    loop: Loop | None = None
    tasks: tuple[Task, ...] = ()
    assignments: tuple[Assignment, ...] = ()
    failure: FailureMode = "fail_fast"
    max_failed: int | str | None = None
    max_task_runs: int = DEFAULT_MAX_TASK_RUNS
    path: str = ""


class Step(Struct, frozen=True, omit_defaults=True):
    """A Petri-net transition: an admission gate, a pipeline of tasks, a router of arcs.

    `exports` are the dotted paths below this step's output (`data.count`, `loop.failed`) that
    server-side templates read; the worker includes them inline when the payload is stored by
    reference. `reads` are the steps whose results this step's worker-side templates read by name
    (`*` if that is unknown); the server sends only those.
    """

    name: str
    description: str = ""
    admission: Admission = Admission()
    input: dict[str, Value] = field(default_factory=dict)
    loop: Loop | None = None
    tasks: tuple[Task, ...] = ()
    assignments: tuple[Assignment, ...] = ()
    router: Router = Router()
    failure: FailureMode = "fail_fast"
    max_failed: int | str | None = None  # of best_effort: a number of iterations, or a share of them (`5%`)
    timeout_s: Value = None
    deadline_s: Value = None
    max_task_runs: int = DEFAULT_MAX_TASK_RUNS
    synthesize: Synthesis | None = None
    compensation: Compensation | None = None
    emits: tuple[Emit, ...] = ()
    quota: Quota | None = None  # every run (of a loop: every iteration) takes a token
    validation: Validation | None = None
    output: OutputPolicy = OutputPolicy()
    spec: dict[str, Value] = field(default_factory=dict)
    exports: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    pool: str | None = None
    labels: tuple[str, ...] = ()  # `key=value`, which a worker must have
    cost: int = 1  # slots of its worker that a run occupies
    synthesized_by: str = ""  # of the first of synthesized steps: the step that returned them
    path: str = ""


def step_of(steps: Mapping[str, Step], name: str) -> Step:
    """The step with that name, or the step that undoes it (`NAME.compensation`)."""
    known = steps.get(name)
    if known is None:
        compensation = steps[name.removesuffix(COMPENSATION)].compensation
        if compensation is None:
            raise KeyError(name)
        known = compensation.step
    return known


def worker_command(step: Step) -> str:
    """The command that starts a worker which can take the runs of a step."""
    pool = f" --pool {step.pool}" if step.pool else ""
    return f"noetl worker start{pool}{''.join(f' --label {label}' for label in step.labels)}"


def most_failures(body: Step | Block, count: int) -> int | None:
    """How many iterations of `count` may fail; None: any number."""
    if body.failure == "fail_fast":
        return 0
    most = body.max_failed
    return int(count * float(most.rstrip("% ")) / 100) if isinstance(most, str) else most


class KeychainEntry(Struct, frozen=True, omit_defaults=True):
    """A declared secret: its name, its kind and its source. Never its value
    (except `static`, which is for tests)."""

    name: str
    kind: str
    fields: dict[str, Value] = field(default_factory=dict)
    path: str = ""


class Limits(Struct, frozen=True, omit_defaults=True):
    """`executor.spec.policy.limits`, bounded by the limits of the installation.

    Without `max_step_runs` two limits apply: a high one for all step runs, and a leaky bucket for repeated step runs
    (`engine.handlers.runaway`)."""

    max_payload_bytes: int = 64 * 1024
    max_hydrate_bytes: int = 64 * 1024 * 1024
    max_iterations: int = 10_000_000
    max_in_flight: int = 10_000
    max_step_runs: int | None = None
    max_call_depth: int = MAX_CALL_DEPTH
    max_state_bytes: int = 256 * 1024


class TracePolicy(Struct, frozen=True, omit_defaults=True):
    """`executor.spec.tracing`. `enabled` None: the installation decides; True: outcomes have a trace id in any case."""

    enabled: bool | None = None
    sample: float = 1.0  # share of the executions whose spans are exported
    attributes: dict[str, Value] = field(default_factory=dict)  # of every span


class Executor(Struct, frozen=True, omit_defaults=True):
    """The executor settings and defaults of a playbook."""

    profile: Literal["local", "distributed", "auto"] = "auto"
    version: str | None = None
    spec: dict[str, Value] = field(default_factory=dict)
    limits: Limits = Limits()
    extensions: tuple[str, ...] = ()
    reference_first: bool = False  # every result is stored, also small ones
    tracing: TracePolicy = TracePolicy()
    pool: str | None = None  # of steps that name none
    labels: tuple[str, ...] = ()  # of every step
    cost: int = 1  # of steps that state none
    state_commit: Literal["execution", "step"] = "execution"  # with what the writes to `state` are committed


class Playbook(Struct, frozen=True, omit_defaults=True, dict=True):
    """A compiled playbook. `digest` identifies its text; `entry` is always one of its steps."""

    name: str
    path: str
    entry: str
    steps: tuple[Step, ...]
    version: str | None = None
    description: str = ""
    surface: Surface = "canonical"
    return_step: str | None = None
    workload: dict[str, Value] = field(default_factory=dict)
    keychain: tuple[KeychainEntry, ...] = ()
    executor: Executor = Executor()
    blocks: dict[str, Block] = field(default_factory=dict)
    locations: dict[str, Location] = field(default_factory=dict, name="places")
    file: str = ""
    shown: str = ""  # the file as messages show it; default: `file`
    digest: str = ""
    metadata: dict[str, Value] = field(default_factory=dict)
    uses_state: bool = False  # its text names `state`: the values are read when an execution is requested

    def step(self, name: str) -> Step:
        """The step with that name, or the step that undoes it (`NAME.compensation`)."""
        return step_of(self.steps_by_name, name)

    @property
    def steps_by_name(self) -> dict[str, Step]:
        """All steps by name (computed once)."""
        known: dict[str, Step] | None = self.__dict__.get("_steps_by_name")
        if known is None:
            known = {step.name: step for step in self.steps}
            self.__dict__["_steps_by_name"] = known
        return known

    def location(self, path: str) -> Location | None:
        """The source location of a node, or of its nearest known ancestor."""
        while path:
            if path in self.locations:
                return self.locations[path]
            path = path.rpartition("/")[0]
        return None

    def where(self, path: str) -> str:
        """`file:line:column` of a node, for error messages."""
        location = self.location(path)
        name = self.shown or shown_file(self.file) or self.path
        return f"{name}:{location.line}:{location.column}" if location else name

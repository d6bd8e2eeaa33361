"""The one intermediate model (IR) that every surface is lowered to.

The engine, the worker and the tools know a playbook only in this form. All of it is frozen,
and all of it can be written as JSON: that is how a worker on another machine receives it.

Values. A `Value` is plain JSON data in which any string may be a template (`"{{ ... }}"`).
Mapping keys are never templates. Whoever evaluates a value compiles it once (`expr.compile_value`).

Places. Every node that can fail at run time knows its `path` (`workflow/2/tool/0/input/url`);
`Playbook.places` leads from a path to the author's line and column, for errors and for the
debug map of generated tasks. Look up the longest prefix that is there.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

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
DEFAULT_MAX_IDLE_TASK_RUNS = 5_000  # of a pipeline of noop tasks that jump without asking: it never ends by itself
DEFAULT_MAX_STEP_RUNS = 1_000_000
MAX_CALL_DEPTH = 32

ALL = "*"


class Place(Struct, frozen=True, array_like=True):
    """A position in the author's text, both counted from 1."""

    line: int
    column: int


class Assignment(Struct, frozen=True, omit_defaults=True):
    """`set`: write a value into a scope. `args` is v10's arc payload, which travels with the token."""

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


class Rule(Struct, frozen=True, omit_defaults=True):
    """One rule of a task policy; `when` None is `else`."""

    when: Value
    then: Directive
    path: str = ""


class OutputPolicy(Struct, frozen=True, omit_defaults=True):
    """`output: {store, select}`: where a large result goes and which fields travel inline."""

    store: dict[str, Value] = field(default_factory=dict)
    select: tuple[str, ...] = ()


class Task(Struct, frozen=True, omit_defaults=True):
    """One tool invocation of a pipeline.

    `rules` None means the default policy (ok continues, error fails); an empty tuple means a
    policy that matches nothing (continue). `spec` is the effective spec: kind defaults,
    executor, step, loop and task laid over each other, `policy` taken out.
    `raw` names the input fields that are never rendered (python's `code`).
    `effect` at_most_once: after a lost worker the task fails as `ambiguous`.
    A `generated` task (a noop made by choose, while or until) is transparent: its rules read the `output` of the
    author's task before it, and it leaves `output`, `_prev` and the pipeline's result as they are.
    """

    name: str
    kind: str
    input: dict[str, Value] = field(default_factory=dict)
    assignments: tuple[Assignment, ...] = ()
    rules: tuple[Rule, ...] | None = None
    spec: dict[str, Value] = field(default_factory=dict)
    raw: tuple[str, ...] = ()
    effect: Literal["at_least_once", "at_most_once"] = "at_least_once"
    output: OutputPolicy = OutputPolicy()
    generated: str | None = None  # the author's construct, for tasks made by choose/while/until
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
    reduce: dict[str, Reducer] = field(default_factory=dict)  # "total" or "a.b" below ctx -> reducer
    inner: Loop | None = None
    path: str = ""


class Arc(Struct, frozen=True, omit_defaults=True):
    """A way out of a step. `when` None is the success path: it does not fire on step.failed."""

    target: str
    when: Value = None
    assignments: tuple[Assignment, ...] = ()
    path: str = ""


class Router(Struct, frozen=True, omit_defaults=True):
    """The arcs of a step, in the author's order."""

    arcs: tuple[Arc, ...] = ()
    mode: Literal["exclusive", "inclusive"] = "exclusive"


class Synthesis(Struct, frozen=True, omit_defaults=True):
    """`spec.policy.synthesize`: workflow nodes that a step hands the server as data."""

    source: Value
    max_steps: int = 100
    kinds: tuple[str, ...] = ()
    path: str = ""


class Block(Struct, frozen=True, omit_defaults=True):
    """A workbook block: step-like, called by `kind: workbook`, with scopes of its own."""

    name: str
    input: dict[str, Value] = field(default_factory=dict)
    loop: Loop | None = None
    tasks: tuple[Task, ...] = ()
    assignments: tuple[Assignment, ...] = ()
    failure: FailureMode = "fail_fast"
    max_task_runs: int = DEFAULT_MAX_TASK_RUNS
    path: str = ""


class Step(Struct, frozen=True, omit_defaults=True):
    """A Petri-net transition: an admission gate, a pipeline of tasks, a router of arcs.

    `exports` are the dotted paths below this step's output (`data.count`, `loop.failed`) that
    server-side templates anywhere read; the worker keeps them inline when the payload is
    stored by reference. `reads` are the steps whose results this step's worker-side templates
    read by name (`*` when it cannot be told); the server sends just those along.
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
    timeout_s: Value = None
    deadline_s: Value = None
    max_task_runs: int = DEFAULT_MAX_TASK_RUNS
    synthesize: Synthesis | None = None
    output: OutputPolicy = OutputPolicy()
    spec: dict[str, Value] = field(default_factory=dict)
    exports: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    pool: str | None = None
    path: str = ""


class KeychainEntry(Struct, frozen=True, omit_defaults=True):
    """A declared secret: its name, its kind, and where it comes from. Never its value
    (except `static`, which is for tests)."""

    name: str
    kind: str
    fields: dict[str, Value] = field(default_factory=dict)
    path: str = ""


class Limits(Struct, frozen=True, omit_defaults=True):
    """`executor.spec.policy.limits`, all of it bounded by the installation's own.

    Without `max_step_runs` there are two bounds: a high one for all step runs, and a low one for those that follow
    each other so fast that nothing can have happened between them (`engine.circles`)."""

    max_payload_bytes: int = 64 * 1024
    max_hydrate_bytes: int = 64 * 1024 * 1024
    max_iterations: int = 10_000_000
    max_in_flight: int = 10_000
    max_step_runs: int | None = None
    max_call_depth: int = MAX_CALL_DEPTH


class Executor(Struct, frozen=True, omit_defaults=True):
    """Runtime wishes and defaults of a playbook."""

    profile: Literal["local", "distributed", "auto"] = "auto"
    version: str | None = None
    spec: dict[str, Value] = field(default_factory=dict)
    limits: Limits = Limits()
    extensions: tuple[str, ...] = ()


class Playbook(Struct, frozen=True, omit_defaults=True, dict=True):
    """A compiled playbook. `digest` names its text; `entry` is always a step of it."""

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
    places: dict[str, Place] = field(default_factory=dict)
    file: str = ""
    digest: str = ""
    metadata: dict[str, Value] = field(default_factory=dict)

    def step(self, name: str) -> Step:
        """The step of that name."""
        return self.steps_by_name[name]

    @property
    def steps_by_name(self) -> dict[str, Step]:
        """All steps by name (computed once)."""
        known: dict[str, Step] | None = self.__dict__.get("_steps_by_name")
        if known is None:
            known = {step.name: step for step in self.steps}
            self.__dict__["_steps_by_name"] = known
        return known

    def place(self, path: str) -> Place | None:
        """Where in the author's text a node of this path stands (its nearest known ancestor)."""
        while path:
            if path in self.places:
                return self.places[path]
            path = path.rpartition("/")[0]
        return None

    def where(self, path: str) -> str:
        """`file:line:column` of a node, for error messages."""
        place = self.place(path)
        name = self.file or self.path
        return f"{name}:{place.line}:{place.column}" if place else name

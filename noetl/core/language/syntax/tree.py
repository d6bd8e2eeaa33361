"""The syntax tree with positions, common to all dialects.

It has the structure of the document, not its meaning: shorthand is not expanded, specs are not layered, templates are
text. Every part stores the node that it was read from and its `path`, which maps the lowered playbook back to lines of
the text. Parts that could not be read are None or missing; the reader has reported them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct, field

from noetl.core.language.source.nodes import Mapping, Node, Scalar
from noetl.core.model.playbook import Playbook, Surface
from noetl.core.model.tool import ToolSpec


class SetSyntax(Struct, eq=False):
    """One assignment: `ctx.page: ...`, or v10's `set_ctx: {page: ...}`."""

    scope: str  # ctx, step, iter, state or args
    keys: tuple[str, ...]
    key: Scalar
    value: Node
    path: str

    @property
    def target(self) -> str:
        """The target in its canonical form."""
        return ".".join((self.scope, *self.keys))


class RuleSyntax(Struct, eq=False):
    """One rule of a task's policy; `when` is None for `else`."""

    node: Node
    path: str
    when: Node | None = None
    is_else: bool = False
    then: Mapping | None = None
    then_path: str = ""
    do: str | None = None
    fields: dict[str, Node] = field(default_factory=dict)  # attempts, backoff, delay, max_delay, to, message, kind
    sets: list[SetSyntax] = field(default_factory=list)


class PolicySyntax(Struct, eq=False):
    """`spec.policy` of a task."""

    node: Node
    path: str
    rules: list[RuleSyntax] = field(default_factory=list)
    complete: bool = True  # False when a rule of it could not be read
    has_rules: bool = True  # else it has only tasks around the task, and the default policy applies
    on_unmatched: str | None = None
    quota: QuotaSyntax | None = None


class Parameter(Struct, eq=False):
    """One parameter of a task under its canonical name, with its position and value."""

    key: Scalar
    value: Node
    path: str
    raw: bool = False
    late: tuple[str, ...] = ()  # names that the tool adds to templates in it


class OutputSyntax(Struct, eq=False):
    """`output: {store, select, schema}`."""

    schema: Node | None = None

    store: Node | None = None
    inline_max_bytes: Scalar | None = None
    select: list[Scalar] = field(default_factory=list)
    path: str = ""


class ValidationSyntax(Struct, eq=False):
    """`spec.validation`, with `output.schema` as the schema of the output."""

    input: Node | None = None
    output: Node | None = None
    path: str = ""


class PlacementSyntax(Struct, eq=False):
    """`pool`, `placement.labels` and `cost` of a spec."""

    pool: Scalar | None = None
    cost: Scalar | None = None
    labels: dict[str, Scalar] = field(default_factory=dict)


class QuotaSyntax(Struct, eq=False):
    """`spec.policy.quotas`."""

    node: Node
    path: str
    rate: Node | None = None
    burst: Node | None = None
    key: Node | None = None


class TaskSyntax(Struct, eq=False):
    """One task of a pipeline."""

    node: Node
    path: str
    name: str
    name_node: Node
    named: bool = True  # False if the name is derived from the position
    kind: str | None = None
    kind_node: Scalar | None = None
    tool: ToolSpec | None = None
    parameters: dict[str, Parameter] = field(default_factory=dict)
    spec: Mapping | None = None
    spec_path: str = ""
    retry: Node | None = None
    timeout: Node | None = None  # written beside `kind`
    policy: PolicySyntax | None = None
    sets: list[SetSyntax] = field(default_factory=list)
    output: OutputSyntax | None = None
    hooks: dict[str, list[TaskSyntax]] = field(default_factory=dict)  # before, after, finally
    placement: PlacementSyntax = field(default_factory=PlacementSyntax)
    validation: ValidationSyntax | None = None

    @property
    def rules(self) -> list[RuleSyntax]:
        """The rules of its policy."""
        return self.policy.rules if self.policy is not None else []

    def all_sets(self) -> list[SetSyntax]:
        """Its own assignments and those of its rules."""
        return [*self.sets, *(assigned for rule in self.rules for assigned in rule.sets)]

    def with_hooks(self) -> Iterator[TaskSyntax]:
        """The tasks before it, itself, and the tasks after it."""
        yield from self.hooks.get("before", ())
        yield self
        yield from self.hooks.get("after", ())
        yield from self.hooks.get("finally", ())


class BranchSyntax(Struct, eq=False):
    """A guarded list of tasks inside `choose`, `while` or `until`."""

    node: Node
    path: str
    when: Node | None
    items: list[ItemSyntax] = field(default_factory=list)


class ConstructSyntax(Struct, eq=False):
    """`choose`, `while` or `until`, which are compiled to tasks and jumps."""

    node: Node
    path: str
    keyword: Literal["choose", "while", "until"]
    name: str
    name_node: Node
    named: bool
    branches: list[BranchSyntax] = field(default_factory=list)

    def tasks(self) -> Iterator[TaskSyntax]:
        """Every task inside it, in order."""
        return _tasks_of([self])


ItemSyntax = TaskSyntax | ConstructSyntax


class LoopSyntax(Struct, eq=False):
    """`loop`, with the scheduling options of its spec."""

    node: Mapping
    path: str
    collection: Node | None = None
    iterator: str | None = None
    spec: Mapping | None = None
    spec_path: str = ""
    mode: str = "sequential"  # empty if it could not be read
    max_in_flight: Node | None = None
    until: Node | None = None
    exec: str | None = None
    reduce: Mapping | None = None
    inner: LoopSyntax | None = None

    def levels(self) -> Iterator[LoopSyntax]:
        """This loop and the loops inside it, outermost first."""
        level: LoopSyntax | None = self
        while level is not None:
            yield level
            level = level.inner


class AdmitRuleSyntax(Struct, eq=False):
    """One rule of an admission gate; `when` is None for `else`."""

    node: Node
    path: str
    when: Node | None = None
    is_else: bool = False
    allow: Node | None = None


class AdmitSyntax(Struct, eq=False):
    """The gate before a step."""

    node: Node
    path: str
    rules: list[AdmitRuleSyntax] = field(default_factory=list)
    on_deny: str = "park"
    join: str = "all"
    once: bool = False


class ArcSyntax(Struct, eq=False):
    """An arc that leaves a step."""

    node: Node
    path: str
    target: str | None = None
    target_node: Node | None = None
    when: Node | None = None
    sets: list[SetSyntax] = field(default_factory=list)
    dedupe: Node | None = None
    partition: Node | None = None
    priority: Node | None = None


class RouterSyntax(Struct, eq=False):
    """`next`."""

    node: Node
    path: str
    mode: str = "exclusive"
    arcs: list[ArcSyntax] = field(default_factory=list)


class SynthesisSyntax(Struct, eq=False):
    """`spec.policy.synthesize`."""

    node: Node
    path: str
    source: Node | None = None
    max_steps: int = 100
    kinds: tuple[str, ...] = ()


class BodySyntax(Struct, eq=False):
    """The common part of steps and workbook blocks."""

    node: Node
    path: str
    name: str
    name_node: Node
    description: str = ""
    spec: Mapping | None = None
    spec_path: str = ""
    input: Mapping | None = None
    loop: LoopSyntax | None = None
    items: list[ItemSyntax] = field(default_factory=list)
    has_tool: bool = False
    sets: list[SetSyntax] = field(default_factory=list)
    failure: str = "fail_fast"
    max_failed: int | str | None = None
    timeout_s: Node | None = None
    deadline_s: Node | None = None
    validation: ValidationSyntax | None = None
    quota: QuotaSyntax | None = None

    @property
    def arcs(self) -> list[ArcSyntax]:
        """The arcs that leave it."""
        return []

    def loops(self) -> Iterator[LoopSyntax]:
        """Its nested loops, outermost first."""
        return self.loop.levels() if self.loop is not None else iter(())

    def tasks(self) -> Iterator[TaskSyntax]:
        """Every task in the author's order, also those inside choose, while and until."""
        items = self.items
        if len(items) == 1 and isinstance(items[0], TaskSyntax) and not items[0].hooks:
            return iter((items[0],))  # the common case, used by every check
        return _tasks_of(items)

    def constructs(self) -> Iterator[ConstructSyntax]:
        """Every choose, while and until, outer ones first."""
        return _constructs_of(self.items)


class CompensationSyntax(BodySyntax, eq=False):
    """`spec.policy.compensation` of a step."""

    when: Node | None = None


class EmitSyntax(Struct, eq=False):
    """One entry of `spec.policy.emit.events`."""

    node: Node
    path: str
    name: str
    payload: Node | None = None
    when: Node | None = None


class StepSyntax(BodySyntax, eq=False):
    """A step of the workflow."""

    compensation: CompensationSyntax | None = None
    emits: list[EmitSyntax] = field(default_factory=list)
    admit: AdmitSyntax | None = None
    router: RouterSyntax | None = None
    synthesis: SynthesisSyntax | None = None
    output: OutputSyntax | None = None
    placement: PlacementSyntax = field(default_factory=PlacementSyntax)

    @property
    def arcs(self) -> list[ArcSyntax]:
        """The arcs that leave it."""
        return self.router.arcs if self.router is not None else []

    @property
    def admit_rules(self) -> list[AdmitRuleSyntax]:
        """The rules of its admission gate."""
        return self.admit.rules if self.admit is not None else []


class BlockSyntax(BodySyntax, eq=False):
    """A block of the workbook."""


class KeychainSyntax(Struct, eq=False):
    """One entry of the keychain."""

    node: Node
    path: str
    name: str
    name_node: Node
    kind: str
    kind_node: Node
    fields: dict[str, Node] = field(default_factory=dict)


class ExecutorSyntax(Struct, eq=False):
    """`executor`."""

    node: Node
    path: str
    profile: str = "auto"
    version: str | None = None
    version_node: Node | None = None
    spec: Mapping | None = None
    entry_step: Scalar | None = None
    return_step: Scalar | None = None
    extensions: tuple[str, ...] = ()
    limits: dict[str, int] = field(default_factory=dict)
    state_commit: str = "execution"
    defaults: Mapping | None = None
    tracing: dict[str, Node] = field(default_factory=dict)
    placement: PlacementSyntax = field(default_factory=PlacementSyntax)
    reference_first: bool = False


class DocumentSyntax(Struct, eq=False):
    """A whole playbook."""

    node: Mapping
    surface: Surface = "canonical"
    name: str = ""
    catalog_path: str = ""
    version: str | None = None
    description: str = ""
    metadata: Mapping | None = None
    workload: Mapping | None = None
    keychain: list[KeychainSyntax] = field(default_factory=list)
    executor: ExecutorSyntax | None = None
    steps: list[StepSyntax] = field(default_factory=list)
    blocks: list[BlockSyntax] = field(default_factory=list)
    running: Playbook | None = None  # the running playbook that synthesized steps join

    def entry(self) -> str:
        """The first step to run: `entry_step` of the executor, else `start`, else the first step."""
        if self.executor is not None and self.executor.entry_step is not None:
            return self.executor.entry_step.text
        names = [step.name for step in self.steps]
        return "start" if "start" in names else names[0] if names else ""

    def step_names(self) -> list[str]:
        """Every step that templates and arcs may name."""
        running = list(self.running.steps_by_name) if self.running else []
        return running + [step.name for step in self.steps]

    def block_names(self) -> list[str]:
        """Every block that tasks may call."""
        running = list(self.running.blocks) if self.running else []
        return running + [block.name for block in self.blocks]

    def bodies(self) -> Iterator[StepSyntax | BlockSyntax | CompensationSyntax]:
        """Steps, then blocks, then compensations of steps."""
        yield from self.steps
        yield from self.blocks
        yield from (step.compensation for step in self.steps if step.compensation is not None)


def _tasks_of(items: list[ItemSyntax]) -> Iterator[TaskSyntax]:
    for item in items:
        if isinstance(item, TaskSyntax):
            yield from item.with_hooks()
        else:
            for branch in item.branches:
                yield from _tasks_of(branch.items)


def _constructs_of(items: list[ItemSyntax]) -> Iterator[ConstructSyntax]:
    for item in items:
        if isinstance(item, ConstructSyntax):
            yield item
            for branch in item.branches:
                yield from _constructs_of(branch.items)

"""All templates of a document with their positions.

Checks iterate over this list; `visibility` defines which names exist at a site.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from noetl.core.language.flow import visibility as at
from noetl.core.language.flow.template_analysis import Template, analyze_template
from noetl.core.language.flow.visibility import Visibility
from noetl.core.language.source.nodes import Mapping, Node, Scalar, Sequence
from noetl.core.language.syntax.tree import (
    BlockSyntax,
    BodySyntax,
    ConstructSyntax,
    DocumentSyntax,
    LoopSyntax,
    QuotaSyntax,
    SetSyntax,
    StepSyntax,
    TaskSyntax,
)
from noetl.core.templates.template import is_template


class TemplateSite(Struct, eq=False):
    """One template: its node, its visibility, and the body and task that contain it."""

    node: Scalar
    template: Template
    visibility: Visibility
    body: BodySyntax | None = None
    task: TaskSyntax | None = None
    assigns: SetSyntax | None = None  # the assignment it is (part of) the value of
    depth: int = 0  # how many loop levels are open (inner loops see the outer iterations)


class TemplateSites:
    """All templates and guards of a document."""

    def __init__(self, document: DocumentSyntax) -> None:
        self.templates: list[TemplateSite] = []
        self.plain_text_guards: list[Scalar] = []  # `when` and `until` without a template
        self.templated_guards: list[Scalar] = []
        self.bound: list[TemplateSite] = []  # templates of code: values of their expressions stay data
        self.keys: list[Scalar] = []  # keys with template delimiters in them
        self.braces: list[Scalar] = []  # texts with braces, templates or not
        if document.workload is not None:
            for _, value in document.workload.entries.values():
                self._add(value, at.WORKLOAD)
        for entry in document.keychain:
            for node in entry.fields.values():
                self._add(node, at.KEYCHAIN)
        if document.executor is not None:
            self._add(document.executor.tracing.get("attributes"), at.TRACING)
            self._defaults(document.executor.spec, None)
        for step in document.steps:
            self._step(step)
        for block in document.blocks:
            self._block(block)

    def _step(self, step: StepSyntax) -> None:
        for rule in step.admit_rules:
            self._guard(rule.when, at.ADMIT, step)
            self._add(rule.allow, at.ADMIT, step)
        depth = sum(1 for _ in step.loops())
        self._add(step.input, at.LOOP_INPUT if depth else at.STEP_INPUT, step, depth=depth)
        self._loop(step.loop, step, at.LOOP_IN, at.INNER_LOOP_IN)
        self._add(step.timeout_s, at.LIMIT, step)
        self._add(step.deadline_s, at.LIMIT, step)
        self._quota(step.quota, step, None, depth)
        self._defaults(step.spec, step)
        self._tasks(step)
        self._sets(step.sets, at.STEP_SET, step)
        if step.synthesis is not None:
            self._add(step.synthesis.source, at.SYNTHESIS, step)
        for emit in step.emits:
            self._guard(emit.when, at.ARC, step)
            self._add(emit.payload, at.ARC, step)
        if step.compensation is not None:
            first = len(self.templates)
            self._tasks(step.compensation)
            for site in self.templates[first:]:
                site.visibility = at.in_compensation(site.visibility)
            self._guard(step.compensation.when, at.COMPENSATE_WHEN, step.compensation)
        for arc in step.arcs:
            self._guard(arc.when, at.ARC, step)
            self._add(arc.dedupe, at.ARC, step)
            self._add(arc.partition, at.ARC, step)
            self._add(arc.priority, at.ARC, step)
            self._sets(arc.sets, at.ARC, step)

    def _block(self, block: BlockSyntax) -> None:
        self._add(block.input, at.BLOCK_INPUT, block)
        self._loop(block.loop, block, at.BLOCK_LOOP_IN, at.BLOCK_LOOP_IN)
        self._defaults(block.spec, block)
        self._tasks(block)
        self._sets(block.sets, at.BLOCK_SET, block)

    def _loop(self, loop: LoopSyntax | None, body: BodySyntax, outer: Visibility, inner: Visibility) -> None:
        if loop is None:
            return
        for depth, level in enumerate(loop.levels()):
            self._add(level.collection, inner if depth else outer, body, depth=depth)
            self._add(level.max_in_flight, inner if depth else outer, body, depth=depth)
            self._guard(level.until, at.LOOP_UNTIL, body, depth=depth + 1)
            self._defaults(level.spec, body)

    def _defaults(self, spec: Mapping | None, body: BodySyntax | None) -> None:
        """Add defaults that tasks inherit; they are rendered with each task."""
        if spec is None:
            return
        for key, (_, value) in spec.entries.items():
            if key not in ("policy", "max_in_flight", "until", "validation", "tracing"):
                self._add(value, at.TASK, body)

    def _tasks(self, body: BodySyntax) -> None:
        depth = sum(1 for _ in body.loops())
        for task in body.tasks():
            for name, parameter in task.parameters.items():
                if not parameter.raw:
                    first = len(self.templates)
                    self._add(parameter.value, at.task_visibility(parameter.late), body, task, depth=depth)
                    if task.tool is not None and (field := task.tool.fields.get(name)) and field.bind:
                        self.bound += self.templates[first:]
            if task.spec is not None:
                for key, (_, value) in task.spec.entries.items():
                    if key not in ("policy", "validation"):  # schemas are data
                        self._add(value, at.TASK, body, task, depth=depth)
            self._add(task.timeout, at.TASK, body, task, depth=depth)
            self._add(task.retry, at.TASK, body, task, depth=depth)
            if task.output is not None:
                self._add(task.output.store, at.TASK, body, task, depth=depth)
            self._sets(task.sets, at.TASK_SET, body, task, depth=depth)
            if task.policy is not None:
                self._quota(task.policy.quota, body, task, depth)
            for rule in task.rules:
                self._guard(rule.when, at.RULE, body, task, depth=depth)
                for name, value in rule.fields.items():
                    if name != "to":
                        self._add(value, at.RULE, body, task, depth=depth)
                self._sets(rule.sets, at.TASK_SET, body, task, depth=depth)
        for construct in body.constructs():
            self._construct(construct, body, depth)

    def _quota(self, quota: QuotaSyntax | None, body: BodySyntax, task: TaskSyntax | None, depth: int) -> None:
        for node in () if quota is None else (quota.rate, quota.burst, quota.key):
            self._add(node, at.QUOTA, body, task, depth=depth)

    def _construct(self, construct: ConstructSyntax, body: BodySyntax, depth: int) -> None:
        for branch in construct.branches:
            self._guard(branch.when, at.RULE, body, depth=depth)

    def _sets(
        self,
        sets: Iterable[SetSyntax],
        visibility: Visibility,
        body: BodySyntax,
        task: TaskSyntax | None = None,
        depth: int = 0,
    ) -> None:
        for assigned in sets:
            self._add(assigned.value, visibility, body, task, assigned, depth)

    def _guard(
        self,
        node: Node | None,
        visibility: Visibility,
        body: BodySyntax,
        task: TaskSyntax | None = None,
        depth: int = 0,
    ) -> None:
        if isinstance(node, Scalar) and isinstance(node.value, str) and not is_template(node.value):
            self.plain_text_guards.append(node)
        else:
            if isinstance(node, Scalar) and isinstance(node.value, str):
                self.templated_guards.append(node)
            self._add(node, visibility, body, task, depth=depth)

    def _add(
        self,
        node: Node | None,
        visibility: Visibility,
        body: BodySyntax | None = None,
        task: TaskSyntax | None = None,
        assigns: SetSyntax | None = None,
        depth: int = 0,
    ) -> None:
        if node is None:
            return
        for scalar in (node,) if isinstance(node, Scalar) else self._scalars(node):
            text = scalar.value
            if not isinstance(text, str) or "{" not in text:
                continue
            self.braces.append(scalar)
            if is_template(text):
                self.templates.append(
                    TemplateSite(scalar, analyze_template(text), visibility, body, task, assigns, depth)
                )

    def _scalars(self, node: Node | None) -> Iterator[Scalar]:
        if isinstance(node, Scalar):
            yield node
        elif isinstance(node, Mapping):
            for key, value in node.entries.values():
                if "{{" in key.text:
                    self.keys.append(key)
                yield from self._scalars(value)
        elif isinstance(node, Sequence):
            for item in node.items:
                yield from self._scalars(item)

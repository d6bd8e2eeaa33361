"""Tasks that no path of the pipeline leads to, and results of tasks that cannot have run when they are read."""

from __future__ import annotations

import re

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.flow import visibility as at
from noetl.core.language.flow.control_flow import END, Pipeline
from noetl.core.language.flow.guard_conditions import is_conditional
from noetl.core.language.flow.template_analysis import Read
from noetl.core.language.flow.template_sites import TemplateSite
from noetl.core.language.syntax.tree import BodySyntax, TaskSyntax

_NOT = re.compile(r"\bnot\b")  # `not later.x` tests whether the task has run


def check(context: AnalysisContext) -> None:
    """Check every pipeline with more than one task."""
    flows: dict[int, _Flow] = {}
    for body in context.document.bodies():
        if body.items:
            flows[id(body)] = flow = _Flow(body)
            _check_reachable(context, flow)
    for site in context.sites.templates:
        if site.body is not None and site.visibility.tasks and id(site.body) in flows:
            _check_site(context, site, flows[id(site.body)])


class _Flow:
    """Which tasks of a pipeline can run, and which can run before which."""

    def __init__(self, body: BodySyntax) -> None:
        self.body = body
        self.pipeline = Pipeline(body)
        self.following = [[edge.target for edge in node.edges] for node in self.pipeline.nodes]
        self.tasks = {task.name: self.pipeline.node_of[id(task)] for task in body.tasks()}
        self._after: dict[int, set[int]] = {}

    def after(self, node: int) -> set[int]:
        """The nodes that can be reached from a node by at least one edge."""
        known = self._after.get(node)
        if known is None:
            known = self._after[node] = set()
            pending = list(self.following[node])
            while pending:
                number = pending.pop()
                if number not in known:
                    known.add(number)
                    pending += self.following[number]
        return known


def _check_reachable(context: AnalysisContext, flow: _Flow) -> None:
    reached = flow.after(flow.pipeline.first) | {flow.pipeline.first}
    before: TaskSyntax | None = None
    for task in flow.body.tasks():
        follows_reached = before is None or flow.tasks[before.name] in reached
        if flow.tasks[task.name] not in reached and follows_reached:  # of several in a row, the first
            message = f'the task "{task.name}" never runs: no path of the pipeline leads to it'
            hint = "give the rule before it that leaves the pipeline a `when`, or remove the task"
            context.reader.add("unreachable-task", task.name_node, message, hint)
        before = task


def _check_site(context: AnalysisContext, site: TemplateSite, flow: _Flow) -> None:
    here = _position(site, flow)
    if here is None or is_conditional(site.node.text) or _NOT.search(site.node.text):
        return
    for read in site.template.reads:
        task = flow.tasks.get(read.path[0])
        if task is None or read.guarded or read.path[0] in context.steps:
            continue
        own = site.task is not None and site.task.name == read.path[0]
        if own and (site.visibility in _AFTER_THE_TOOL or here in flow.after(task)):
            continue
        if here not in flow.after(task):
            _report(context, site, read, own=own)


_AFTER_THE_TOOL = (at.RULE, at.TASK_SET)


def _position(site: TemplateSite, flow: _Flow) -> int | None:
    """The node at which a template is evaluated; None if it is not a part of the pipeline."""
    if site.task is not None:
        return flow.pipeline.node_of.get(id(site.task))
    if site.visibility is at.RULE:
        return flow.pipeline.node_of.get(id(site.node))
    return END if site.visibility in (at.STEP_SET, at.BLOCK_SET) else None


def _report(context: AnalysisContext, site: TemplateSite, read: Read, *, own: bool) -> None:
    name = read.path[0]
    if own:
        message = f'the task "{name}" reads its own result before it runs'
    else:
        message = f'the task "{name}" cannot have run here: no path leads from it to this place'
    hint = f"read a task that runs before, or write `{'.'.join(read.path)} | default(...)`"
    context.report_read("not-run-yet", site, read, message, hint)

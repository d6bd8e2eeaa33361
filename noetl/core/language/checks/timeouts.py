"""Timeouts that a rule waits for and nothing sets.

A task without a timeout is no mistake (`noetl plan` lists those that may wait long). A rule for the error
`timeout` is one, when the code or command it watches has none: it waits for something that cannot happen.
"""

from __future__ import annotations

import re

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.flow.guard_conditions import expression
from noetl.core.language.source.nodes import Mapping
from noetl.core.language.syntax.tree import BodySyntax, TaskSyntax

# Kinds that work on this machine: no error of the world is called `timeout` there.
_LOCAL = frozenset({"python", "shell"})
_ASKS = re.compile(r"""out(?:put|come)\.error\.kind\s*==\s*(['"])timeout\1""")


def check(context: AnalysisContext) -> None:
    """Look at every rule that asks for a timeout."""
    for body in context.document.bodies():
        for task in body.tasks():
            for rule in task.policy.rules if task.policy is not None and task.kind in _LOCAL else ():
                if _ASKS.fullmatch(expression(rule.when)) and not _has_timeout(context, body, task):
                    message = f'this rule handles a timeout, but the task "{task.name}" has none'
                    hint = "set one on the task: `spec: {timeout: 60}`"
                    context.reader.add("missing-timeout", rule.when or rule.node, message, hint)


def _has_timeout(context: AnalysisContext, body: BodySyntax, task: TaskSyntax) -> bool:
    """Whether any layer gives the task a timeout."""
    if task.timeout is not None or "timeout" in task.parameters or (task.tool and "timeout" in task.tool.defaults):
        return True
    executor = context.document.executor
    layers = [task.spec, body.spec, *(level.spec for level in (body.loop.levels() if body.loop else ()))]
    if executor is not None:
        layers += [executor.spec, executor.defaults]
    for layer in layers:
        own = layer.get(task.kind or "") if layer is not None else None
        if layer is not None and (layer.get("timeout") or (isinstance(own, Mapping) and own.get("timeout"))):
            return True
    return False

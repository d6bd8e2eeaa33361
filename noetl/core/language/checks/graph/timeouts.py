"""Rules that handle a timeout of a task that has none.

A task without a timeout is not reported (`noetl plan` lists those that may wait indefinitely). A rule for the error
`timeout` of such a code or command task is reported, because it never matches.
"""

from __future__ import annotations

import re

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.flow.guard_conditions import expression
from noetl.core.language.source.nodes import Mapping
from noetl.core.language.syntax.tree import BodySyntax, TaskSyntax

# Kinds that run locally: no external error is a `timeout` there.
_LOCAL = frozenset({"python", "shell"})
_TESTS_TIMEOUT = re.compile(r"""out(?:put|come)\.error\.kind\s*==\s*(['"])timeout\1""")


def check(context: AnalysisContext) -> None:
    """Check every rule that handles a timeout."""
    for body in context.document.bodies():
        for task in body.tasks():
            for rule in task.rules if task.kind in _LOCAL else ():
                if _TESTS_TIMEOUT.fullmatch(expression(rule.when)) and not _has_timeout(context, body, task):
                    message = f'this rule handles a timeout, but the task "{task.name}" has none'
                    hint = "set one on the task: `spec: {timeout: 60}`"
                    context.reader.add("missing-timeout", rule.when or rule.node, message, hint)


def _has_timeout(context: AnalysisContext, body: BodySyntax, task: TaskSyntax) -> bool:
    """Whether any layer sets a timeout for the task."""
    if task.timeout is not None or "timeout" in task.parameters or (task.tool and "timeout" in task.tool.defaults):
        return True
    executor = context.document.executor
    layers = [task.spec, body.spec, *(level.spec for level in (body.loops()))]
    if executor is not None:
        layers += [executor.spec, executor.defaults]
    for layer in layers:
        own = layer.get(task.kind or "") if layer is not None else None
        if layer is not None and (layer.get("timeout") or (isinstance(own, Mapping) and own.get("timeout"))):
            return True
    return False

"""Results that are read by the name of a step that cannot have run."""

from __future__ import annotations

import re

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.flow import visibility as at
from noetl.core.language.flow.guard_conditions import is_conditional
from noetl.core.language.flow.reachability import Reachability
from noetl.core.language.flow.template_analysis import Read
from noetl.core.language.flow.template_sites import TemplateSite
from noetl.core.language.syntax.tree import StepSyntax

_NOT = re.compile(r"\bnot\b")  # `not later.x` tests whether the step has run
# In guards, a step that has not run is false.
_BEFORE_THE_END = (at.TASK, at.TASK_SET, at.STEP_INPUT, at.LOOP_IN, at.LOOP_INPUT)
_GUARDS = (at.ADMIT, at.RULE, at.LOOP_UNTIL)


def check(context: AnalysisContext) -> None:
    """Check every result that a template reads by the name of a step."""
    if context.has_dynamic_steps:
        return  # steps created at run time may lead anywhere
    reachability: Reachability | None = None
    for site in context.sites.templates:
        body = site.body
        if not isinstance(body, StepSyntax) or any(site.visibility is guard_visibility for guard_visibility in _GUARDS):
            continue
        if site.visibility is at.ARC and site.assigns is None:
            continue
        for read in site.template.reads:
            name = read.path[0]
            if name not in context.steps or read.guarded:
                continue
            if name == body.name and site.visibility not in _BEFORE_THE_END:
                continue  # at its end, the step's own name is the run that just completed
            if site.visibility.tasks and name in context.body(body).tasks:
                continue  # a task of the pipeline has that name
            reachability = reachability or Reachability(context.document.steps)
            conditional = is_conditional(site.node.text) or _NOT.search(site.node.text) is not None
            if not conditional and not reachability.can_run_before(name, body.name):
                _report(context, site, read, body.name)


def _report(context: AnalysisContext, site: TemplateSite, read: Read, reader: str) -> None:
    name = read.path[0]
    message = f'the step "{name}" cannot have run when "{reader}" reads it: no path leads from it to this step'
    hint = f"add a `next` path from it to this step, or write `{'.'.join(read.path)} | default(...)`"
    context.report_read("not-run-yet", site, read, message, hint)

"""Results that are read by the name of a step which cannot have run by then."""

from __future__ import annotations

import re

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.flow import visibility as at
from noetl.core.language.flow.guard_conditions import is_conditional
from noetl.core.language.flow.reachability import Reachability
from noetl.core.language.flow.template_analysis import Read
from noetl.core.language.flow.template_sites import TemplateSite
from noetl.core.language.syntax.tree import StepSyntax

_NOT = re.compile(r"\bnot\b")  # `not later.x` asks whether it has run, quietly
# In guards a step that has not run is simply not true.
_GUARDS = (at.ADMIT, at.RULE, at.LOOP_UNTIL)


def check(scene: AnalysisContext) -> None:
    """Look at every result that a template reads by the name of a step."""
    if scene.open_ctx:
        return  # steps that are made at run time may lead anywhere
    ways: Reachability | None = None
    for site in scene.sites.templates:
        body = site.body
        if not isinstance(body, StepSyntax) or any(site.spot is spot for spot in _GUARDS):
            continue
        if site.spot is at.ARC and site.assigns is None:
            continue
        for read in site.template.reads:
            name = read.path[0]
            if name not in scene.steps or read.guarded or name == body.name:
                continue
            if site.spot.tasks and name in scene.body(body).tasks:
                continue  # a task of the pipeline has that name
            ways = ways or Reachability(scene.document.steps)
            quiet = is_conditional(site.node.text) or _NOT.search(site.node.text) is not None
            if not quiet and not ways.may_come_before(name, body.name):
                _tell(scene, site, read, body.name)


def _tell(scene: AnalysisContext, site: TemplateSite, read: Read, reader: str) -> None:
    name = read.path[0]
    message = f'the step "{name}" cannot have run when "{reader}" reads it: no path leads from it to this step'
    hint = f"add a `next` path from it to this step, or write `{'.'.join(read.path)} | default(...)`"
    scene.at("not-run-yet", site, read, message, hint)

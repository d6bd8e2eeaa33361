"""Qualify bare names in templates: `{{ x }}` becomes `{{ ctx.x }}`, `{{ workload.x }}` or `{{ iter.x }}`.

A name is qualified only if it can mean nothing else: not if both `ctx` and `workload` have it, and not a name of
`workload` if steps that are created at run time could set it in `ctx`.
"""

from __future__ import annotations

from collections.abc import Mapping as Table

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.checks.unknown_names import qualified_name
from noetl.core.language.compile import compile_playbook
from noetl.core.language.flow.template_sites import TemplateSite
from noetl.core.language.rewrite.migrate.rewriting import Migration, Rewriting
from noetl.core.model.tool import ToolSpec


def qualify(text: str, specs: Table[str, ToolSpec]) -> Migration:
    """Qualify the bare names of a playbook that compiles; raises if the result would not mean the same."""
    compiled = compile_playbook(text, file="", specs=specs)
    if compiled.document is None or compiled.playbook is None:
        return Migration(text, ())
    rewriting = Rewriting(text, specs, compiled, compiled.document)
    for site in rewriting.context.sites.templates:
        rewriting.replace(site, _replacements(rewriting.context, site))
    return rewriting.finish()


def _replacements(context: AnalysisContext, site: TemplateSite) -> dict[int, tuple[str, str]]:
    found: dict[int, tuple[str, str]] = {}
    for read in site.template.reads:
        name = read.path[0]
        qualified = qualified_name(context, site, name)
        if qualified is None or not site.node.value.startswith(name, read.offset):
            continue
        scope = qualified.partition(".")[0]
        if scope == "ctx" and name in context.workload_keys:
            continue
        if scope == "workload" and context.has_dynamic_steps:
            continue
        found[read.offset] = (name, qualified)
    return found

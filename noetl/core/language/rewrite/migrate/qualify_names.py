"""Qualify bare names: `{{ x }}` becomes `{{ ctx.x }}`, `{{ workload.x }}` or `{{ iter.x }}`, `set: {x: 1}` `ctx.x`.

A name is qualified only if it can mean nothing else: not if both `ctx` and `workload` have it, and not a name of
`workload` if steps that are created at run time could set it in `ctx`.
"""

from __future__ import annotations

from collections.abc import Mapping as Table

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.checks.unknown_names import qualified_name
from noetl.core.language.compile import compile_playbook
from noetl.core.language.flow.template_sites import TemplateSite
from noetl.core.language.rewrite.concrete_edits import rename
from noetl.core.language.rewrite.migrate.rewriting import Migration, Rewriting
from noetl.core.language.rewrite.spellings import set_blocks
from noetl.core.language.syntax.grammar import SCOPES
from noetl.core.model.tool import ToolSpec


def qualify(text: str, specs: Table[str, ToolSpec]) -> Migration:
    """Qualify the bare names of a playbook that compiles; raises if the result would not mean the same."""
    compiled = compile_playbook(text, file="", specs=specs)
    if compiled.document is None or compiled.playbook is None:
        return Migration(text, ())
    rewriting = Rewriting(text, specs, compiled, compiled.document)
    for site in rewriting.context.sites.templates:
        rewriting.replace(site, _replacements(rewriting.context, site))
    _qualify_targets(rewriting)
    return rewriting.finish()


def _qualify_targets(rewriting: Rewriting) -> None:
    """`set: {x: ...}` means `ctx.x`."""
    for node in set_blocks(rewriting.syntax.node):
        found = rewriting.document.collection(node.start)
        for element in found.elements if found is not None else []:
            if element.name.partition(".")[0] not in SCOPES and not element.is_merge:
                rename(element.key, f"ctx.{element.name}")


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

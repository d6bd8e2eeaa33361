"""Names of older surfaces inside templates: `outcome`, `args`, `result` of v10, `context` of 2025-11."""

from __future__ import annotations

import re

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.flow.template_analysis import Read
from noetl.core.language.flow.template_sites import TemplateSite


def check(scene: AnalysisContext) -> None:
    """Tell each older name with the canonical one."""
    for site in scene.sites.templates:
        for read in site.template.reads:
            tell = _NAMES.get(read.path[0])
            if tell is not None:
                tell(scene, site, read)
            elif read.path == ("event", "name"):
                _event_name(scene, site)


def _outcome(scene: AnalysisContext, site: TemplateSite, read: Read) -> None:
    if read.path[1:2] == ("result",):
        rest = read.path[2:]
        if rest[:1] == ("data",):
            rest = rest[1:]
        instead = ".".join(("output.data", *rest))
    else:
        instead = ".".join(("output", *read.path[1:]))
    _older(scene, site, read, "v10-outcome", "`outcome` is v10 syntax", f"write `{instead}`")


def _output(scene: AnalysisContext, site: TemplateSite, read: Read) -> None:
    if read.path[1:2] == ("result",):
        instead = ".".join(("output.data", *read.path[2:]))
        _older(scene, site, read, "v10-result", "`output.result` is v10 syntax", f"write `{instead}`")


def _args(scene: AnalysisContext, site: TemplateSite, read: Read) -> None:
    _older(scene, site, read, "v10-args", "`args` is v10 syntax", f"write `{'.'.join(('input', *read.path[1:]))}`")


def _result(scene: AnalysisContext, site: TemplateSite, read: Read) -> None:
    if "result" in site.spot.scopes:
        instead = ".".join(("output.data", *read.path[1:]))
        scene.at("old-spelling", site, read, "`result` is an old name of the step's `output.data`", f"write `{instead}`")


def _event_name(scene: AnalysisContext, site: TemplateSite) -> None:
    found = _CALL_DONE.search(site.node.value)
    if found:
        message = "the event `call.done` is named `step.done`"
        scene.inside("old-spelling", site, found.start(), len(found.group()), message, "write 'step.done'")


_CALL_DONE = re.compile(r"""(['"])call\.done\1""")


def _job(scene: AnalysisContext, site: TemplateSite, read: Read) -> None:
    if read.path[1:] in (("uuid",), ("execution_id",)):
        scene.at("old-spelling", site, read, f"`{'.'.join(read.path)}` is an old name of `execution_id`", "write `execution_id`")


def _loop_index(scene: AnalysisContext, site: TemplateSite, read: Read) -> None:
    scene.at("old-spelling", site, read, "`loop_index` is an old name of `iter.index`", "write `iter.index`")


def _context(scene: AnalysisContext, site: TemplateSite, read: Read) -> None:
    known = scene.body(site.body).tasks if site.body is not None and site.spot.tasks else frozenset()
    if "context" in scene.steps | scene.ctx_keys | scene.workload_keys | known:
        return
    rest = read.path[1:]
    if rest[:1] == ("workload",):
        instead = ".".join(rest)
    else:
        instead = f"ctx.{'.'.join(rest)}` or the name of the step that produced it, `{'.'.join(rest)}" if rest else "ctx"
    word = scene.reader.rejected.get(("template", "context"))
    if word is not None:
        scene.reader.rejected_words += 1
        scene.at(word.code, site, read, word.message, f"write `{instead}`; {word.hint}")


def _older(scene: AnalysisContext, site: TemplateSite, read: Read, code: str, message: str, hint: str) -> None:
    scene.reader.older_words += 1
    scene.at(code, site, read, message, hint)


_NAMES = {
    "outcome": _outcome,
    "output": _output,
    "args": _args,
    "result": _result,
    "loop_index": _loop_index,
    "job": _job,
    "context": _context,
}

"""Deprecated names in templates: `outcome`, `args`, `result` of v10, `context` of 2025-11."""

from __future__ import annotations

import re

from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.flow.template_analysis import Read
from noetl.core.language.flow.template_sites import TemplateSite


def check(context: AnalysisContext) -> None:
    """Report each deprecated name with its canonical form."""
    for site in context.sites.templates:
        for read in site.template.reads:
            report = _NAMES.get(read.path[0])
            if report is not None:
                report(context, site, read)
            elif read.path == ("event", "name"):
                _event_name(context, site)


def _outcome(context: AnalysisContext, site: TemplateSite, read: Read) -> None:
    if read.path[1:2] == ("result",):
        rest = read.path[2:]
        if rest[:1] == ("data",):
            rest = rest[1:]
        instead = ".".join(("output.data", *rest))
    elif read.path[1:2] == ("result_ref",):
        instead = ".".join(("output.ref", *read.path[2:]))
    else:
        instead = ".".join(("output", *read.path[1:]))
    _report_v10(context, site, read, "v10-outcome", "`outcome` is v10 syntax", f"write `{instead}`")


def _output(context: AnalysisContext, site: TemplateSite, read: Read) -> None:
    if read.path[1:2] == ("result",):
        instead = ".".join(("output.data", *read.path[2:]))
        _report_v10(context, site, read, "v10-result", "`output.result` is v10 syntax", f"write `{instead}`")
    elif read.path[1:2] == ("result_ref",):
        instead = ".".join(("output.ref", *read.path[2:]))
        _report_v10(context, site, read, "v10-result", "`output.result_ref` is v10 syntax", f"write `{instead}`")


def _args(context: AnalysisContext, site: TemplateSite, read: Read) -> None:
    _report_v10(
        context, site, read, "v10-args", "`args` is v10 syntax", f"write `{'.'.join(('input', *read.path[1:]))}`"
    )


def _result(context: AnalysisContext, site: TemplateSite, read: Read) -> None:
    if "result" in site.visibility.scopes:
        instead = ".".join(("output.data", *read.path[1:]))
        context.report_read(
            "old-spelling", site, read, "`result` is an old name of the step's `output.data`", f"write `{instead}`"
        )


def _event_name(context: AnalysisContext, site: TemplateSite) -> None:
    found = _CALL_DONE.search(site.node.value)
    if found:
        message = "the event `call.done` is named `step.done`"
        context.report_inside("old-spelling", site, found.start(), len(found.group()), message, "write 'step.done'")


_CALL_DONE = re.compile(r"""(['"])call\.done\1""")


def _job(context: AnalysisContext, site: TemplateSite, read: Read) -> None:
    if read.path[1:] in (("uuid",), ("execution_id",)):
        context.report_read(
            "old-spelling",
            site,
            read,
            f"`{'.'.join(read.path)}` is an old name of `execution_id`",
            "write `execution_id`",
        )


def _loop_index(context: AnalysisContext, site: TemplateSite, read: Read) -> None:
    context.report_read("old-spelling", site, read, "`loop_index` is an old name of `iter.index`", "write `iter.index`")


def _context(context: AnalysisContext, site: TemplateSite, read: Read) -> None:
    known = context.body(site.body).tasks if site.body is not None and site.visibility.tasks else frozenset()
    if "context" in context.steps | context.ctx_keys | context.workload_keys | known:
        return
    rest = read.path[1:]
    if rest[:1] == ("workload",):
        instead = ".".join(rest)
    else:
        instead = (
            f"ctx.{'.'.join(rest)}` or the name of the step that produced it, `{'.'.join(rest)}" if rest else "ctx"
        )
    replaced = context.reader.rejected.get(("template", "context"))
    if replaced is not None:
        context.reader.rejected_count += 1
        context.report_read(replaced.code, site, read, replaced.message, f"write `{instead}`; {replaced.hint}")


def _report_v10(context: AnalysisContext, site: TemplateSite, read: Read, code: str, message: str, hint: str) -> None:
    context.reader.deprecated_count += 1
    context.report_read(code, site, read, message, hint)


_NAMES = {
    "outcome": _outcome,
    "output": _output,
    "args": _args,
    "result": _result,
    "loop_index": _loop_index,
    "job": _job,
    "context": _context,
}

"""The checks: one concern per file, each a function over the syntax tree.

A check reports diagnostics; it changes nothing and never raises. Its `AnalysisContext` has the document, all
templates with their positions, and the reader that records diagnostics.
"""

from __future__ import annotations

from collections.abc import Callable

from noetl.core.language.checks import (
    arcs,
    code_syntax,
    deprecated_names,
    guards,
    loop_rules,
    references,
    result_stores,
    rules,
    runtime_version,
    schemas,
    specs,
    status_values,
    targets,
    template_syntax,
    unknown_names,
    waits,
    workload,
)
from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.checks.graph import (
    cycles,
    gates,
    results_not_ready,
    task_order,
    timeouts,
    unreachable,
    unset_reads,
    unused,
)
from noetl.core.language.checks.sql import sql_parameters, sql_templates
from noetl.core.language.source.node_reader import Reader
from noetl.core.language.syntax.tree import DocumentSyntax

CHECKS: tuple[Callable[[AnalysisContext], None], ...] = (
    targets.check,
    rules.check,
    loop_rules.check,
    arcs.check,
    specs.check,
    schemas.check,
    code_syntax.check,
    sql_parameters.check,
    sql_templates.check,
    waits.check,
    runtime_version.check,
    workload.check,
    template_syntax.check,
    guards.check,
    unknown_names.check,
    deprecated_names.check,
    references.check,
    result_stores.check,
    status_values.check,
)
# Checks of the whole graph are valid only when all of its parts could be read.
GRAPH_CHECKS: tuple[Callable[[AnalysisContext], None], ...] = (
    unreachable.check,
    cycles.check,
    gates.check,
    unset_reads.check,
    results_not_ready.check,
    task_order.check,
    unused.check,
    timeouts.check,
)


def check_document(document: DocumentSyntax, reader: Reader) -> None:
    """Run every check over a document."""
    context = AnalysisContext(document, reader)
    for check in CHECKS:
        check(context)
    if not reader.findings.failed:
        for check in GRAPH_CHECKS:
            check(context)

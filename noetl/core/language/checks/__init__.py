"""The checks: one concern per file, each a function over the tree that was read.

A check looks and notes; it changes nothing and never raises. It gets a `AnalysisContext`: the document, all of its
templates with their places, and the reader through which findings are noted.
"""

from __future__ import annotations

from collections.abc import Callable

from noetl.core.language.checks import (
    arcs,
    cycles,
    deprecated_names,
    gates,
    guards,
    references,
    rules,
    specs,
    targets,
    timeouts,
    unused,
    workload,
)
from noetl.core.language.checks import loop_rules as loops
from noetl.core.language.checks import results_not_ready as not_run
from noetl.core.language.checks import template_syntax as syntax
from noetl.core.language.checks import unknown_names as names
from noetl.core.language.checks import unreachable as net
from noetl.core.language.checks import unset_reads as unset
from noetl.core.language.checks.analysis import AnalysisContext
from noetl.core.language.source.node_reader import Reader
from noetl.core.language.syntax.tree import DocumentSyntax

CHECKS: tuple[Callable[[AnalysisContext], None], ...] = (
    targets.check,
    rules.check,
    loops.check,
    arcs.check,
    specs.check,
    workload.check,
    syntax.check,
    guards.check,
    names.check,
    deprecated_names.check,
    references.check,
)
# What is said about the whole holds only when its parts could be read.
GRAPH_CHECKS: tuple[Callable[[AnalysisContext], None], ...] = (
    net.check,
    cycles.check,
    gates.check,
    unset.check,
    not_run.check,
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

"""The checks: one concern per file, each a function over the tree that was read.

A check looks and notes; it changes nothing and never raises. It gets a `Scene`: the document, all of its
templates with their places, and the reader through which findings are noted.
"""

from __future__ import annotations

from collections.abc import Callable

from noetl.dsl.checks import (
    arcs,
    cycles,
    gates,
    guards,
    loops,
    names,
    net,
    not_run,
    older_names,
    references,
    rules,
    specs,
    syntax,
    targets,
    timeouts,
    unset,
    unused,
    workload,
)
from noetl.dsl.checks.scene import Scene
from noetl.dsl.reading import Reader
from noetl.dsl.syntax import DocumentSyntax

CHECKS: tuple[Callable[[Scene], None], ...] = (
    targets.check,
    rules.check,
    loops.check,
    arcs.check,
    specs.check,
    workload.check,
    syntax.check,
    guards.check,
    names.check,
    older_names.check,
    references.check,
)
# What is said about the whole holds only when its parts could be read.
WHOLE: tuple[Callable[[Scene], None], ...] = (
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
    scene = Scene(document, reader)
    for check in CHECKS:
        check(scene)
    if not reader.findings.failed:
        for check in WHOLE:
            check(scene)

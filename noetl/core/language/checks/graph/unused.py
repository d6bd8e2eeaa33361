"""Declarations that are never used: workbook blocks and keychain entries.

Uncertain cases count as used: a name computed by a template, code that mentions it, steps created at run time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from noetl.core.language.checks.analysis import AnalysisContext, blocks_called
from noetl.core.language.flow.template_analysis import analyze_template
from noetl.core.language.source.nodes import Mapping, Node, Scalar, Sequence
from noetl.core.language.syntax.tree import BlockSyntax


def check(context: AnalysisContext) -> None:
    """Report blocks that are never called, and secrets that are never read."""
    if context.has_dynamic_steps:
        return  # steps created at run time may use anything
    _check_blocks(context)
    if context.document.keychain:
        _check_keychain(context)


def _check_blocks(context: AnalysisContext) -> None:
    blocks = {block.name: block for block in context.document.blocks}
    called: set[str] = set()
    callers = (body for body in context.document.bodies() if not isinstance(body, BlockSyntax))
    pending = [blocks_called(body) for body in callers] if blocks else []
    while pending:
        names = pending.pop()
        if names is None:
            return  # a call by template may call any of them
        new = (names - called) & blocks.keys()
        called |= new
        pending += [blocks_called(blocks[name]) for name in new]
    for declared in context.document.blocks:
        if declared.name not in called:
            message = f'the block "{declared.name}" is never called'
            hint = f"call it: `{{kind: workbook, block: {declared.name}}}`, or remove it"
            context.reader.add("unused-block", declared.name_node, message, hint)


# --- secrets ------------------------------------------------------------------------------------

_CREDENTIAL_PARAMETERS = frozenset(
    {"auth", "credential", "credentials", "key"}
)  # parameters whose value names an entry
_NAME = re.compile(r"[\w-]+")


def _check_keychain(context: AnalysisContext) -> None:
    used: set[str] = set()
    for site in context.sites.templates:
        for read in site.template.reads:
            if read.path[0] == "keychain":
                if len(read.path) == 1:
                    return  # read as a whole, or by a name computed at run time
                used.add(read.path[1])
            elif read.path[0] == "context":
                return
    pending = {entry.name for entry in context.document.keychain} - used
    for key, text, raw in _texts(context) if pending else ():
        pending.discard(text)
        if not pending:
            return
        if raw:
            used.update(_NAME.findall(text))
            if "keychain" in used:
                return
        elif "{{" in text or "{%" in text:
            if key in _CREDENTIAL_PARAMETERS and not all(
                read.path[0] == "keychain" for read in analyze_template(text).reads
            ):
                return
        else:
            used.add(text)
    for entry in context.document.keychain:
        if entry.name not in used:
            message = f'the keychain entry "{entry.name}" is never read'
            hint = f"use it (`keychain.{entry.name}`, or `auth: {entry.name}`), or remove it"
            context.reader.add("unused-keychain", entry.name_node, message, hint)


def _texts(context: AnalysisContext) -> Iterator[tuple[str, str, bool]]:
    """Every text that may name an entry: its key, the text, and whether it is code."""
    document = context.document
    if document.executor is not None and document.executor.spec is not None:
        yield from _inside(document.executor.spec)
    if document.workload is not None:
        yield from _inside(document.workload)
    for entry in document.keychain:
        for name, node in entry.fields.items():
            yield from _inside(node, name)
    for body in document.bodies():
        if body.spec is not None:
            yield from _inside(body.spec)
        if body.input is not None:
            yield from _inside(body.input)
        if body.loop is not None:
            yield from _inside(body.loop.node)
        for task in body.tasks():
            for name, parameter in task.parameters.items():
                yield from _inside(parameter.value, name, raw=parameter.raw)
            if task.spec is not None:
                yield from _inside(task.spec)
            if task.output is not None and task.output.store is not None:
                yield from _inside(task.output.store)
        output = getattr(body, "output", None)
        if output is not None and output.store is not None:
            yield from _inside(output.store)


def _inside(node: Node, key: str = "", *, raw: bool = False) -> Iterator[tuple[str, str, bool]]:
    if isinstance(node, Scalar):
        if isinstance(node.value, str):
            yield key, node.value, raw
    elif isinstance(node, Mapping):
        for name, (_, value) in node.entries.items():
            yield from _inside(value, name, raw=raw)
    elif isinstance(node, Sequence):
        for item in node.items:
            yield from _inside(item, key, raw=raw)

"""What is declared and never used: workbook blocks and keychain entries.

What cannot be told counts as used: a name that a template makes, code that mentions it, steps made at run time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from noetl.core.language.checks.analysis import AnalysisContext, blocks_called
from noetl.core.language.flow.template_analysis import analyze_template
from noetl.core.language.source.nodes import Mapping, Node, Scalar, Sequence


def check(scene: AnalysisContext) -> None:
    """Look for blocks that no task calls, and for secrets that nobody reads."""
    if scene.open_ctx:
        return  # steps that are made at run time may use what they like
    _check_blocks(scene)
    if scene.document.keychain:
        _check_keychain(scene)


def _check_blocks(scene: AnalysisContext) -> None:
    blocks = {block.name: block for block in scene.document.blocks}
    called: set[str] = set()
    waiting = [blocks_called(step) for step in scene.document.steps] if blocks else []
    while waiting:
        names = waiting.pop()
        if names is None:
            return  # a call by template may mean any of them
        new = (names - called) & blocks.keys()
        called |= new
        waiting += [blocks_called(blocks[name]) for name in new]
    for declared in scene.document.blocks:
        if declared.name not in called:
            message = f'the block "{declared.name}" is never called'
            hint = f"call it: `{{kind: workbook, block: {declared.name}}}`, or remove it"
            scene.reader.add("unused-block", declared.name_node, message, hint)


# --- secrets ------------------------------------------------------------------------------------

_NAMING = frozenset({"auth", "credential", "credentials", "key"})  # parameters whose value names an entry
_WORD = re.compile(r"[\w-]+")


def _check_keychain(scene: AnalysisContext) -> None:
    used: set[str] = set()
    for site in scene.sites.templates:
        for read in site.template.reads:
            if read.path[0] == "keychain":
                if len(read.path) == 1:
                    return  # read as a whole, or by a name that is made at run time
                used.add(read.path[1])
            elif read.path[0] == "context":
                return
    waiting = {entry.name for entry in scene.document.keychain} - used
    for key, text, raw in _texts(scene) if waiting else ():
        waiting.discard(text)
        if not waiting:
            return
        if raw:
            used.update(_WORD.findall(text))
            if "keychain" in used:
                return
        elif "{{" in text or "{%" in text:
            if key in _NAMING and not all(read.path[0] == "keychain" for read in analyze_template(text).reads):
                return
        else:
            used.add(text)
    for entry in scene.document.keychain:
        if entry.name not in used:
            message = f'the keychain entry "{entry.name}" is never read'
            hint = f"use it (`keychain.{entry.name}`, or `auth: {entry.name}`), or remove it"
            scene.reader.add("unused-keychain", entry.name_node, message, hint)


def _texts(scene: AnalysisContext) -> Iterator[tuple[str, str, bool]]:
    """Every text that may name an entry: its key, itself, and whether it is code."""
    document = scene.document
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

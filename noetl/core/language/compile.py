"""Compile a playbook: text to diagnostics and a `Playbook`."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, NamedTuple

from noetl.core.language.checks import check_document
from noetl.core.language.diagnostics import Diagnostic, Findings, bounded_hints
from noetl.core.language.dialects import canonical, v10
from noetl.core.language.dialects.v2025_11 import rejected_keys as v2025_11
from noetl.core.language.dialects.v2025_11.detect import enables_legacy
from noetl.core.language.lower import Lowering
from noetl.core.language.source.node_reader import Reader
from noetl.core.language.source.nodes import node_from
from noetl.core.language.source.yaml_source import MAX_DEPTH, MAX_NODES, Source, read_source, within_limits
from noetl.core.language.syntax.tree import DocumentSyntax
from noetl.core.model.playbook import Playbook, Step
from noetl.core.model.tool import ToolSpec

_MANY_NEW_OBJECTS = 5_000  # from here on, one collection of new objects takes more than a millisecond

_NAMES_STATE = re.compile(r"\b(?:state|incremental|only_new)\b")  # of a playbook that may read or write `state`


class Compilation(NamedTuple):
    """The result of compiling a text: `playbook` is None exactly when a diagnostic is an error."""

    playbook: Playbook | None
    diagnostics: tuple[Diagnostic, ...]
    document: DocumentSyntax | None = None


def compile_playbook(
    text: str | bytes,
    *,
    file: str,
    specs: Mapping[str, ToolSpec],
    strict: bool = False,
    legacy: bool = False,
) -> Compilation:
    """Read, check and lower a playbook; its problems are in the diagnostics."""
    with gc_paused(), bounded_hints():
        return _compile(read_source(text), text_digest(text), file, specs, strict, legacy)


def compile_source(source: Source, *, specs: Mapping[str, ToolSpec], legacy: bool = False) -> Compilation:
    """Check and lower a tree that was read before (and may have been changed since)."""
    return _compile(source, "", "", specs, False, legacy)


def _compile(
    source: Source, digest: str, file: str, specs: Mapping[str, ToolSpec], strict: bool, legacy: bool
) -> Compilation:
    findings = Findings(file, source.text, strict=strict)
    for problem in source.problems:
        findings.add(*problem)
    document = None
    root, is_v2025_11 = source.root, False
    if root is not None and (legacy or enables_legacy(root)):
        # imported here because most documents do not need it
        from noetl.core.language.dialects.v2025_11.translate_steps import translate

        translation = translate(root, specs)
        root, is_v2025_11 = translation.root, translation.is_v2025_11
        for problem in translation.problems:
            findings.add(*problem)
        for note in translation.notes:
            findings.add("unused-field", note.node, note.message, "remove it")
    if root is not None:
        reader = _reader(findings, specs)
        document = canonical.read_document(reader, root)
        if document is not None:
            check_document(document, reader)
            document.surface = (
                "2025-11" if is_v2025_11 or reader.rejected_count else "v10" if reader.deprecated_count else "canonical"
            )
    playbook = None
    if document is not None and not findings.failed:
        playbook = Lowering(specs).playbook(
            document, file=file, digest=digest, uses_state=_NAMES_STATE.search(source.text) is not None
        )
    return Compilation(playbook, findings.result(), document)


def compile_steps(
    data: Any, playbook: Playbook, specs: Mapping[str, ToolSpec]
) -> tuple[tuple[Step, ...], tuple[Diagnostic, ...]]:
    """Validate and lower a list of steps that a running playbook produced as data (`synthesize`).

    The new steps may lead to each other and to steps of the playbook; if there is an error, no step is returned.
    """
    findings = Findings(playbook.file or playbook.path, "")
    if not within_limits(data):
        message = f"the steps are nested deeper than {MAX_DEPTH} levels, or have more than {MAX_NODES:,} values"
        findings.add("yaml-limit", node_from(None), message, "return fewer steps with less nesting")
        return (), findings.result()
    reader = _reader(findings, specs)
    document = canonical.document_for(playbook)
    document.steps = canonical.read_steps(reader, node_from(data), "synthesized")
    known = set(playbook.steps_by_name)
    for step in document.steps:
        if step.name in known:
            reader.add(
                "duplicate-step",
                step.name_node,
                f'the playbook already has a step "{step.name}"',
                "choose another name",
            )
    check_document(document, reader)
    if findings.failed:
        return (), findings.result()
    return Lowering(specs).synthesized(document, playbook), findings.result()


def _reader(findings: Findings, specs: Mapping[str, ToolSpec]) -> Reader:
    return Reader(findings, specs, deprecated=v10.KEYS, rejected={**canonical.REJECTED, **v2025_11.REJECTED})


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause garbage collection: a growing tree of small objects has no cycles, and scanning it repeatedly took half
    of the time for a large playbook.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if gc.get_count()[0] > max(_MANY_NEW_OBJECTS, gc.get_threshold()[0]) and not gc.get_freeze_count():
                # Move new objects to the old generation; otherwise enabling would scan all of them at once.
                # (The check for frozen objects comes last, because it counts them.)
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def text_digest(text: str | bytes) -> str:
    """The SHA-256 of a text in hexadecimal."""
    return sha256(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")).hexdigest()

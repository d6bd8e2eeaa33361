"""The front end as one short function: text to diagnostics and a Playbook."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, NamedTuple

from noetl.core.language.checks import check_document
from noetl.core.language.diagnostics import Diagnostic, Findings
from noetl.core.language.dialects import canonical, v10
from noetl.core.language.dialects.detect import detect
from noetl.core.language.dialects.v2025_11 import rejected_keys as v2025_11
from noetl.core.language.dialects.v2025_11.recognize import enables_legacy
from noetl.core.language.lower import Lowering
from noetl.core.language.source.node_reader import Reader
from noetl.core.language.source.nodes import node_from
from noetl.core.language.source.yaml_source import MAX_DEPTH, MAX_NODES, read_source, within_limits
from noetl.core.language.syntax.tree import DocumentSyntax
from noetl.core.model.playbook import Playbook, Step
from noetl.core.model.tool import ToolSpec

_MANY_NEW_OBJECTS = 5_000  # new objects from which a look through them costs more than a millisecond


class Compilation(NamedTuple):
    """What came of a text: `playbook` is None exactly when a diagnostic is an error."""

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
    """Read, check and lower a playbook; whatever is wrong with it is in the diagnostics."""
    with _gc_paused():
        return _compile_text(text, file, specs, strict, legacy)


def _compile_text(
    text: str | bytes, file: str, specs: Mapping[str, ToolSpec], strict: bool, legacy: bool
) -> Compilation:
    source = read_source(text)
    findings = Findings(file, source.text, strict=strict)
    for problem in source.problems:
        findings.add(*problem)
    document = None
    root, deprecated = source.root, False
    if root is not None and (legacy or enables_legacy(root)):
        from noetl.core.language.dialects.v2025_11.translate_steps import (
            translate,  # most documents need none of it
        )

        translation = translate(root, specs)
        root, deprecated = translation.root, translation.older
        for problem in translation.problems:
            findings.add(*problem)
    if root is not None:
        reader = Reader(findings, specs, deprecated=v10.KEYS, rejected={**canonical.REJECTED, **v2025_11.REJECTED})
        document = canonical.read_document(reader, root)
        if document is not None:
            check_document(document, reader)
            document.surface = "2025-11" if deprecated else detect(reader)
    playbook = None
    if document is not None and not findings.failed:
        playbook = Lowering(specs).playbook(document, file=file, digest=digest_of(text))
    return Compilation(playbook, findings.result(), document)


def compile_steps(
    data: Any, playbook: Playbook, specs: Mapping[str, ToolSpec]
) -> tuple[tuple[Step, ...], tuple[Diagnostic, ...]]:
    """Validate and lower a list of steps that a running playbook made as data (`synthesize`).

    The new steps may lead to each other and to steps the playbook has; with an error none is returned.
    """
    findings = Findings(playbook.file or playbook.path, "")
    if not within_limits(data):
        message = f"the steps are nested deeper than {MAX_DEPTH} levels, or have more than {MAX_NODES:,} values"
        findings.add("yaml-limit", node_from(None), message, "return fewer steps with less nesting")
        return (), findings.result()
    reader = Reader(findings, specs, deprecated=v10.KEYS, rejected={**canonical.REJECTED, **v2025_11.REJECTED})
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


@contextmanager
def _gc_paused() -> Iterator[None]:
    """No garbage collection meanwhile: a tree of many small objects grows and has no cycles, and looking through
    it again and again for some took half of the time of a large playbook."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if gc.get_count()[0] > max(_MANY_NEW_OBJECTS, gc.get_threshold()[0]) and not gc.get_freeze_count():
                # What is new goes straight to the old generation; else enabling would look through all of it at once.
                # (Whether anything is frozen is asked last: the answer counts it all.)
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def digest_of(text: str | bytes) -> str:
    """The name of a text."""
    return sha256(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")).hexdigest()

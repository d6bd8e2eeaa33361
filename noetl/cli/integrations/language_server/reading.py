"""Completion, hover and outline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsprotocol import types as lsp

from noetl.cli.integrations.language_server.documents import NoetlLanguageServer, OpenDocument
from noetl.core.language.diagnostic_codes import CODES
from noetl.core.language.diagnostics import Diagnostic
from noetl.core.language.editor.autocomplete import complete
from noetl.core.language.editor.hover import hover
from noetl.core.language.editor.line_structure import step_lines
from noetl.core.language.editor.schema_fields import may_name_schemas, schema_references
from noetl.core.language.syntax.tree import StepSyntax, TaskSyntax
from noetl.core.model.tool import ToolSpec
from noetl.runtime.manual import diagnostic_page
from noetl.runtime.printable import printable


def add_features(server: NoetlLanguageServer) -> None:
    """Add completion, hover and outline."""
    options = lsp.CompletionOptions(trigger_characters=[" ", ".", ":", "{", "-", "'", '"', "|"])

    @server.feature(lsp.TEXT_DOCUMENT_COMPLETION, options)
    async def completion(params: lsp.CompletionParams) -> lsp.CompletionList | None:
        document = server.document(params.text_document.uri)
        if not document.is_playbook:
            return None
        schemas: Mapping[str, Any] = {}
        if may_name_schemas(document.text):
            line = params.position.line + 1
            references = await server.in_thread(lambda: schema_references(document.plain_text, line))
            schemas = await server.schemas.get(references)
        return _completion(document, params.position, server.specs, schemas)

    @server.feature(lsp.TEXT_DOCUMENT_HOVER)
    async def show_hover(params: lsp.HoverParams) -> lsp.Hover | None:
        document = server.document(params.text_document.uri)
        if not document.is_playbook:
            return None
        found = await server.in_thread(lambda: document.diagnostics)
        return _hover(document, params.position, found, server.specs)

    @server.feature(lsp.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
    async def outline(params: lsp.DocumentSymbolParams) -> list[lsp.DocumentSymbol]:
        document = server.document(params.text_document.uri)
        if not document.is_playbook:
            return []
        return await server.in_thread(lambda: _outline(document))


def _completion(
    document: OpenDocument, position: lsp.Position, specs: dict[str, ToolSpec], schemas: Mapping[str, Any]
) -> lsp.CompletionList:
    at = document.positions.protocol_column(position)
    column, words = complete(document.plain_text, position.line + 1, at, specs, schemas)
    start = document.positions.on_line(position.line, column)
    items = [
        lsp.CompletionItem(
            label=printable(word.word, one_line=True),
            kind=lsp.CompletionItemKind.Value if word.is_value else lsp.CompletionItemKind.Property,
            documentation=lsp.MarkupContent(lsp.MarkupKind.Markdown, printable(word.doc)) if word.doc else None,
            sort_text=f"{number:05}",
            text_edit=lsp.TextEdit(lsp.Range(start, position), word.word),
        )
        for number, word in enumerate(words)
    ]
    return lsp.CompletionList(is_incomplete=False, items=items)


def _hover(
    document: OpenDocument, position: lsp.Position, found: tuple[Diagnostic, ...], specs: dict[str, ToolSpec]
) -> lsp.Hover | None:
    """The documentation of the word, then the explanation of each diagnostic at the position."""
    column = document.positions.protocol_column(position)
    word = hover(document.plain_text, position.line + 1, column, specs)
    parts = []
    if word is not None:
        facts = [each for each in (word.takes, "required" if word.required else "") if each]
        if word.default is not None:
            facts.append(f"default: `{word.default}`")
        parts.append("\n\n".join([f"**{word.word}**" + (f" ({', '.join(facts)})" if facts else ""), word.doc]))
    line, here = document.positions.line_and_column(position)
    parts += [
        diagnostic_page(each.code) or f"**{each.code}**: {CODES[each.code].title}"
        for each in found
        if each.line == line and each.column <= here <= max(each.end_column, each.column + 1)
    ]
    parts = list(dict.fromkeys(part.strip() for part in parts))
    if not parts:
        return None
    area = None
    if word is not None:
        at = document.positions.on_line
        area = lsp.Range(at(position.line, word.column), at(position.line, word.end_column))
    return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, printable("\n\n---\n\n".join(parts))), area)


def _outline(document: OpenDocument) -> list[lsp.DocumentSymbol]:
    """Steps with their tasks; in a text that is not valid YAML, the steps that are found by indentation."""
    tree = document.compilation.document
    if tree is None:
        return [_step_line(document, *found) for found in step_lines(document.plain_text.split("\n"))]
    return [
        _part(document, step, lsp.SymbolKind.Function, [
            _part(document, task, lsp.SymbolKind.Method) for task in step.tasks() if task.named
        ])
        for step in tree.steps
        if step.name
    ]  # fmt: skip


def _part(
    document: OpenDocument,
    part: StepSyntax | TaskSyntax,
    kind: lsp.SymbolKind,
    children: list[lsp.DocumentSymbol] | None = None,
) -> lsp.DocumentSymbol:
    position, node, name = document.positions.position, part.node, part.name_node
    area = lsp.Range(position(node.line, node.column), position(node.end_line, node.end_column))
    selected = lsp.Range(position(name.line, name.column), position(name.end_line, name.end_column))
    return lsp.DocumentSymbol(printable(part.name, one_line=True), kind, area, selected, children=children)


def _step_line(document: OpenDocument, name: str, line: int, column: int) -> lsp.DocumentSymbol:
    area = document.positions.range(line, column, column + len(name))
    return lsp.DocumentSymbol(printable(name, one_line=True), lsp.SymbolKind.Function, area, area)

"""Definition, references and rename."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcInvalidParams

from noetl.cli.integrations.language_server.documents import NoetlLanguageServer, OpenDocument, workspace_edit
from noetl.core.language.editor.line_structure import step_lines
from noetl.core.language.editor.symbols import RENAMED, CannotRename, Edit, Occurrence, rename


def add_features(server: NoetlLanguageServer) -> None:
    """Add definition, references, highlights and rename."""

    async def symbol_at(uri: str, position: lsp.Position) -> tuple[OpenDocument, Occurrence | None]:
        document = server.document(uri)
        if not document.is_playbook:
            return document, None
        return document, await server.in_thread(lambda: document.occurrence_at(position))

    @server.feature(lsp.TEXT_DOCUMENT_DEFINITION)
    async def definition(params: lsp.DefinitionParams) -> list[lsp.Location]:
        document, found = await symbol_at(params.text_document.uri, params.position)
        if document.compilation.document is None:
            return _definition_by_lines(document, params.position)
        if found is None:
            return []
        return [document.location_of(each) for each in document.occurrences if _defines(each, found)]

    @server.feature(lsp.TEXT_DOCUMENT_REFERENCES)
    async def references(params: lsp.ReferenceParams) -> list[lsp.Location]:
        document, found = await symbol_at(params.text_document.uri, params.position)
        same = [each for each in document.occurrences if found is not None and each.symbol == found.symbol]
        with_definition = params.context.include_declaration
        return [document.location_of(each) for each in same if with_definition or not each.is_definition]

    @server.feature(lsp.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT)
    async def highlight(params: lsp.DocumentHighlightParams) -> list[lsp.DocumentHighlight]:
        document, found = await symbol_at(params.text_document.uri, params.position)
        same = [each for each in document.occurrences if found is not None and each.symbol == found.symbol]
        return [lsp.DocumentHighlight(document.range_of(each)) for each in same]

    @server.feature(lsp.TEXT_DOCUMENT_PREPARE_RENAME)
    async def prepare_rename(params: lsp.PrepareRenameParams) -> lsp.PrepareRenamePlaceholder | None:
        document, found = await symbol_at(params.text_document.uri, params.position)
        if found is None or found.symbol.kind not in RENAMED:
            return None
        return lsp.PrepareRenamePlaceholder(document.range_of(found), found.symbol.name)

    @server.feature(lsp.TEXT_DOCUMENT_RENAME, lsp.RenameOptions(prepare_provider=True))
    async def rename_symbol(params: lsp.RenameParams) -> lsp.WorkspaceEdit | None:
        document, found = await symbol_at(params.text_document.uri, params.position)
        if found is None:
            raise JsonRpcInvalidParams("there is no step, task or block at this position")
        symbol = found.symbol

        def edits() -> list[Edit]:
            return rename(
                document.compilation, document.text, symbol, params.new_name, server.specs, legacy=server.legacy
            )

        try:
            return workspace_edit(document, await server.in_thread(edits))
        except CannotRename as problem:
            raise JsonRpcInvalidParams(f"cannot rename: {problem}") from None


def _defines(each: Occurrence, found: Occurrence) -> bool:
    return each.is_definition and each.symbol == found.symbol


def _definition_by_lines(document: OpenDocument, position: lsp.Position) -> list[lsp.Location]:
    """The step that the word at a position names, in a text that is not valid YAML."""
    lines = document.plain_text.split("\n")
    line = lines[position.line] if position.line < len(lines) else ""
    column = document.positions.protocol_column(position)
    return [
        lsp.Location(document.uri, document.positions.range(row, at, at + len(name)))
        for name, row, at in step_lines(lines)
        if name in _words_at(line, column)
    ]


def _words_at(line: str, column: int) -> Iterator[str]:
    for found in re.finditer(r"[\w-]+", line):
        if found.start() < column <= found.end() + 1:
            yield found[0]

"""Formatting and code actions: quick fixes of diagnostics, and the migration of older dialects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcInvalidParams

from noetl.cli.integrations.language_server.documents import (
    NoetlLanguageServer,
    OpenDocument,
    to_protocol,
    workspace_edit,
)
from noetl.core.language.compile import compile_playbook
from noetl.core.language.diagnostics import Diagnostic
from noetl.core.language.editor.quick_fixes import is_migrated, quick_fixes
from noetl.core.language.rewrite.format import format_text
from noetl.core.language.rewrite.migrate.to_canonical import migrate
from noetl.core.model.tool import ToolSpec

MIGRATE = "source.migrate.noetl"


def add_features(server: NoetlLanguageServer) -> None:
    """Add formatting and code actions."""

    @server.feature(lsp.TEXT_DOCUMENT_FORMATTING)
    async def formatting(params: lsp.DocumentFormattingParams) -> list[lsp.TextEdit] | None:
        document = server.document(params.text_document.uri)
        if not document.is_playbook:
            return None
        formatted = await server.in_thread(lambda: format_text(document.text, server.specs))
        return [] if formatted == document.text else [lsp.TextEdit(document.positions.whole(), formatted)]

    kinds = [lsp.CodeActionKind.QuickFix, lsp.CodeActionKind.SourceFixAll, MIGRATE]

    @server.feature(
        lsp.TEXT_DOCUMENT_CODE_ACTION, lsp.CodeActionOptions(code_action_kinds=kinds, resolve_provider=True)
    )
    async def code_actions(params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        document = server.document(params.text_document.uri)
        found = await server.in_thread(lambda: document.diagnostics)
        actions = list(_code_actions(document, found, params))
        if not _resolves_edits(server):
            actions = [await resolve(action) if action.data else action for action in actions]
        return [action for action in actions if action.edit or action.data]

    @server.feature(lsp.CODE_ACTION_RESOLVE)
    async def resolve(action: lsp.CodeAction) -> lsp.CodeAction:
        uri: Any = action.data.get("migrate") if isinstance(action.data, dict) else None
        if isinstance(uri, str):
            document = server.document(uri)
            action.edit = await server.in_thread(lambda: _migration(document, server.specs))
            if action.edit is None:
                message = "the playbook has errors, or nothing can be translated: `noetl migrate` lists the reasons"
                raise JsonRpcInvalidParams(message)
        return action


def _resolves_edits(server: NoetlLanguageServer) -> bool:
    capabilities = server.client_capabilities.text_document
    actions = capabilities.code_action if capabilities else None
    return bool(actions and actions.resolve_support and "edit" in actions.resolve_support.properties)


def _code_actions(
    document: OpenDocument, found: tuple[Diagnostic, ...], params: lsp.CodeActionParams
) -> Iterator[lsp.CodeAction]:
    lines = document.positions.lines
    first, last = params.range.start.line, params.range.end.line
    wanted = params.context.only

    def asked(kind: str) -> bool:
        return wanted is None or any(kind == each or kind.startswith(f"{each}.") for each in wanted)

    if asked(lsp.CodeActionKind.QuickFix):
        for each in found:
            shown = to_protocol(each, document)
            if not first <= shown.range.start.line <= last:
                continue
            for fix in quick_fixes(each, lines):
                yield lsp.CodeAction(
                    fix.title,
                    kind=lsp.CodeActionKind.QuickFix,
                    diagnostics=[shown],
                    edit=workspace_edit(document, [fix.edit]),
                    is_preferred=fix.preferred or None,
                )
    if asked(lsp.CodeActionKind.SourceFixAll):
        edits = {fix.edit for each in found for fix in quick_fixes(each, lines) if fix.preferred}
        if edits:
            yield lsp.CodeAction(
                "Apply all suggested replacements",
                kind=lsp.CodeActionKind.SourceFixAll,
                edit=workspace_edit(document, sorted(edits)),
            )
    older = [to_protocol(each, document) for each in found if is_migrated(each)]
    if older and (asked(MIGRATE) or asked(lsp.CodeActionKind.QuickFix)):
        here = [each for each in older if first <= each.range.start.line <= last]
        kind = lsp.CodeActionKind.QuickFix if here and asked(lsp.CodeActionKind.QuickFix) else MIGRATE
        yield lsp.CodeAction(
            "Migrate this playbook to the canonical dialect",
            kind=kind,
            diagnostics=here or None,
            data={"migrate": document.uri},
        )


def _migration(document: OpenDocument, specs: dict[str, ToolSpec]) -> lsp.WorkspaceEdit | None:
    if compile_playbook(document.text, file="", specs=specs, legacy=True).playbook is None:
        return None
    made = migrate(document.text, specs)
    if made.text == document.text:
        return None
    return lsp.WorkspaceEdit(changes={document.uri: [lsp.TextEdit(document.positions.whole(), made.text)]})

"""The open documents of an editor and their diagnostics.

Documents are compiled in a thread after a pause in typing; a result for an older version of the text is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import PurePosixPath
from typing import TypeVar
from urllib.parse import unquote, urlparse

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer

from noetl import __version__
from noetl.cli.integrations.language_server.positions import TextPositions
from noetl.cli.integrations.language_server.registered_schemas import RegisteredSchemas
from noetl.cli.projects.project import RESOURCE_SUFFIXES, is_playbook_name, starts_like_playbook
from noetl.cli.target import Target
from noetl.core.language.compile import Compilation, compile_playbook
from noetl.core.language.diagnostics import DOCS, Diagnostic
from noetl.core.language.editor.quick_fixes import is_migrated
from noetl.core.language.editor.symbols import Edit, Occurrence, occurrence_at, occurrences
from noetl.core.model.tool import ToolSpec
from noetl.runtime.printable import printable
from noetl.tools import registry as tools

PAUSE = 0.15  # seconds without a change before a document is compiled
LANGUAGE = "noetl"  # the language id of playbooks in the VS Code extension
SOURCE = "noetl"

_Result = TypeVar("_Result")


class OpenDocument:
    """One version of the text of an open document, compiled at most once."""

    def __init__(self, uri: str, version: int | None, positions: TextPositions, server: NoetlLanguageServer) -> None:
        self.uri, self.version, self.positions = uri, version, positions
        self.text = positions.text
        self._server = server

    @property
    def plain_text(self) -> str:
        """The text with `\\n` as line end, for services that work line by line."""
        return self.text.replace("\r\n", "\n").replace("\r", "\n")

    @cached_property
    def is_playbook(self) -> bool:
        """Whether it is a playbook; requests about other files have no answer."""
        return self._server.is_playbook(self.uri, self.text)

    @cached_property
    def compilation(self) -> Compilation:
        """The compiled playbook with its diagnostics."""
        server = self._server
        return compile_playbook(
            self.text, file=self.uri, specs=server.specs, strict=server.strict, legacy=server.legacy
        )

    @cached_property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """The problems of the text; none of a file that is not a playbook or resource."""
        name = _file_name(self.uri)
        if name.endswith(RESOURCE_SUFFIXES):
            from noetl.cli.projects.resource_checks import check_resources

            return tuple(check_resources(self.text, name))
        return self.compilation.diagnostics if self.is_playbook else ()

    @cached_property
    def occurrences(self) -> list[Occurrence]:
        """Where symbols are defined and used; none if the text cannot be read."""
        document = self.compilation.document
        return occurrences(document, self.text, self._server.specs) if document is not None else []

    def occurrence_at(self, position: lsp.Position) -> Occurrence | None:
        """The symbol at a position."""
        return occurrence_at(self.occurrences, *self.positions.line_and_column(position))

    def range_of(self, found: Occurrence | Edit) -> lsp.Range:
        """The range of an occurrence or edit."""
        return self.positions.range(found.line, found.column, found.end_column)

    def location_of(self, found: Occurrence) -> lsp.Location:
        """The location of an occurrence."""
        return lsp.Location(self.uri, self.range_of(found))


class NoetlLanguageServer(LanguageServer):
    """Open documents, their diagnostics, and the thread that compiles them."""

    def __init__(self, strict: bool, legacy: bool, target: Target) -> None:
        super().__init__("noetl", __version__)
        self.strict, self.legacy = strict, legacy
        self.schemas = RegisteredSchemas(target)
        self._open: dict[str, OpenDocument] = {}
        self._languages: dict[str, str] = {}
        self._pending: dict[str, asyncio.Task[None]] = {}
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="compile")

    @cached_property
    def specs(self) -> dict[str, ToolSpec]:
        """The specs of all kinds."""
        return tools.specs()

    def is_playbook(self, uri: str, text: str) -> bool:
        """Whether a document is a playbook, by its language, or by its name and first lines."""
        if self._languages.get(uri) == LANGUAGE:
            return True
        name = _file_name(uri)
        unsaved = not name.endswith((".yaml", ".yml"))
        return (unsaved or is_playbook_name(name)) and starts_like_playbook(text[: 64 * 1024].encode())

    def document(self, uri: str) -> OpenDocument:
        """The newest text of a document."""
        found = self.workspace.get_text_document(uri)
        known = self._open.get(uri)
        if known is None or known.version != found.version or known.text != found.source:
            known = OpenDocument(uri, found.version, TextPositions(found.source, found.position_codec), self)
            self._open[uri] = known
        return known

    async def in_thread(self, work: Callable[[], _Result]) -> _Result:
        """Run something that takes long for a large document, so that other requests are answered meanwhile."""
        return await asyncio.get_running_loop().run_in_executor(self._compiler, work)

    def opened(self, uri: str, language: str) -> None:
        """Check a document that was opened."""
        self._languages[uri] = language
        self.changed(uri, pause=0)

    def changed(self, uri: str, pause: float = PAUSE) -> None:
        """Check a document after a pause; a later change starts the pause again."""
        pending = self._pending.pop(uri, None)
        if pending is not None:
            pending.cancel()
        self._pending[uri] = asyncio.get_running_loop().create_task(self._check(uri, pause))

    async def _check(self, uri: str, pause: float) -> None:
        await asyncio.sleep(pause)
        document = self.document(uri)
        found = await self.in_thread(lambda: document.diagnostics)
        if self._open.get(uri) is document:
            self._publish(uri, document.version, [to_protocol(each, document) for each in found])

    def closed(self, uri: str) -> None:
        """Forget a document and remove its diagnostics."""
        pending = self._pending.pop(uri, None)
        if pending is not None:
            pending.cancel()
        self._open.pop(uri, None)
        self._languages.pop(uri, None)
        self._publish(uri, None, [])

    def _publish(self, uri: str, version: int | None, found: list[lsp.Diagnostic]) -> None:
        self.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, found, version))


def _file_name(uri: str) -> str:
    return PurePosixPath(unquote(urlparse(uri).path)).name


def to_protocol(found: Diagnostic, document: OpenDocument) -> lsp.Diagnostic:
    """A diagnostic as the protocol has it."""
    end = max(found.end_column, found.column + 1) if found.end_line == found.line else found.column + 1
    return lsp.Diagnostic(
        range=document.positions.range(found.line, found.column, end),
        message=printable(found.message + (f"\nhelp: {found.hint}" if found.hint else "")),
        severity=lsp.DiagnosticSeverity.Error if found.severity == "error" else lsp.DiagnosticSeverity.Warning,
        code=found.code,
        code_description=lsp.CodeDescription(f"{DOCS}{found.code}"),
        source=SOURCE,
        tags=[lsp.DiagnosticTag.Deprecated] if is_migrated(found) else None,
    )


def workspace_edit(document: OpenDocument, edits: list[Edit]) -> lsp.WorkspaceEdit:
    """Edits of one document."""
    changes = [lsp.TextEdit(document.range_of(edit), edit.text) for edit in edits]
    return lsp.WorkspaceEdit(changes={document.uri: changes})

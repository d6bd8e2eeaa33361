"""A client of `noetl lsp` over stdio, on pygls' own client."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lsprotocol import types as lsp
from pygls.lsp.client import LanguageClient

URI = "file:///playbooks/orders.yaml"


class EditorClient(LanguageClient):
    """An editor with open documents; `diagnostics` waits for those of the newest version."""

    def __init__(self) -> None:
        super().__init__("test-editor", "1")
        self.texts: dict[str, str] = {}
        self.versions: dict[str, int] = {}
        self.published: dict[str, lsp.PublishDiagnosticsParams] = {}
        self.changed = asyncio.Condition()

        @self.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        async def publish(params: lsp.PublishDiagnosticsParams) -> None:
            async with self.changed:
                self.published[params.uri] = params
                self.changed.notify_all()

    def open(self, text: str, uri: str = URI, language: str = "yaml") -> None:
        self.texts[uri], self.versions[uri] = text, 1
        document = lsp.TextDocumentItem(uri, language, 1, text)
        self.text_document_did_open(lsp.DidOpenTextDocumentParams(document))

    async def close(self, uri: str = URI) -> None:
        """Close a document; its diagnostics are removed."""
        self.published.pop(uri)
        self.text_document_did_close(lsp.DidCloseTextDocumentParams(lsp.TextDocumentIdentifier(uri)))
        async with self.changed:
            await asyncio.wait_for(self.changed.wait_for(lambda: uri in self.published), 60)
        assert not self.published.pop(uri).diagnostics

    def change(self, text: str, uri: str = URI) -> None:
        self.texts[uri] = text
        self._send(uri, lsp.TextDocumentContentChangeWholeDocument(text))

    def edit(self, range: lsp.Range, text: str, uri: str = URI) -> None:
        """An incremental change; `texts` is not updated."""
        self._send(uri, lsp.TextDocumentContentChangePartial(range, text))

    def _send(self, uri: str, change: lsp.TextDocumentContentChangeEvent) -> None:
        self.versions[uri] += 1
        identifier = lsp.VersionedTextDocumentIdentifier(self.versions[uri], uri)
        self.text_document_did_change(lsp.DidChangeTextDocumentParams(identifier, [change]))

    async def diagnostics(self, uri: str = URI) -> list[lsp.Diagnostic]:
        def is_newest() -> bool:
            found = self.published.get(uri)
            return found is not None and found.version == self.versions[uri]

        async with self.changed:
            await asyncio.wait_for(self.changed.wait_for(is_newest), 60)
        return list(self.published[uri].diagnostics)

    def place(self, piece: str, offset: int = 0, uri: str = URI, occurrence: int = 0) -> lsp.Position:
        """The position of a piece of the text, in UTF-16 units."""
        index = -1
        for _ in range(occurrence + 1):
            index = self.texts[uri].index(piece, index + 1)
        before = self.texts[uri][: index + offset]
        line = before.rpartition("\n")[2]
        return lsp.Position(before.count("\n"), len(line.encode("utf-16-le")) // 2)

    def covered(self, range: lsp.Range, uri: str = URI) -> str:
        """The text of a range of one line."""
        assert range.start.line == range.end.line
        line = self.texts[uri].split("\n")[range.start.line].encode("utf-16-le")
        return line[range.start.character * 2 : range.end.character * 2].decode("utf-16-le")

    def at(self, piece: str, offset: int = 0, occurrence: int = 0) -> dict[str, object]:
        return {
            "text_document": lsp.TextDocumentIdentifier(URI),
            "position": self.place(piece, offset, occurrence=occurrence),
        }

    def applied(self, edit: lsp.WorkspaceEdit | None, uri: str = URI) -> str:
        """The text after an edit."""
        assert edit is not None and edit.changes is not None
        return applied(self.texts[uri], edit.changes[uri])


def applied(text: str, edits: list[lsp.TextEdit]) -> str:
    def offset(position: lsp.Position) -> int:
        lines = text.splitlines(keepends=True)
        before = sum(len(line) for line in lines[: position.line])
        line = (lines[position.line] if position.line < len(lines) else "").encode("utf-16-le")
        return before + len(line[: position.character * 2].decode("utf-16-le"))

    spans = sorted(((offset(each.range.start), offset(each.range.end), each.new_text) for each in edits), reverse=True)
    for start, end, new in spans:
        text = text[:start] + new + text[end:]
    return text


@asynccontextmanager
async def editor(
    *arguments: str, capabilities: lsp.ClientCapabilities | None = None, options: object = None
) -> AsyncIterator[EditorClient]:
    """A client connected to a new `noetl lsp` process."""
    client = EditorClient()
    await client.start_io(sys.executable, "-m", "noetl", "lsp", *arguments)
    try:
        parameters = lsp.InitializeParams(
            capabilities=capabilities or lsp.ClientCapabilities(), initialization_options=options
        )
        client.initialized_with = await client.initialize_async(parameters)
        client.initialized(lsp.InitializedParams())
        yield client
        await client.shutdown_async(None)
        client.exit(None)
        await asyncio.wait_for(client._server.wait(), 30)
    finally:
        if client._server.returncode is None:
            client._server.kill()
        await client.stop()
        assert client._server.returncode in (0, -9)

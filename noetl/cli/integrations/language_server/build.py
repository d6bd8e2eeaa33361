"""Builds the server: synchronization of documents, and all features."""

from __future__ import annotations

import logging

from lsprotocol import types as lsp

from noetl.cli.integrations.language_server import changes, navigation, reading
from noetl.cli.integrations.language_server.documents import NoetlLanguageServer
from noetl.cli.target import Target


def build_server(target: Target, *, strict: bool = False, legacy: bool = False) -> NoetlLanguageServer:
    """A server with all features, not yet started."""
    logging.getLogger("pygls").setLevel(logging.ERROR)
    server = NoetlLanguageServer(strict, legacy, target)
    _add_synchronization(server)
    reading.add_features(server)
    navigation.add_features(server)
    changes.add_features(server)
    return server


def _add_synchronization(server: NoetlLanguageServer) -> None:
    @server.feature(lsp.INITIALIZE)
    def initialize(params: lsp.InitializeParams) -> None:
        options = params.initialization_options
        if isinstance(options, dict):
            server.strict = bool(options.get("strict", server.strict))
            server.legacy = bool(options.get("legacy", server.legacy))

    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    async def did_open(params: lsp.DidOpenTextDocumentParams) -> None:
        server.opened(params.text_document.uri, params.text_document.language_id)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    async def did_change(params: lsp.DidChangeTextDocumentParams) -> None:
        server.changed(params.text_document.uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    async def did_close(params: lsp.DidCloseTextDocumentParams) -> None:
        server.closed(params.text_document.uri)

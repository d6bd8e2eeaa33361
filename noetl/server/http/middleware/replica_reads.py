"""Permits GET requests to read lists from a replica of the store."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from noetl.storage.ports.reads import replica_reads


class ReplicaReadsMiddleware:
    """ASGI middleware: until the response begins, reads of a GET request may use a replica; streams follow the log on
    the primary."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["method"] not in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        with replica_reads() as reads:

            async def begin(message: Message) -> None:
                reads.open = False
                await send(message)

            await self._app(scope, receive, begin)

"""Raw routes: POST at an exact path, bytes in and bytes out, and the event stream; served before the framework.

Route matching, declarative validation and request and response objects cost several times as much as the start of
an execution itself. The few routes that every execution or run uses are therefore looked up by path behind the
security middleware, and decode their bodies with msgspec. Every raw route is declared once, as a `RawRoute`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from noetl.core.model.roles import Role
from noetl.server.http import problems
from noetl.server.http.dependencies import require_role
from noetl.server.http.middleware.security import route_path

Header = tuple[bytes, bytes]
JSON: Header = (b"content-type", b"application/json")


class RawResponse(Struct, frozen=True):
    """Body, status and headers of a response."""

    body: bytes
    status: int = 200
    headers: Sequence[Header] = (JSON,)


Handler = Callable[[Scope, bytes, Receive], Awaitable[RawResponse]]


class RawRoute(Route):
    """A POST route that requires a role.

    `operation` is its entry in the OpenAPI document (None: it has none), `schemas` are the schemas it refers to."""

    def __init__(
        self,
        path: str,
        handler: Handler,
        *,
        role: Role,
        operation: dict[str, Any] | None = None,
        schemas: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(path, RawEndpoint(handler, role), methods=["POST"], include_in_schema=operation is not None)
        self.role = role
        self.operation = operation
        self.schemas = schemas or {}


class RawEndpoint(Struct, eq=False):
    """ASGI endpoint: checks the role, reads the whole body and sends one response."""

    _handler: Handler
    _role: Role

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        require_role(scope, self._role)
        response = await self._handler(scope, await _body(receive), receive)
        length = (b"content-length", b"%d" % len(response.body))
        await send({"type": "http.response.start", "status": response.status, "headers": [*response.headers, length]})
        await send({"type": "http.response.body", "body": response.body})


class ItemRoute(Struct, frozen=True):
    """A GET route of the framework with one decimal id in its path, which is also served directly when the request has
    no query. `path` is its pattern."""

    path: str
    role: Role
    respond: Callable[[Scope, str], Awaitable[ASGIApp]]

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        require_role(scope, self.role)
        response = await self.respond(scope, scope["path_params"]["execution_id"])
        await response(scope, receive, send)

    def id_of(self, path: str) -> str | None:
        """The id in a path of this route."""
        before, _, after = self.path.partition("{execution_id}")
        found = path[len(before) : -len(after)]
        if path.startswith(before) and path.endswith(after) and found.isascii() and found.isdecimal():
            return found if len(found) < 20 else None
        return None


class FastPathMiddleware:
    """ASGI middleware that serves raw routes itself and passes every other request on."""

    def __init__(self, app: ASGIApp, *, routes: Iterable[RawRoute], stream: ItemRoute) -> None:
        self._app = app
        self._routes = {route.path: route for route in routes}
        self._stream = stream

    def _route(self, scope: Scope) -> RawRoute | ItemRoute | None:
        if scope["type"] != "http":
            return None
        if scope["method"] == "POST":
            return self._routes.get(route_path(scope))
        if scope["method"] == "GET" and not scope["query_string"] and scope["path"].endswith("/events/stream"):
            found = self._stream.id_of(route_path(scope))
            if found is not None:
                scope["path_params"] = {"execution_id": found}
                return self._stream
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or pass on one request."""
        route = self._route(scope)
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        try:
            await route.app(scope, receive, send)
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001 - every error is sent as a problem document
            response = await problems.response_to(Request(scope), error)
            await response(scope, receive, send)


async def _body(receive: Receive) -> bytes:
    chunks: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks)

"""Routes that every execution passes, answered on the shortest way: a table of paths, bytes in, bytes out.

Finding a route, validating a request by declarations and making objects of both sides cost several times what a
request to start an execution costs itself. So these few are looked up by their exact path behind the guard
and before the framework, and read their bodies with msgspec. What one of them does not understand it
leaves to the documented route of the same path (`FallThrough`), which says what is wrong.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from msgspec import Struct
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from noetl.server.http import problems
from noetl.server.http.middleware.security import route_path

Header = tuple[bytes, bytes]
JSON: Header = (b"content-type", b"application/json")


class RawResponse(Struct, frozen=True):
    """What goes back."""

    body: bytes
    status: int = 200
    headers: Sequence[Header] = (JSON,)


Answering = Callable[[Scope, bytes, Receive], Awaitable[RawResponse]]


class FallThrough(Exception):
    """This request is for the documented route."""

    def __init__(self, body: bytes) -> None:
        super().__init__("left to the documented route")
        self.body = body


class RawEndpoint:
    """ASGI endpoint: the whole body in, one answer out."""

    def __init__(self, answer: Answering) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read, answer, send."""
        answer = await self._answer(scope, await _body(receive), receive)
        length = (b"content-length", b"%d" % len(answer.body))
        await send({"type": "http.response.start", "status": answer.status, "headers": [*answer.headers, length]})
        await send({"type": "http.response.body", "body": answer.body})


class FastPathMiddleware:
    """ASGI middleware that answers POST requests at the paths of `routes` itself."""

    def __init__(self, app: ASGIApp, *, routes: Iterable[Route]) -> None:
        self._app = app
        self._routes = {route.path: route for route in routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer it, or hand it on."""
        route = None
        if scope["type"] == "http" and scope["method"] == "POST":
            route = self._routes.get(route_path(scope))
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        try:
            await route.app(scope, receive, send)
        except FallThrough as other:
            del scope["route"]
            await self._app(scope, _replayed(other.body, receive), send)
        except ClientDisconnect:
            return  # nobody is there to be answered
        except Exception as error:  # noqa: BLE001 - each has its problem document
            response = await problems.of_error(Request(scope), error)
            await response(scope, receive, send)


async def _body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body once more, then whatever comes."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return left.pop() if left else await receive()

    return again

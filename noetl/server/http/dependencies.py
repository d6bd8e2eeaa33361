"""What routes are given: the control plane, and the few things beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from fastapi import Depends, HTTPException, Request
from msgspec import Struct, field
from starlette.types import Scope

from noetl.core.model.tool import ToolSpec
from noetl.server.http.access import Caller, Role, Tokens
from noetl.server.orchestrator.service import Orchestrator
from noetl.server.scheduling.schedules import Schedules
from noetl.server.scheduling.webhooks import Webhooks
from noetl.storage.ports.secrets import CredentialStore

T = TypeVar("T")


class AppState(Struct):
    """One per server; routes find it as `request.app.state.parts`."""

    orchestrator: Orchestrator
    tokens: Tokens
    specs: Callable[[], Mapping[str, ToolSpec]]
    credentials: CredentialStore | None = None
    version: str = ""
    schedules: Schedules | None = None
    webhooks: Webhooks | None = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    told: asyncio.Task[Any] | None = None  # see `stopped`

    async def aside(self, work: Callable[[], T]) -> T:
        """Thinking that may take seconds, done beside the loop: leases, streams and decisions go on meanwhile."""
        return await self.orchestrator.catalog.run_in_thread(work)

    def stopped(self) -> asyncio.Future[Any]:
        """Done when the server stops; one for everybody who waits for that beside something else."""
        if self.told is None:
            self.told = asyncio.ensure_future(self.stopping.wait())
        return self.told

    async def unless_stopping(self, waiting: Awaitable[T], otherwise: T) -> T:
        """What is waited for; when the server stops meanwhile, nobody is kept waiting."""
        awaited = asyncio.ensure_future(waiting)
        try:
            await asyncio.wait((awaited, self.stopped()), return_when=asyncio.FIRST_COMPLETED)
            if not awaited.done():
                awaited.cancel()
                await asyncio.gather(awaited, return_exceptions=True)
            return otherwise if awaited.cancelled() else awaited.result()
        finally:
            awaited.cancel()


def app_state(request: Request) -> AppState:
    """The parts of the server that answers this request."""
    parts: AppState = request.app.state.parts
    return parts


def caller_with(role: Role) -> Callable[[Request], Awaitable[Caller]]:
    """A dependency that lets only callers of this role through; the route table is made from `role`."""

    async def check(request: Request) -> Caller:  # a plain function would be called in a thread of its own
        return require(request, role)

    check.role = role  # type: ignore[attr-defined]
    return check


def require(request: Request, role: Role) -> Caller:
    """The caller, if they may do what this role may."""
    return require_in(request.scope, role)


def require_in(scope: Scope, role: Role) -> Caller:
    """The same, of a request as it came."""
    state = scope.get("state", {})
    caller: Caller | None = state.get("caller")
    if caller is None:
        words = (
            "this token is not known here" if state.get("wrong_token") else "send a token: Authorization: Bearer ..."
        )
        raise HTTPException(401, words, headers={"WWW-Authenticate": "Bearer"})
    if not caller.may(role):
        raise HTTPException(403, f"this needs the role {role}; the token {caller.name!r} has the role {caller.role}")
    return caller


def requires_role(role: Role) -> Any:
    """`Depends` on a caller of this role."""
    return Depends(caller_with(role))

"""The application state of the server and the role checks that routes depend on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, TypeVar

from fastapi import Depends, HTTPException, Request
from msgspec import Struct, field
from starlette.types import Scope

from noetl.core.model.roles import Role
from noetl.core.model.tool import ToolSpec
from noetl.runtime.tasks import cancel
from noetl.secrets.master_key import KeyRing
from noetl.server.answer_links import AnswerLinks
from noetl.server.http.access import Caller, Tokens
from noetl.server.http.problems import no_caller
from noetl.server.notifications.notifier import Notifier
from noetl.server.orchestrator.service import Orchestrator
from noetl.server.read_models.result_queries import ResultQueries
from noetl.server.scheduling.backfills import Backfills
from noetl.server.scheduling.deliveries import Deliveries
from noetl.server.scheduling.resources import TriggerResources
from noetl.server.scheduling.schedules import Schedules
from noetl.server.scheduling.trigger_service import Triggers
from noetl.server.scheduling.webhooks import Webhooks
from noetl.storage.ports.secrets import CredentialStore

T = TypeVar("T")


class AppState(Struct):
    """The services of a server; `request.app.state.app_state`."""

    orchestrator: Orchestrator
    tokens: Tokens
    specs: Callable[[], Mapping[str, ToolSpec]]
    credentials: CredentialStore
    schedules: Schedules
    webhooks: Webhooks
    triggers: Triggers
    deliveries: Deliveries
    resources: TriggerResources
    notifier: Notifier
    answer_links: AnswerLinks
    key_ring: Callable[[], KeyRing]
    backfills: Backfills
    queries: ResultQueries
    version: str = ""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    stop_future: asyncio.Task[Any] | None = None  # see `stop_signal`

    def now(self) -> float:
        """The time of the installation: that of the database where servers share one."""
        return self.orchestrator.actors.clock.now()

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Run CPU-bound work in a thread, so that it does not block the event loop."""
        return await self.orchestrator.catalog.run_in_thread(work)

    def stop_signal(self) -> asyncio.Future[Any]:
        """A shared future that is done when the server stops."""
        if self.stop_future is None:
            self.stop_future = asyncio.ensure_future(self.stopping.wait())
        return self.stop_future

    async def unless_stopping(self, awaitable: Awaitable[T], default: T) -> T:
        """The result of `awaitable`, or `default` if the server stops first."""
        task = asyncio.ensure_future(awaitable)
        try:
            await asyncio.wait((task, self.stop_signal()), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                await cancel(task)
            return default if task.cancelled() else task.result()
        finally:
            task.cancel()


async def app_state(request: Request) -> AppState:  # a plain function would be called in a thread
    """The application state of the server that handles this request."""
    state: AppState = request.app.state.app_state
    return state


def require_role(scope: Scope, role: Role) -> Caller:
    """The caller of a request; 401 without one, 403 without the role."""
    state = scope.get("state", {})
    caller: Caller | None = state.get("caller")
    if caller is None:
        raise HTTPException(401, no_caller(bool(state.get("wrong_token"))), headers={"WWW-Authenticate": "Bearer"})
    if not caller.may(role):
        raise HTTPException(403, f"the role {role} is required; the token {caller.name!r} has the role {caller.role}")
    return caller


def _requires_role(role: Role) -> Any:
    """A dependency on a caller with this role; the OpenAPI document reads its attribute `role`."""

    async def check(request: Request) -> Caller:
        return require_role(request.scope, role)

    check.role = role  # type: ignore[attr-defined]
    return Depends(check)


App = Annotated[AppState, Depends(app_state)]
Viewer = Annotated[Caller, _requires_role("viewer")]
Operator = Annotated[Caller, _requires_role("operator")]
Author = Annotated[Caller, _requires_role("author")]
Admin = Annotated[Caller, _requires_role("admin")]

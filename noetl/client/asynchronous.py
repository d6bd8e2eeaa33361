"""The asynchronous client: runs the operations of `noetl.client.operations` over one `AsyncApiConnection`."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from noetl.client.operations import Operations
from noetl.client.requests import Operation, Pages, StreamEnd, log_stream_path, stream_path
from noetl.client.server_settings import server_settings
from noetl.transport.api_connection import Request
from noetl.transport.async_api_connection import AsyncApiConnection

P = ParamSpec("P")
T = TypeVar("T")

_OPERATIONS = Operations()


def _call(
    operation: Callable[Concatenate[Operations, P], Operation[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    @functools.wraps(operation)
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._perform(operation(_OPERATIONS, *args, **kwargs))

    return method


def _iterate(
    pages: Callable[Concatenate[Operations, P], Pages[T]],
) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[T]]:
    @functools.wraps(pages)
    def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return self._items(pages(_OPERATIONS, *args, **kwargs))

    return method


class AsyncClient:
    """A server, or several addresses of one cluster separated by commas; calls are awaited.

    The methods are those of `Client`; lists and `follow` are asynchronous iterators. What is not given comes from the
    settings, as for `Client`. One client belongs to the event loop in which it is first used."""

    def __init__(self, url: str | None = None, token: str | None = None, *, timeout: float = 30.0) -> None:
        if url is None or token is None:
            url, token = server_settings(url, token)
        self._connection = AsyncApiConnection(url, token, timeout=timeout)

    @property
    def url(self) -> str:
        """The address in use."""
        return self._connection.url

    submit = _call(Operations.submit)
    wait = _call(Operations.wait)
    run = _call(Operations.run)
    result = _call(Operations.result)
    payload = _call(Operations.payload)
    cancel = _call(Operations.cancel)
    pause = _call(Operations.pause)
    resume = _call(Operations.resume)
    signal = _call(Operations.signal)
    inbox = _iterate(Operations.inbox)
    answer_link = _call(Operations.answer_link)
    rerun = _call(Operations.rerun)
    plan_rerun = _call(Operations.plan_rerun)
    fork = _call(Operations.fork)
    plan_fork = _call(Operations.plan_fork)
    compare = _call(Operations.compare)
    executions = _iterate(Operations.executions)
    summary = _call(Operations.summary)
    execution = _call(Operations.execution)
    events = _iterate(Operations.events)
    logs = _iterate(Operations.logs)
    state = _call(Operations.state)
    why = _call(Operations.why)
    graph = _call(Operations.graph)
    workers = _call(Operations.workers)
    session = _call(Operations.session)
    register = _call(Operations.register)
    add_bundle = _call(Operations.add_bundle)
    bundle = _call(Operations.bundle)
    playbooks = _iterate(Operations.playbooks)
    playbook = _call(Operations.playbook)
    validate = _call(Operations.validate)
    credentials = _call(Operations.credentials)
    set_credential = _call(Operations.set_credential)
    delete_credential = _call(Operations.delete_credential)
    add_schedule = _call(Operations.add_schedule)
    schedules = _iterate(Operations.schedules)
    schedule = _call(Operations.schedule)
    edit_schedule = _call(Operations.edit_schedule)
    run_schedule = _call(Operations.run_schedule)
    remove_schedule = _call(Operations.remove_schedule)
    pause_schedule = _call(Operations.pause_schedule)
    resume_schedule = _call(Operations.resume_schedule)
    set_limit = _call(Operations.set_limit)
    limits = _iterate(Operations.limits)
    limit = _call(Operations.limit)
    remove_limit = _call(Operations.remove_limit)
    tables = _call(Operations.tables)
    query = _call(Operations.query)
    export_query = _call(Operations.export_query)
    states = _iterate(Operations.states)
    state_of = _call(Operations.state_of)
    set_state = _call(Operations.set_state)
    reset_state = _call(Operations.reset_state)
    register_schema = _call(Operations.register_schema)
    schemas = _iterate(Operations.schemas)
    schema = _call(Operations.schema)
    triggers = _iterate(Operations.triggers)
    trigger = _call(Operations.trigger)
    put_trigger = _call(Operations.put_trigger)
    pause_trigger = _call(Operations.pause_trigger)
    resume_trigger = _call(Operations.resume_trigger)
    remove_trigger = _call(Operations.remove_trigger)
    deliveries = _iterate(Operations.deliveries)
    delivery = _call(Operations.delivery)
    replay_delivery = _call(Operations.replay_delivery)
    notifications = _iterate(Operations.notifications)
    notification = _call(Operations.notification)
    put_notification = _call(Operations.put_notification)
    test_notification = _call(Operations.test_notification)
    remove_notification = _call(Operations.remove_notification)
    notification_deliveries = _iterate(Operations.notification_deliveries)
    add_backfill = _call(Operations.add_backfill)
    backfills = _iterate(Operations.backfills)
    backfill = _call(Operations.backfill)
    control_backfill = _call(Operations.control_backfill)
    add_webhook = _call(Operations.add_webhook)
    webhooks = _iterate(Operations.webhooks)
    remove_webhook = _call(Operations.remove_webhook)
    deliver = _call(Operations.deliver)

    async def follow(self, execution_id: str, after: int = 0) -> AsyncIterator[dict[str, Any]]:
        """Yield events with seq > after as they are recorded, until the execution has ended; reconnects if needed."""
        async for data in self._connection.stream(stream_path(execution_id), after):
            yield msgspec.json.decode(data)

    async def follow_logs(self, execution_id: str, after: int = 0) -> AsyncIterator[dict[str, Any]]:
        """Yield lines of tasks as they are printed, until the execution has ended; reconnects if needed."""
        async for data in self._connection.stream(log_stream_path(execution_id), after):
            for line in msgspec.json.decode(data):
                yield line

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _perform(self, operation: Operation[T]) -> T:
        response: Any = None
        problem: Exception | None = None
        while True:
            try:
                request = operation.send(response) if problem is None else operation.throw(problem)
            except StopIteration as end:
                result: T = end.value
                return result
            response = problem = None
            try:
                response = await self._send(request)
            except Exception as raised:  # noqa: BLE001 - the operation handles it or raises it
                problem = raised

    async def _send(self, request: Request | StreamEnd) -> Any:
        if isinstance(request, Request):
            return await self._connection.request(request)
        async for _ in self._connection.stream(request.path, request.after, until=request.until):
            pass
        return None

    async def _items(self, pages: Pages[T]) -> AsyncIterator[T]:
        left, at = pages.limit, None
        while left is None or left > 0:
            page = await self._connection.request(pages.page(at, left))
            for item in page["items"]:
                yield pages.decode(item)
            at = page["next"]
            if at is None:
                return
            left = None if left is None else left - len(page["items"])

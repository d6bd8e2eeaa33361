"""A server as a back end of commands: the blocking client in threads, because importing aiohttp takes too long."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import msgspec

from noetl.cli.backend.base import Document
from noetl.client import Client
from noetl.core.model.events import Recorded, recorded_of
from noetl.errors import NoetlError, RequestRefused
from noetl.transport.api_connection import Stop

if TYPE_CHECKING:
    from noetl.core.language.diagnostics import Diagnostic

P = ParamSpec("P")
T = TypeVar("T")


def _call(
    method: Callable[Concatenate[Client, P], T],
) -> Callable[Concatenate[RemoteBackend, P], Coroutine[Any, Any, T]]:
    @functools.wraps(method)
    async def call(self: RemoteBackend, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(method, self.client, *args, **kwargs)

    return call


def _list(
    method: Callable[Concatenate[Client, P], Iterator[T]],
) -> Callable[Concatenate[RemoteBackend, P], Coroutine[Any, Any, list[T]]]:
    @functools.wraps(method)
    async def call(self: RemoteBackend, /, *args: P.args, **kwargs: P.kwargs) -> list[T]:
        return await asyncio.to_thread(lambda: list(method(self.client, *args, **kwargs)))

    return call


class RemoteBackend:
    """A server."""

    def __init__(self, client: Client) -> None:
        self.client = client

    executions = _list(Client.executions)
    summary = _call(Client.summary)
    execution = _call(Client.execution)
    result = _call(Client.result)
    state = _call(Client.state)
    graph = _call(Client.graph)
    cancel = _call(Client.cancel)
    pause = _call(Client.pause)
    resume = _call(Client.resume)
    signal = _call(Client.signal)
    inbox = _list(Client.inbox)
    compare = _call(Client.compare)
    backfills = _list(Client.backfills)
    backfill = _call(Client.backfill)
    control_backfill = _call(Client.control_backfill)
    register = _call(Client.register)
    add_bundle = _call(Client.add_bundle)
    bundle = _call(Client.bundle)
    playbooks = _list(Client.playbooks)
    playbook = _call(Client.playbook)
    add_schedule = _call(Client.add_schedule)
    schedules = _list(Client.schedules)
    schedule = _call(Client.schedule)
    edit_schedule = _call(Client.edit_schedule)
    run_schedule = _call(Client.run_schedule)
    remove_schedule = _call(Client.remove_schedule)
    pause_schedule = _call(Client.pause_schedule)
    resume_schedule = _call(Client.resume_schedule)
    set_limit = _call(Client.set_limit)
    limits = _list(Client.limits)
    limit = _call(Client.limit)
    remove_limit = _call(Client.remove_limit)
    tables = _call(Client.tables)
    query = _call(Client.query)
    export_query = _call(Client.export_query)
    states = _list(Client.states)
    state_of = _call(Client.state_of)
    set_state = _call(Client.set_state)
    reset_state = _call(Client.reset_state)
    register_schema = _call(Client.register_schema)
    schemas = _list(Client.schemas)
    schema = _call(Client.schema)

    def events(self, execution_id: str, after: int = 0) -> AsyncIterator[Recorded]:
        return _recorded(_iterate(lambda: self.client.events(execution_id, after)))

    def follow(self, execution_id: str, after: int = 0) -> AsyncIterator[Recorded]:
        stop = Stop()
        return _recorded(_iterate(lambda: self.client.follow(execution_id, after, stop=stop), stop))

    def logs(self, execution_id: str, after: int = 0) -> AsyncIterator[Document]:
        return _iterate(lambda: self.client.logs(execution_id, after))

    def follow_logs(self, execution_id: str, after: int = 0) -> AsyncIterator[Document]:
        stop = Stop()
        return _iterate(lambda: self.client.follow_logs(execution_id, after, stop=stop), stop)

    async def why(self, execution_id: str) -> Document:
        found = await asyncio.to_thread(self.client.why, execution_id)
        names = ("execution_id", "status", "summary", "because", "way")
        return {name: found[name] for name in names} | {"way_omitted": found.get("way_omitted", False)}

    async def check(self, text: bytes, file: str, *, strict: bool = False, legacy: bool = False) -> list[Diagnostic]:
        try:
            content = text.decode("utf-8-sig")
        except UnicodeDecodeError as problem:
            raise RequestRefused(f"{file} is not UTF-8 text (byte {problem.start})") from None
        found = await asyncio.to_thread(self.client.validate, content, strict=strict, legacy=legacy)
        return [msgspec.structs.replace(one, file=file) for one in found]


async def _recorded(envelopes: AsyncIterator[Document]) -> AsyncIterator[Recorded]:
    async for document in envelopes:
        try:
            yield recorded_of(document)
        except KeyError:
            raise NoetlError(
                f"the server sent the event {document.get('name')} version {document.get('version')}, which this "
                "version of noetl does not know; install the version of the server"
            ) from None


_END = object()


async def _iterate(make: Callable[[], Iterator[T]], stop: Callable[[], None] | None = None) -> AsyncIterator[T]:
    """The items of a blocking iterator that runs in a thread of its own; `stop` ends it early."""
    loop = asyncio.get_running_loop()
    items: asyncio.Queue[Any] = asyncio.Queue()

    def put(item: Any, problem: BaseException | None = None) -> None:
        try:
            loop.call_soon_threadsafe(items.put_nowait, (item, problem))
        except RuntimeError:
            return  # the loop is closed

    def run() -> None:
        try:
            for item in make():
                put(item)
            put(_END)
        except BaseException as problem:  # noqa: BLE001 - raised where the items are awaited
            put(_END, problem)

    threading.Thread(target=run, name="noetl-stream", daemon=True).start()
    try:
        while True:
            item, problem = await items.get()
            if problem is not None:
                raise problem
            if item is _END:
                return
            yield item
    finally:
        if stop is not None:
            stop()

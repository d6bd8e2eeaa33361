"""What verbs ask about executions and playbooks, answered by the embedded engine or by a server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from noetl.core.model.events import Recorded, recorded_of
from noetl.errors import Conflict, NoetlError, NotFound, RequestRefused
from noetl.storage.ports.events import ExecutionFilter, ExecutionSummary
from noetl.storage.ports.playbooks import StoredPlaybook

if TYPE_CHECKING:
    from noetl.client import Client
    from noetl.core.language.diagnostics import Diagnostic
    from noetl.embedded import LocalEngine
    from noetl.server.read_models.summaries import RunResult
    from noetl.server.scheduling.schedules import Schedule

T = TypeVar("T")

LAST = "last"
PAGE = 1_000


class ScheduleBackend(Protocol):
    """Where schedules are kept; answers are documents."""

    async def add(self, path: str, cron: str, **fields: Any) -> Mapping[str, Any]:
        """Keep a new one."""

    async def list(self) -> list[Mapping[str, Any]]:
        """All of them, by name."""

    async def get(self, name: str, count: int = 3) -> Mapping[str, Any]:
        """One of them, with its next ticks."""

    async def remove(self, name: str) -> None:
        """Forget it."""

    async def pause(self, name: str) -> Mapping[str, Any]:
        """Tick no more."""

    async def resume(self, name: str) -> Mapping[str, Any]:
        """Tick again."""


class LimitBackend(Protocol):
    """Where limits are kept; answers are documents."""

    async def set(self, subject: str, name: str, most: int | None, weight: int | None) -> Mapping[str, Any]:
        """Set or change one."""

    async def list(self) -> list[Mapping[str, Any]]:
        """All of them."""

    async def get(self, subject: str, name: str) -> Mapping[str, Any]:
        """One of them."""

    async def remove(self, subject: str, name: str) -> None:
        """Forget it."""


class Backend(Protocol):
    """Where executions are looked at and steered."""

    @property
    def schedules(self) -> ScheduleBackend:
        """Where schedules are kept."""

    @property
    def limits(self) -> LimitBackend:
        """Where limits are kept."""

    async def executions(self, where: ExecutionFilter) -> list[ExecutionSummary]:
        """Newest first."""

    async def summary(self, execution_id: str) -> ExecutionSummary:
        """One row; NotFound when there is none."""

    async def execution(self, execution_id: str) -> Mapping[str, Any]:
        """The document with the steps."""

    async def result(self, execution_id: str) -> RunResult:
        """How it came out, as far as it is."""

    def events(self, execution_id: str, after: int = 0) -> AsyncIterator[Recorded]:
        """The log as it is."""

    def follow(self, execution_id: str, after: int = 0) -> AsyncIterator[Recorded]:
        """The log as it grows, until the execution has ended."""

    async def state(self, execution_id: str, at: int | None = None) -> Mapping[str, Any]:
        """The folded state."""

    async def explain(self, execution_id: str) -> Mapping[str, Any]:
        """Why it is where it is: execution_id, status, summary, because, way."""

    async def graph(self, execution_id: str) -> Mapping[str, Any]:
        """The net of its playbook."""

    async def cancel(self, execution_id: str, reason: str = "") -> ExecutionSummary:
        """Stop it."""

    async def pause(self, execution_id: str, reason: str = "") -> ExecutionSummary:
        """Start no new run."""

    async def resume(self, execution_id: str, reason: str = "") -> ExecutionSummary:
        """Go on after a pause."""

    async def signal(self, execution_id: str, name: str, payload: Mapping[str, Any]) -> ExecutionSummary:
        """Lay a payload over ctx."""

    async def check(self, text: bytes, file: str, *, strict: bool = False, legacy: bool = False) -> list[Diagnostic]:
        """All problems of a playbook's text, which is called `file`."""

    async def register(self, text: str, *, strict: bool = False, legacy: bool = False) -> StoredPlaybook:
        """Put a playbook into the catalog."""

    async def playbooks(self, search: str | None = None) -> list[StoredPlaybook]:
        """The newest version of every path."""

    async def playbook(self, path: str, version: int | None = None) -> StoredPlaybook:
        """A version; NotFound when there is none."""


async def named(desk: Backend, execution_id: str) -> ExecutionSummary:
    """The execution of an id; `last` is the newest one that nobody called."""
    if execution_id != LAST:
        return await desk.summary(execution_id)
    before: str | None = None
    while page := await desk.executions(ExecutionFilter(before=before, limit=100)):
        for summary in page:
            if summary.parent is None:
                return summary
        before = page[-1].execution_id
    raise NotFound("there is no execution yet; `noetl run FILE` makes one")


class LocalBackend:
    """The embedded engine's answers."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine
        self._orchestrator = engine.orchestrator

    async def executions(self, where: ExecutionFilter) -> list[ExecutionSummary]:
        """Newest first."""
        return await self._orchestrator.executions(where)

    async def summary(self, execution_id: str) -> ExecutionSummary:
        """One row."""
        return await self._orchestrator.summary(execution_id)

    async def execution(self, execution_id: str) -> Mapping[str, Any]:
        """The document with the steps."""
        from noetl.server.read_models.documents import execution_document

        summary = await self.summary(execution_id)
        progress = await self._orchestrator.progress(execution_id)
        return execution_document(summary, progress, await self._orchestrator.waits_for(summary))

    async def result(self, execution_id: str) -> RunResult:
        """How it came out."""
        return await self._engine.result(execution_id)

    async def events(self, execution_id: str, after: int = 0) -> AsyncIterator[Recorded]:
        """The log as it is."""
        while page := await self._orchestrator.events(execution_id, after, PAGE):
            for recorded in page:
                yield recorded
            after = page[-1].seq

    def follow(self, execution_id: str, after: int = 0) -> AsyncIterator[Recorded]:
        """The log as it grows."""
        return self._orchestrator.subscribe(execution_id, after)

    async def state(self, execution_id: str, at: int | None = None) -> Mapping[str, Any]:
        """The folded state."""
        from noetl.server.read_models.state_at import state_document

        return state_document(await self._orchestrator.state(execution_id, at))

    async def explain(self, execution_id: str) -> Mapping[str, Any]:
        """Why it is where it is."""
        return msgspec.structs.asdict(await self._orchestrator.explain(execution_id))

    async def graph(self, execution_id: str) -> Mapping[str, Any]:
        """The net of its playbook."""
        from noetl.core.language.editor.net_document import net_document

        folded = await self._orchestrator.state(execution_id)
        return net_document(folded.playbook, folded.synthesized.values())

    async def cancel(self, execution_id: str, reason: str = "") -> ExecutionSummary:
        """Stop it, and the executions it called: its own process may be gone."""
        await self._orchestrator.cancel(execution_id, reason)
        await self._cancel_children(execution_id, reason)
        return await self.summary(execution_id)

    async def pause(self, execution_id: str, reason: str = "") -> ExecutionSummary:
        """Start no new run."""
        await self._orchestrator.pause(execution_id, reason)
        return await self.summary(execution_id)

    async def resume(self, execution_id: str, reason: str = "") -> ExecutionSummary:
        """Go on after a pause."""
        await self._orchestrator.resume(execution_id, reason)
        return await self.summary(execution_id)

    async def signal(self, execution_id: str, name: str, payload: Mapping[str, Any]) -> ExecutionSummary:
        """Lay a payload over ctx."""
        await self._orchestrator.signal(execution_id, name, payload)
        return await self.summary(execution_id)

    async def check(self, text: bytes, file: str, *, strict: bool = False, legacy: bool = False) -> list[Diagnostic]:
        """All problems of a playbook's text."""
        from noetl.core.language.compile import compile_playbook
        from noetl.tools.registry import specs

        return list(compile_playbook(text, file=file, specs=specs(), strict=strict, legacy=legacy).diagnostics)

    async def register(self, text: str, *, strict: bool = False, legacy: bool = False) -> StoredPlaybook:
        """Put a playbook into the catalog."""
        import time

        from noetl.server.orchestrator.catalog import Source

        return await self._orchestrator.catalog.register(Source(text), time.time(), strict=strict, legacy=legacy)

    async def playbooks(self, search: str | None = None) -> list[StoredPlaybook]:
        """The newest version of every path."""
        found: list[StoredPlaybook] = []
        catalog = self._orchestrator.catalog
        while page := await catalog.list(search=search, after=found[-1].path if found else None, limit=PAGE):
            found += page
        return found

    async def playbook(self, path: str, version: int | None = None) -> StoredPlaybook:
        """A version."""
        found = await self._orchestrator.catalog.registered(path, version)
        if found is None:
            raise NotFound(f"there is no playbook {path!r}" + (f" version {version}" if version else ""))
        return found

    @property
    def schedules(self) -> LocalSchedules:
        """Schedules of this machine; a server on the same store carries them out."""
        return LocalSchedules(self._engine)

    @property
    def limits(self) -> LimitBackend:
        """Limits of this machine's store."""
        from noetl.cli.backend.limits import LocalLimits

        return LocalLimits(self._engine)

    async def _cancel_children(self, execution_id: str, reason: str) -> None:
        open_ones = ("pending", "running", "paused")
        where = ExecutionFilter(parent=execution_id, status=open_ones, limit=PAGE)
        for child in await self._orchestrator.executions(where):
            try:
                await self.cancel(child.execution_id, reason)
            except Conflict:
                continue  # it ended first


class LocalSchedules:
    """Schedules in this machine's store."""

    def __init__(self, engine: LocalEngine) -> None:
        from noetl.runtime.clock import RealClock
        from noetl.server.scheduling.schedules import Schedules
        from noetl.storage.factory import open_triggers

        orchestrator = engine.orchestrator
        self._clock = RealClock()
        self._schedules = Schedules(open_triggers(orchestrator.store), orchestrator.catalog, self._clock)

    async def add(self, path: str, cron: str, **fields: Any) -> Mapping[str, Any]:
        """Keep a new one."""
        return self._document(await self._schedules.add(path, cron, by="the command line", **fields))

    async def list(self) -> list[Mapping[str, Any]]:
        """All of them."""
        found: list[Mapping[str, Any]] = []
        while page := await self._schedules.list(after=found[-1]["name"] if found else None, limit=PAGE):
            found += map(self._document, page)
        return found

    async def get(self, name: str, count: int = 3) -> Mapping[str, Any]:
        """One of them."""
        return self._document(await self._schedules.get(name), count)

    async def remove(self, name: str) -> None:
        """Forget it."""
        await self._schedules.remove(name)

    async def pause(self, name: str) -> Mapping[str, Any]:
        """Tick no more."""
        return self._document(await self._schedules.pause(name))

    async def resume(self, name: str) -> Mapping[str, Any]:
        """Tick again."""
        return self._document(await self._schedules.resume(name))

    def _document(self, schedule: Schedule, count: int = 3) -> Mapping[str, Any]:
        from noetl.server.scheduling.schedules import schedule_document

        return schedule_document(schedule, self._clock.now(), count)


class RemoteSchedules:
    """Schedules of a server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def add(self, path: str, cron: str, **fields: Any) -> Mapping[str, Any]:
        """Keep a new one."""
        return await asyncio.to_thread(lambda: self._client.add_schedule(path, cron, **fields))

    async def list(self) -> list[Mapping[str, Any]]:
        """All of them."""
        return await asyncio.to_thread(lambda: list(self._client.schedules()))

    async def get(self, name: str, count: int = 3) -> Mapping[str, Any]:
        """One of them."""
        return await asyncio.to_thread(self._client.schedule, name, count)

    async def remove(self, name: str) -> None:
        """Forget it."""
        await asyncio.to_thread(self._client.remove_schedule, name)

    async def pause(self, name: str) -> Mapping[str, Any]:
        """Tick no more."""
        return await asyncio.to_thread(self._client.pause_schedule, name)

    async def resume(self, name: str) -> Mapping[str, Any]:
        """Tick again."""
        return await asyncio.to_thread(self._client.resume_schedule, name)


class RemoteBackend:
    """A server's answers; its blocking client works in threads."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def executions(self, where: ExecutionFilter) -> list[ExecutionSummary]:
        """Newest first."""
        fields = {name: getattr(where, name) for name in ("status", "path", "parent", "search", "before", "limit")}
        return await asyncio.to_thread(lambda: list(self.client.executions(**fields)))

    async def summary(self, execution_id: str) -> ExecutionSummary:
        """One row."""
        return await asyncio.to_thread(self.client.summary, execution_id)

    async def execution(self, execution_id: str) -> Mapping[str, Any]:
        """The document with the steps."""
        return await asyncio.to_thread(self.client.execution, execution_id)

    async def result(self, execution_id: str) -> RunResult:
        """How it came out."""
        return await asyncio.to_thread(self.client.result, execution_id)

    def events(self, execution_id: str, after: int = 0) -> AsyncIterator[Recorded]:
        """The log as it is."""
        return _recorded(in_thread(lambda: self.client.events(execution_id, after)))

    def follow(self, execution_id: str, after: int = 0) -> AsyncIterator[Recorded]:
        """The log as it grows."""
        from noetl.transport.api_connection import Stop

        stop = Stop()
        return _recorded(in_thread(lambda: self.client.follow(execution_id, after, stop=stop), stop))

    async def state(self, execution_id: str, at: int | None = None) -> Mapping[str, Any]:
        """The folded state."""
        return await asyncio.to_thread(self.client.state, execution_id, at)

    async def explain(self, execution_id: str) -> Mapping[str, Any]:
        """Why it is where it is."""
        found = await asyncio.to_thread(self.client.why, execution_id)
        return {name: found[name] for name in ("execution_id", "status", "summary", "because", "way")}

    async def graph(self, execution_id: str) -> Mapping[str, Any]:
        """The net of its playbook."""
        return await asyncio.to_thread(self.client.graph, execution_id)

    async def cancel(self, execution_id: str, reason: str = "") -> ExecutionSummary:
        """Stop it."""
        return await asyncio.to_thread(self.client.cancel, execution_id, reason)

    async def pause(self, execution_id: str, reason: str = "") -> ExecutionSummary:
        """Start no new run."""
        return await asyncio.to_thread(self.client.pause, execution_id, reason)

    async def resume(self, execution_id: str, reason: str = "") -> ExecutionSummary:
        """Go on after a pause."""
        return await asyncio.to_thread(self.client.resume, execution_id, reason)

    async def signal(self, execution_id: str, name: str, payload: Mapping[str, Any]) -> ExecutionSummary:
        """Lay a payload over ctx."""
        return await asyncio.to_thread(self.client.signal, execution_id, payload, name)

    async def check(self, text: bytes, file: str, *, strict: bool = False, legacy: bool = False) -> list[Diagnostic]:
        """All problems of a playbook's text, by the server's tools."""
        try:
            content = text.decode("utf-8-sig")
        except UnicodeDecodeError as problem:
            raise RequestRefused(f"{file} is not UTF-8 text (byte {problem.start})") from None
        found = await asyncio.to_thread(lambda: self.client.validate(content, strict=strict, legacy=legacy))
        return [msgspec.structs.replace(one, file=file) for one in found]

    async def register(self, text: str, *, strict: bool = False, legacy: bool = False) -> StoredPlaybook:
        """Put a playbook into the catalog."""
        return await asyncio.to_thread(lambda: self.client.register(text, strict=strict, legacy=legacy))

    async def playbooks(self, search: str | None = None) -> list[StoredPlaybook]:
        """The newest version of every path."""
        return await asyncio.to_thread(lambda: list(self.client.playbooks(search)))

    async def playbook(self, path: str, version: int | None = None) -> StoredPlaybook:
        """A version."""
        return await asyncio.to_thread(self.client.playbook, path, version)

    @property
    def schedules(self) -> RemoteSchedules:
        """Schedules of the server."""
        return RemoteSchedules(self.client)

    @property
    def limits(self) -> LimitBackend:
        """Limits of the server."""
        from noetl.cli.backend.limits import RemoteLimits

        return RemoteLimits(self.client)


async def _recorded(envelopes: AsyncIterator[dict[str, Any]]) -> AsyncIterator[Recorded]:
    async for document in envelopes:
        try:
            yield recorded_of(document)
        except KeyError:
            raise NoetlError(
                f"the server tells of {document.get('name')} version {document.get('version')}, which this version "
                "of noetl does not know; install the server's version"
            ) from None


_END = object()


async def in_thread(make: Callable[[], Iterator[T]], stop: Callable[[], None] | None = None) -> AsyncIterator[T]:
    """The items of a blocking iterator, which lives in a thread of its own; `stop` ends it early."""
    loop = asyncio.get_running_loop()
    items: asyncio.Queue[Any] = asyncio.Queue()

    def tell(item: Any) -> None:
        try:
            loop.call_soon_threadsafe(items.put_nowait, item)
        except RuntimeError:
            return  # the loop has been closed: nobody listens any more

    def work() -> None:
        try:
            for item in make():
                tell((item, None))
            tell((_END, None))
        except BaseException as problem:  # noqa: BLE001 - raised where the items are awaited
            tell((_END, problem))

    threading.Thread(target=work, name="noetl-stream", daemon=True).start()
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

"""The embedded engine as a back end of commands."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Unpack

import msgspec

from noetl.cli.backend.base import Document
from noetl.core.model.events import Recorded
from noetl.errors import Conflict, NotFound, RequestRefused
from noetl.storage.ports.events import ExecutionFilter, ExecutionSummary
from noetl.storage.ports.playbooks import Origin, StoredPlaybook

if TYPE_CHECKING:
    from noetl.client import ScheduleOptions
    from noetl.client.options import ListOptions
    from noetl.core.language.diagnostics import Diagnostic
    from noetl.core.model.bundle import Bundle
    from noetl.embedded import LocalEngine
    from noetl.server.concurrency.limits import Limits
    from noetl.server.orchestrator.schema_registry import SchemaRegistry
    from noetl.server.read_models.summaries import RunResult
    from noetl.server.scheduling.backfills import Backfills
    from noetl.server.scheduling.schedules import Schedules

PAGE_SIZE = 1_000
AUTHOR = "the command line"  # recorded as the author of schedules and limits


class LocalBackend:
    """The embedded engine; schedules are stored, and a server on the same store starts them."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine
        self._orchestrator = engine.orchestrator

    async def executions(
        self,
        *,
        status: Sequence[str] = (),
        path: str | None = None,
        parent: str | None = None,
        search: str | None = None,
        before: str | None = None,
        limit: int | None = None,
        **more: Unpack[ListOptions],
    ) -> list[ExecutionSummary]:
        return await self._orchestrator.store.executions(
            ExecutionFilter(
                tuple(status),
                path,
                parent,
                search,
                before,
                limit or PAGE_SIZE,
                trigger=more.get("trigger"),
                labels=tuple(more.get("labels", ())),
            )
        )

    async def summary(self, execution_id: str) -> ExecutionSummary:
        return await self._orchestrator.summary(execution_id)

    async def execution(self, execution_id: str) -> Document:
        from noetl.server.read_models.documents import execution_document
        from noetl.server.read_models.stored_values import with_stored_values

        summary = await self.summary(execution_id)
        progress = await self._orchestrator.progress(execution_id)
        document = execution_document(summary, progress, await self._orchestrator.waits_for(summary))
        return await with_stored_values(self._orchestrator.results, document)

    async def result(self, execution_id: str) -> RunResult:
        return await self._engine.result(execution_id)

    async def events(self, execution_id: str, after: int = 0) -> AsyncIterator[Recorded]:
        while page := await self._orchestrator.events(execution_id, after, PAGE_SIZE):
            for recorded in page:
                yield recorded
            after = page[-1].seq

    def follow(self, execution_id: str, after: int = 0) -> AsyncIterator[Recorded]:
        return self._orchestrator.subscribe(execution_id, after)

    async def logs(self, execution_id: str, after: int = 0) -> AsyncIterator[Document]:
        from noetl.server.read_models.task_logs import line_document

        following: int | None = after
        while following is not None:
            page = await self._orchestrator.task_logs.read(execution_id, following, PAGE_SIZE)
            for line in page.lines:
                yield line_document(line)
            following = page.next

    async def follow_logs(self, execution_id: str, after: int = 0) -> AsyncIterator[Document]:
        from noetl.server.read_models.task_logs import line_document

        async for lines in self._orchestrator.task_logs.follow(execution_id, after):
            for line in lines:
                yield line_document(line)

    async def state(self, execution_id: str, at: int | None = None) -> Document:
        from noetl.server.read_models.state_at import state_document
        from noetl.server.read_models.stored_values import state_with_stored_values

        document = state_document(await self._orchestrator.state(execution_id, at))
        return await state_with_stored_values(self._orchestrator.results, document)

    async def why(self, execution_id: str) -> Document:
        return msgspec.structs.asdict(await self._orchestrator.explain(execution_id))

    async def graph(self, execution_id: str) -> Document:
        from noetl.core.language.editor.net_document import net_document

        state = await self._orchestrator.state(execution_id)
        return net_document(state.playbook, state.synthesized.values())

    async def cancel(self, execution_id: str, reason: str = "", compensate: bool = False) -> ExecutionSummary:
        await self._orchestrator.cancel(execution_id, reason, compensate=compensate, id=idempotency_key())
        if not compensate:
            await self._cancel_children(execution_id, reason)  # the process that would do it may have ended
        return await self.summary(execution_id)

    async def pause(self, execution_id: str, reason: str = "") -> ExecutionSummary:
        return await self._changed(execution_id, self._orchestrator.pause(execution_id, reason, id=idempotency_key()))

    async def resume(self, execution_id: str, reason: str = "") -> ExecutionSummary:
        return await self._changed(execution_id, self._orchestrator.resume(execution_id, reason, id=idempotency_key()))

    async def signal(self, execution_id: str, payload: Mapping[str, Any], name: str = "") -> ExecutionSummary:
        return await self._changed(
            execution_id, self._orchestrator.signal(execution_id, name, payload, by=user_name(), id=idempotency_key())
        )

    async def plan_rerun(self, execution_id: str, fields: Mapping[str, Any]) -> Document:
        """What a rerun would do."""
        from noetl.server.orchestrator.submissions import RerunRequest

        plan = await self._orchestrator.plan_rerun(RerunRequest(execution_id, **fields))
        return msgspec.structs.asdict(plan)

    async def backfills(self) -> list[Document]:
        service = self.backfill_service
        found: list[Document] = []
        while page := await service.list(after=found[-1]["name"] if found else None, limit=PAGE_SIZE):
            found += [await service.document(each) for each in page]
        return found

    async def backfill(self, name: str) -> Document:
        return await self.backfill_service.document(await self.backfill_service.get(name))

    async def control_backfill(self, name: str, command: Literal["pause", "resume", "cancel", "retry"]) -> Document:
        service = self.backfill_service
        change = {"pause": service.pause, "resume": service.resume, "cancel": service.cancel, "retry": service.retry}
        return await service.document(await change[command](name))

    @cached_property
    def backfill_service(self) -> Backfills:
        """The backfills of this store."""
        from noetl.runtime.clock import RealClock
        from noetl.server.scheduling.backfills import Backfills
        from noetl.storage.factory import open_triggers

        return Backfills(open_triggers(self._orchestrator.store), self._orchestrator.catalog, RealClock())

    async def compare(self, execution_id: str, other: str) -> Document:
        return await self._orchestrator.compare(execution_id, other)

    async def inbox(self) -> list[Document]:
        from noetl.server.read_models.documents import inbox_document

        found: list[Document] = []
        before: str | None = None
        while True:
            entries, before = await self._orchestrator.inbox(before, PAGE_SIZE)
            found += map(inbox_document, entries)
            if before is None:
                return found

    async def check(self, text: bytes, file: str, *, strict: bool = False, legacy: bool = False) -> list[Diagnostic]:
        from noetl.core.language.compile import compile_playbook
        from noetl.tools.registry import specs

        return list(compile_playbook(text, file=file, specs=specs(), strict=strict, legacy=legacy).diagnostics)

    async def register(
        self,
        content: str,
        *,
        strict: bool = False,
        legacy: bool = False,
        file: str = "",
        origin: Origin | None = None,
    ) -> StoredPlaybook:
        from noetl.server.orchestrator.catalog import Source

        source = Source(content, file)
        return await self._orchestrator.catalog.register(
            source, time.time(), strict=strict, legacy=legacy, origin=origin
        )

    async def add_bundle(self, bundle: Bundle, contents: Mapping[str, bytes]) -> str:
        catalog = self._orchestrator.catalog
        missing = await catalog.bundles.add(bundle)
        await catalog.playbooks.save_files({digest: contents[digest] for digest in missing})
        return bundle.digest

    async def bundle(self, digest: str) -> Bundle:
        found = await self._orchestrator.catalog.playbooks.bundle(digest)
        if found is None:
            raise NotFound(f"there is no bundle {digest}")
        return found

    async def playbooks(self, search: str | None = None) -> list[StoredPlaybook]:
        found: list[StoredPlaybook] = []
        playbooks = self._orchestrator.catalog.playbooks
        while page := await playbooks.list(search=search, after=found[-1].path if found else None, limit=PAGE_SIZE):
            found += page
        return found

    async def playbook(self, path: str, version: int | None = None) -> StoredPlaybook:
        found = await self._orchestrator.catalog.registered(path, version)
        if found is None:
            raise await self._orchestrator.catalog.unknown(path, version)
        return found

    async def add_schedule(self, path: str, cron: str, **options: Unpack[ScheduleOptions]) -> Document:
        given: Any = {name: value for name, value in options.items() if value is not None}
        schedules = self._schedules
        return await schedules.document(await schedules.add(path, cron, by=AUTHOR, **given))

    async def schedules(self) -> list[Document]:
        found: list[Document] = []
        while page := await self._schedules.list(after=found[-1]["name"] if found else None, limit=PAGE_SIZE):
            found += await self._schedules.documents(page)
        return found

    async def schedule(self, name: str, count: int = 3) -> Document:
        return await self._schedules.document(await self._schedules.get(name), count)

    async def edit_schedule(self, name: str, fields: Mapping[str, Any]) -> Document:
        return await self._schedules.document(await self._schedules.edit(name, fields))

    async def run_schedule(self, name: str) -> Document:
        from noetl.server.scheduling.deliveries import delivery_document

        return delivery_document(await self._schedules.request(await self._schedules.get(name), by=AUTHOR))

    async def remove_schedule(self, name: str) -> None:
        await self._schedules.remove(name)

    async def pause_schedule(self, name: str) -> Document:
        return await self._schedules.document(await self._schedules.pause(name))

    async def resume_schedule(self, name: str) -> Document:
        return await self._schedules.document(await self._schedules.resume(name))

    async def set_limit(
        self,
        subject: str,
        name: str,
        most: int | None = None,
        *,
        weight: int | None = None,
        max_waiting: int | None = None,
    ) -> Document:
        limit = await self._limits.set(subject, name, most, weight=weight, max_waiting=max_waiting, by=AUTHOR)
        return await self._limits.document(limit)

    async def limits(self) -> list[Document]:
        found: list[Document] = []
        after: str | None = None
        while page := await self._limits.list(after=after, limit=PAGE_SIZE):
            found += [await self._limits.document(each) for each in page]
            after = page[-1].key
        return found

    async def limit(self, subject: str, name: str) -> Document:
        return await self._limits.document(await self._limits.get(subject, name))

    async def remove_limit(self, subject: str, name: str) -> None:
        await self._limits.remove(subject, name)

    async def tables(self, execution_id: str) -> list[Document]:
        from noetl.server.read_models.result_queries import execution_results, listed_tables

        return listed_tables(await execution_results(self._orchestrator, execution_id))

    async def query(self, execution_id: str, sql: str, limit: int) -> Document:
        from noetl.server.read_models.result_queries import ResultQueries, ResultQuery, execution_results

        known = await execution_results(self._orchestrator, execution_id)
        return await ResultQueries(self._orchestrator.results).rows(known, ResultQuery(sql, limit=limit))

    async def export_query(self, execution_id: str, sql: str, format: Any, file: BinaryIO) -> None:
        from noetl.server.read_models.result_queries import ResultQueries, ResultQuery, execution_results

        known = await execution_results(self._orchestrator, execution_id)
        path = await ResultQueries(self._orchestrator.results).export(known, ResultQuery(sql), format)
        await asyncio.to_thread(_move_into, path, file)

    async def states(self) -> list[Document]:
        from noetl.server.orchestrator.playbook_states import path_document

        found: list[Document] = []
        while page := await self._orchestrator.states.paths(found[-1]["path"] if found else "", PAGE_SIZE):
            found += map(path_document, page)
        return found

    async def state_of(self, path: str) -> Document:
        from noetl.server.orchestrator.playbook_states import state_document

        return state_document(path, await self._orchestrator.states.entries(path))

    async def set_state(self, path: str, values: Document) -> Document:
        from noetl.server.orchestrator.playbook_states import state_document

        return state_document(path, await self._orchestrator.states.set(path, values))

    async def reset_state(self, path: str, keys: Sequence[str] = ()) -> None:
        await self._orchestrator.states.reset(path, keys)

    async def register_schema(self, name: str, schema: Document, compatible: str = "backward") -> Document:
        from noetl.server.orchestrator.schema_registry import document as schema_document

        return dict(schema_document(await self._schemas.register(name, schema, compatible=compatible, by=AUTHOR)))

    async def schemas(self) -> list[Document]:
        from noetl.server.orchestrator.schema_registry import document as schema_document

        found: list[Document] = []
        while page := await self._schemas.list(after=found[-1]["name"] if found else None, limit=PAGE_SIZE):
            found += [dict(schema_document(each)) for each in page]
        return found

    async def schema(self, name: str) -> Document:
        from noetl.server.orchestrator.schema_registry import document as schema_document

        found = await self._schemas.find(name)
        numbers = [each.version for each in await self._schemas.versions(found.name)]
        return {**schema_document(found), "versions": numbers}

    async def _changed(self, execution_id: str, change: Awaitable[object]) -> ExecutionSummary:
        await change
        return await self.summary(execution_id)

    async def _cancel_children(self, execution_id: str, reason: str) -> None:
        unfinished = ("pending", "running", "waiting", "paused")
        for child in await self.executions(parent=execution_id, status=unfinished):
            try:
                await self.cancel(child.execution_id, reason)
            except Conflict:
                continue  # it has ended meanwhile

    @cached_property
    def _schedules(self) -> Schedules:
        from noetl.runtime.clock import RealClock
        from noetl.server.scheduling.deliveries import Deliveries
        from noetl.server.scheduling.kinds import KINDS
        from noetl.server.scheduling.schedules import Schedules
        from noetl.server.scheduling.trigger_service import Triggers
        from noetl.storage.factory import open_deliveries, open_triggers

        orchestrator, clock = self._orchestrator, RealClock()
        triggers = Triggers(open_triggers(orchestrator.store), orchestrator.catalog, clock, KINDS)
        return Schedules(
            triggers, Deliveries(open_deliveries(orchestrator.store), triggers, orchestrator, clock), clock
        )

    @property
    def _schemas(self) -> SchemaRegistry:
        schemas = self._orchestrator.schemas
        if schemas is None:
            raise RequestRefused("this store has no schema registry")
        return schemas

    @property
    def _limits(self) -> Limits:
        limits = self._orchestrator.limits
        if limits is None:
            raise RequestRefused("this store does not support limits")
        return limits


def user_name() -> str:
    """The user of this process, recorded as the sender of signals."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no entry in the password database
        return AUTHOR


def idempotency_key() -> str:
    """The idempotency key of this command (`--key`)."""
    from noetl.transport.api_connection import COMMAND_KEY

    given = COMMAND_KEY.get()
    return given.key if given is not None else ""


def _move_into(path: Path, file: BinaryIO) -> None:
    """Copy a temporary file into an open one, and remove it."""
    try:
        with path.open("rb") as source:
            shutil.copyfileobj(source, file, 1 << 20)
    finally:
        path.unlink()

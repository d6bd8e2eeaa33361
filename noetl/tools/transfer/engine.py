"""Runs a transfer: writes each chunk to all targets concurrently, and fetches the next one meanwhile.

At most a few chunks are in memory. If a target fails, all targets are rolled back as far as possible and the transfer
fails, unless the target has `on_error: warn`: then the failure is recorded, and the other targets continue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from typing import Any

from noetl.connections import postgres
from noetl.core.model.outcome import ErrorInfo
from noetl.core.model.tool import ToolCall
from noetl.data.arrow_tables import record_columns
from noetl.runtime.malloc import release_memory
from noetl.tools._common.sql_task import BadInput, flag
from noetl.tools.transfer import pg_copy
from noetl.tools.transfer.chunks import Chunk, Mark, chunked, reads_name
from noetl.tools.transfer.failures import Explain, ExplainedError, roll_back
from noetl.tools.transfer.progress.cursor_start import NAME, bare_cursor, render
from noetl.tools.transfer.progress.incremental import Incremental
from noetl.tools.transfer.progress.load_progress import LoadProgress
from noetl.tools.transfer.progress.object_progress import ObjectProgress
from noetl.tools.transfer.quarantine.bad_rows import SourceRows
from noetl.tools.transfer.quarantine.bad_rows_plan import quarantine_place, quarantine_plans
from noetl.tools.transfer.quarantine.quarantine import Quarantine
from noetl.tools.transfer.quarantine.rejected_rows import RejectedRows
from noetl.tools.transfer.sources import open_source
from noetl.tools.transfer.targets import Target, open_target
from noetl.tools.transfer.transfer_plan import Plan, SourcePlan

MAX_WARNINGS = 20  # in the summary of one target
SMALL_BYTES = 16 << 20  # of a chunk, so that two can be fetched in advance


class TransferFailed(Exception):
    """A failed transfer: the error, the summary of what was written, and the source or target that failed."""

    def __init__(self, info: ErrorInfo, summary: dict[str, Any], where: str) -> None:
        super().__init__(info.message)
        self.info = info
        self.summary = summary
        self.where = where


class _TargetState:
    """A target and its progress."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.failures = 0
        self.active = True
        self.warnings: list[str] = []

    def summary(self, *, done: bool) -> dict[str, Any]:
        plan = self.target.plan
        summary: dict[str, Any] = {
            "kind": plan.kind,
            "place": plan.location,
            "mode": plan.mode,
            "rows": self.target.rows,
            "chunks": self.target.chunks,
            "status": "ok" if done and self.active and not self.failures else "failed",
        }
        if self.target.tables:
            summary["tables"] = self.target.tables
        if self.target.bad_rows is not None:
            summary["quarantined"] = self.target.bad_rows.count
        if self.target.contract is not None:
            summary |= self.target.contract.discarded.summary()
        if self.failures:
            summary |= {"failed_chunks": self.failures, "warnings": self.warnings}
        return summary


class Transfer:
    """One transfer."""

    def __init__(self, call: ToolCall, plan: Plan, explain: Explain) -> None:
        self.call = call
        self.plan = plan
        self.explain = explain
        peers: dict[str, Any] = {}
        self.states = [_TargetState(open_target(call, target, peers)) for target in plan.targets]
        self.rows = 0
        self.chunks = 0
        self.columns: dict[str, str] = {}  # of the source, and their types, for the lineage
        self.source_rows = SourceRows()
        self.quarantines = self._open_quarantines(peers)
        self._objects: ObjectProgress | None = None  # if the source loads only new objects
        self.incremental: Incremental | None = None
        self._progress: LoadProgress | None = None

    def _open_quarantines(self, peers: dict[str, Any]) -> list[Quarantine]:
        opened = {
            place: Quarantine(self.call, plan, peers, self.explain)
            for place, plan in quarantine_plans(self.plan).items()
        }
        plan = self.plan.bad_rows
        self._source_quarantine = None if plan is None else opened[quarantine_place(plan)]
        for state in self.states:
            own = state.target.plan.bad_rows
            if own is not None:
                add = opened[quarantine_place(own)].add
                state.target.bad_rows = RejectedRows(self.source_rows, add, state.target.plan.label)
        return list(opened.values())

    @property
    def state(self) -> dict[str, Any]:
        """What the next execution starts from; nothing if a target has not received all rows."""
        if self.incremental is None or any(state.failures or not state.active for state in self.states):
            return {}
        return self.incremental.state()

    async def run(self) -> dict[str, Any]:
        """Copy all rows and return the summary; TransferFailed on failure."""
        if self.plan.source is None:
            await self._transfer_rows(None)
            return self.summary(done=True)
        try:
            rows = None if self._source_quarantine is None else self.source_rows
            source = await open_source(self.call, self.plan, await self._planned(self.plan.source), rows)
        except BaseException as failure:
            await self._abort(self.states[0].target)
            if not isinstance(failure, Exception):
                raise
            raise self._failed(failure, "the source") from failure
        try:
            if self._progress is not None:
                self._progress.mark_pages(source)
            await self._read_ledger(source)
            columns = self.states[0].target.columns
            direct = self.incremental is None and pg_copy.can_copy(self.plan, source, columns)
            if direct and await self._copy_directly(source, columns):
                return self.summary(done=True)
            await self._transfer_rows(source)
            await self._finish(source)
        finally:
            await source.close()
        return self.summary(done=True)

    async def _finish(self, source: Any) -> None:
        """Acknowledge the rows at a source that wants to know."""
        finish = getattr(source, "finish", None)
        if finish is None:
            return
        try:
            await finish()
        except Exception as failure:
            raise self._failed(failure, "the source (all rows are written)") from failure

    async def _planned(self, source: SourcePlan) -> SourcePlan:
        """The source with its cursor."""
        given = source.fields.get("incremental")
        rest = source._replace(fields={name: each for name, each in source.fields.items() if name != "incremental"})
        if given is None:
            if not reads_name(rest.fields, NAME):
                return rest
            return rest._replace(fields=render(self.call, rest.fields, cursor=bare_cursor(self.call)))
        if not isinstance(given, Mapping):
            raise BadInput("`incremental` must be a mapping: {cursor: <column>, initial, lag}")
        bad = None if self._source_quarantine is None else self.source_rows
        self.incremental = Incremental(self.call, self.plan, given, bad)
        for state in self.states:
            state.target.require_table(self.incremental.must_exist)
        target = self.states[0].target
        can_resume = target.has_checkpoints and not self.quarantines  # they are committed at the end
        resumes = can_resume and flag(given.get("resume"), True)
        if LoadProgress.is_possible(self.plan, target, resumes=resumes):
            self._progress = LoadProgress(self.call, self.incremental, target, rest, resumes=resumes)
            try:
                await self._progress.read()
            except Exception as failure:
                raise self._failed(failure, target.plan.label, target.explain(failure)) from failure
        return self.incremental.source(self.call, rest)

    def summary(self, *, done: bool) -> dict[str, Any]:
        """Rows and chunks written so far."""
        objects = {} if self._objects is None else {"objects": self._objects.summary(done=done)}
        cursor = {} if self.incremental is None else {"cursor": self.incremental.summary()}
        if self._progress is not None and self._progress.resumed:
            cursor["cursor"]["resumed"] = self._progress.resumed
        return {
            "rows": self.rows,
            "count": self.rows,
            "chunks": self.chunks,
            **self._bad_rows(),
            **objects,
            "targets": [state.summary(done=done) for state in self.states],
            **cursor,
        }

    def datasets(self) -> dict[str, Any]:
        """Columns and rows of what was read and written, for the lineage."""
        return {
            "source": (self.rows + self.source_rows.count, self.columns),
            "targets": [state.target.datasets for state in self.states],
            "quarantines": [each.target.datasets[0] for each in self.quarantines],
        }

    def _bad_rows(self) -> dict[str, Any]:
        """Rows read (= written + quarantined + discarded, for each target), and the rows in quarantine."""
        if not self.quarantines:
            return {}
        return {
            "read": self.rows + self.source_rows.count,
            "unreadable": self.source_rows.count,
            "quarantined": sum(each.count for each in self.quarantines),
            "quarantine": [each.summary() for each in self.quarantines],
        }

    async def _quarantine_unreadable(self) -> None:
        if self._source_quarantine is not None:
            try:
                for rows in self.source_rows.take():
                    await self._source_quarantine.add(rows, "the source")
            except Exception as failure:
                raise self._quarantine_failed(failure, self._source_quarantine) from failure

    async def _end_quarantines(self, action: str) -> None:
        for each in self.quarantines:
            try:
                if action == "check":
                    each.check(self.rows + self.source_rows.count)
                    await each.prepare()
                else:
                    await each.target.commit()
            except Exception as failure:
                raise self._quarantine_failed(failure, each) from failure

    def _quarantine_failed(self, failure: Exception, quarantine: Quarantine) -> Exception:
        if isinstance(failure, ExplainedError):
            return self._failed(failure, "bad rows")
        return self._failed(failure, "the quarantine", quarantine.target.explain(failure))

    async def _read_ledger(self, source: Any) -> None:
        """Tell a source with `only_new` what was loaded before."""
        if not getattr(source, "only_new", False):
            return
        target = self.states[0].target
        self._objects = ObjectProgress(source, target)
        try:
            one_commit = self.incremental is not None or bool(self.quarantines)
            await self._objects.read(len(self.states), one_commit=one_commit)
        except BaseException as failure:
            await self._abort(target)
            if not isinstance(failure, Exception):
                raise
            raise self._failed(failure, target.plan.label, target.explain(failure)) from failure

    async def _copy_directly(self, source: Any, columns: Any) -> bool:
        try:
            rows = await pg_copy.copy_rows(self.call, self.plan, source, columns)
        except Exception as failure:
            raise self._failed(failure, self.plan.targets[0].label) from failure
        if rows is None:
            return False
        record_columns(self.columns, postgres.arrow_schema(source.query.columns))
        renames = columns.renames or {name: name for name in self.columns}
        target = self.states[0].target
        target.recorded = {name: self.columns[source] for name, source in renames.items()}
        self.rows = target.rows = rows
        self.chunks = target.chunks = -(-rows // self.plan.size)
        self.call.host.progress(rows=self.rows, chunks=self.chunks)
        return True

    async def _transfer_rows(self, source: Any) -> None:
        try:
            static = [state for state in self.states if state.target.plan.static is not None]
            if source is None or len(static) == len(self.states):
                await self._write_concurrently(None, static)
            else:
                await self._write_chunks(source, static)
            await self._end_quarantines("check")
            for state in self.states:
                if state.active:
                    has_data = state.target.begun or state in static
                    await self._attempt(state, state.target.prepare() if has_data else state.target.write_empty())
            for progress in (self._objects, self._progress):
                if progress is not None:
                    await self._attempt(self.states[0], progress.finish())
            await self._end_quarantines("commit")  # first: a bad row is never lost
            # Databases commit last: they can be rolled back until then.
            for state in sorted(self.states, key=lambda state: state.target.plan.commits):
                if state.active:
                    await self._attempt(state, state.target.commit())
        except BaseException:
            for target in [*(state.target for state in self.states), *(each.target for each in self.quarantines)]:
                await self._abort(target)
            raise
        else:
            for state in self.states:
                if not state.active:
                    await self._abort(state.target)
        finally:
            for state in self.states:
                state.target.release()

    async def _abort(self, target: Target) -> None:
        await roll_back(self.call, target.plan.label, target.abort())

    async def _write_chunks(self, source: Any, static: list[_TargetState]) -> None:
        total = await self._total_chunks(source)
        lookahead = self._reads("chunk.last")
        values = getattr(source, "values", None)
        batches = source.batches() if self.incremental is None else self.incremental.batches(source.batches())
        progress = self._progress or self._objects
        due = None if progress is None or lookahead else progress.is_due
        limit = None if self._counts_rows() else min(state.target.CHUNK_BYTES for state in self.states)
        parts = chunked(batches, self.plan.size, limit=limit, total=total, lookahead=lookahead, values=values, due=due)
        chunks = prefetch(parts, SMALL_BYTES if len(self.states) == 1 else 0)
        async with aclosing(chunks):
            while True:
                try:
                    chunk = await anext(chunks, None)
                except Exception as failure:
                    raise self._failed(failure, "the source") from failure
                if isinstance(chunk, Mark):
                    assert progress is not None
                    await self._attempt(self.states[0], progress.checkpoint(chunk))
                    continue
                await self._quarantine_unreadable()
                if chunk is None:
                    if not self.chunks:
                        await self._write_concurrently(None, static)
                    return
                record_columns(self.columns, chunk.table.schema)
                await self._write_concurrently(chunk, static if not self.chunks else [])
                self.rows += chunk.size
                self.chunks += 1
                self.call.host.progress(rows=self.rows, chunks=self.chunks)
                del chunk  # releases its memory while the next one is fetched
                await asyncio.to_thread(release_memory)

    def _reads(self, name: str) -> bool:
        """Whether a template of a target reads a name."""
        return any(reads_name((state.target.plan.fields, state.target.plan.mapping), name) for state in self.states)

    def _counts_rows(self) -> bool:
        """Whether a target depends on the number of rows in a chunk, so that chunks are not limited by their bytes."""
        if self._reads("chunk.total"):
            return True
        visible = any(target.kind == "http" for target in self.plan.targets) or self._reads("chunk")
        return self.plan.sized and visible

    async def _total_chunks(self, source: Any) -> int | None:
        """The number of chunks, if a template reads it and the source can count its rows."""
        if not self._reads("chunk.total"):
            return None
        try:
            rows = await source.count()
        except Exception as failure:
            raise self._failed(failure, "the source") from failure
        return None if rows is None else max(1, -(-rows // self.plan.size))

    async def _write_concurrently(self, chunk: Chunk | None, static: list[_TargetState]) -> None:
        """Write a chunk to all targets that receive the source's rows, and static data to the others."""
        writes = [
            self._attempt(state, state.target.write_static(state.target.plan.static.data))
            for state in static
            if state.target.plan.static is not None
        ]
        if chunk is not None:
            writes += [
                self._attempt(state, state.target.write_chunk(chunk))
                for state in self.states
                if state.active and state.target.plan.static is None
            ]
        if len(writes) == 1:
            await writes[0]
            return
        results = await asyncio.gather(*writes, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _attempt(self, state: _TargetState, operation: Coroutine[Any, Any, None]) -> None:
        """Await an operation of a target; its failure ends the transfer, or is recorded as a warning."""
        try:
            await operation
        except Exception as failure:
            info = state.target.explain(failure) or self.explain(failure)
            if info is None:
                raise
            label = state.target.plan.label
            if not state.target.plan.warn_on_error:
                raise self._failed(failure, label, info) from failure
            state.failures += 1
            state.active = state.target.can_continue and state.target.plan.static is None
            warning = f"{label}: {info.message}"
            if len(state.warnings) < MAX_WARNINGS:
                state.warnings.append(warning)
            self.call.host.log(f"warning: {warning}", stream="stderr")

    def _failed(self, failure: Exception, where: str, info: ErrorInfo | None = None) -> Exception:
        """The failure as a TransferFailed; an internal error is returned unchanged."""
        if isinstance(failure, TransferFailed):
            return failure
        info = info or self.explain(failure)
        return failure if info is None else TransferFailed(info, self.summary(done=False), where)


async def prefetch(chunks: AsyncGenerator[Chunk | Mark, None], small: int = 0) -> AsyncGenerator[Chunk | Mark, None]:
    """The same chunks; one is fetched while the previous one is in use, or two if the first has at most `small` bytes.

    With two, a target waits less for a source whose chunks take unequal time."""
    queue: asyncio.Queue[Chunk | Mark | BaseException | None] = asyncio.Queue()
    capacity = asyncio.Semaphore(1)

    async def fetch() -> None:
        try:
            async with aclosing(chunks):
                first = True
                while True:
                    await capacity.acquire()
                    chunk = await anext(chunks, None)
                    queue.put_nowait(chunk)
                    if chunk is None:
                        return
                    if isinstance(chunk, Chunk):
                        if first and chunk.table.nbytes <= small:
                            capacity.release()
                        first = False
                    del chunk
        except BaseException as failure:  # raised again in the consumer; a source can also end with a cancellation
            queue.put_nowait(failure)
            if not isinstance(failure, Exception):
                raise

    fetching = asyncio.create_task(fetch())
    try:
        while (item := await queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            capacity.release()
            yield item
            del item
    finally:
        fetching.cancel()
        await asyncio.wait([fetching])

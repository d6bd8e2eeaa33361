"""The transfer itself: fetch a chunk, give it to all targets side by side, meanwhile fetch the next.

Nothing but a few chunks is ever in memory. When a target fails, all are undone as far as they can be and the
transfer fails, unless the target's `on_error` is `warn`: then it is noted, and the others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from noetl.core.model.outcome import ErrorInfo
from noetl.core.model.tool import ToolCall
from noetl.tools.transfer import pg_copy as pipe
from noetl.tools.transfer.chunks import Chunk, chunked, reads
from noetl.tools.transfer.malloc import give_back
from noetl.tools.transfer.sources import open_source
from noetl.tools.transfer.targets import Target, open_target
from noetl.tools.transfer.transfer_plan import DATABASES, Plan

WARNINGS = 20  # kept in the summary of one target
Explain = Callable[[Exception], "ErrorInfo | None"]


class TransferFailed(Exception):
    """A transfer that ended badly: what failed, and how far it had come."""

    def __init__(self, info: ErrorInfo, summary: dict[str, Any], where: str) -> None:
        super().__init__(info.message)
        self.info = info
        self.summary = summary
        self.where = where


class _State:
    """A target and what has become of it."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.failed = 0
        self.alive = True
        self.warnings: list[str] = []

    def summary(self, *, done: bool) -> dict[str, Any]:
        plan = self.target.plan
        known: dict[str, Any] = {
            "kind": plan.kind,
            "place": plan.place,
            "mode": plan.mode,
            "rows": self.target.rows,
            "chunks": self.target.chunks,
            "status": "ok" if done and self.alive and not self.failed else "failed",
        }
        return {**known, "failed_chunks": self.failed, "warnings": self.warnings} if self.failed else known


class Transfer:
    """One transfer."""

    def __init__(self, call: ToolCall, plan: Plan, explain: Explain) -> None:
        self.call = call
        self.plan = plan
        self.explain = explain
        peers: dict[str, Any] = {}
        self.states = [_State(open_target(call, target, peers)) for target in plan.targets]
        self.rows = 0
        self.chunks = 0

    async def run(self) -> dict[str, Any]:
        """Move everything; the summary. TransferFailed when it did not work."""
        if self.plan.source is None:
            await self._moved(None)
            return self.summary(done=True)
        try:
            source = await open_source(self.call, self.plan, self.plan.source)
        except Exception as failure:
            raise self._failed(failure, "the source") from failure
        try:
            columns = self.states[0].target.columns
            if pipe.can_pipe(self.plan, source, columns) and await self._piped(source, columns):
                return self.summary(done=True)
            await self._moved(source)
        finally:
            await source.close()
        return self.summary(done=True)

    def summary(self, *, done: bool) -> dict[str, Any]:
        """How far it has come."""
        return {
            "rows": self.rows,
            "count": self.rows,
            "chunks": self.chunks,
            "targets": [state.summary(done=done) for state in self.states],
        }

    async def _piped(self, source: Any, columns: Any) -> bool:
        try:
            moved = await pipe.pipe(self.call, self.plan, source, columns)
        except Exception as failure:
            raise self._failed(failure, self.plan.targets[0].label) from failure
        if moved is None:
            return False
        self.rows = self.states[0].target.rows = moved
        self.chunks = self.states[0].target.chunks = -(-moved // self.plan.size)
        self.call.host.progress(rows=self.rows, chunks=self.chunks)
        return True

    async def _moved(self, source: Any) -> None:
        try:
            own = [state for state in self.states if state.target.plan.own is not None]
            if source is None or len(own) == len(self.states):
                await self._side_by_side(None, own)
            else:
                await self._all_chunks(source, own)
            for state in self.states:
                if state.alive:
                    came = self.chunks or state in own
                    await self._attempt(state, state.target.settle() if came else state.target.nothing_came())
            # What can be undone to the last moment comes last.
            for state in sorted(self.states, key=lambda state: state.target.plan.kind in DATABASES):
                if state.alive:
                    await self._attempt(state, state.target.commit())
        except BaseException:
            for state in self.states:
                await state.target.abort()
            raise
        for state in self.states:
            if not state.alive:
                await state.target.abort()

    async def _all_chunks(self, source: Any, own: list[_State]) -> None:
        total = await self._total(source)
        looks_ahead = self._reads("chunk.last")
        chunks = ahead(chunked(source.batches(), self.plan.size, total=total, looks_ahead=looks_ahead))
        async with aclosing(chunks):
            while True:
                try:
                    chunk = await anext(chunks, None)
                except Exception as failure:
                    raise self._failed(failure, "the source") from failure
                if chunk is None:
                    if not self.chunks:
                        await self._side_by_side(None, own)
                    return
                await self._side_by_side(chunk, own if not self.chunks else [])
                self.rows += chunk.size
                self.chunks += 1
                self.call.host.progress(rows=self.rows, chunks=self.chunks)
                del chunk  # while the next one is waited for, this one needs no memory
                await asyncio.to_thread(give_back)

    def _reads(self, name: str) -> bool:
        """Whether some template reads a name."""
        return any(reads((state.target.plan.fields, state.target.plan.mapping), name) for state in self.states)

    async def _total(self, source: Any) -> int | None:
        """How many chunks there will be, if a template wants to know."""
        if not self._reads("chunk.total"):
            return None
        try:
            rows = await source.count()
        except Exception as failure:
            raise self._failed(failure, "the source") from failure
        return None if rows is None else max(1, -(-rows // self.plan.size))

    async def _side_by_side(self, chunk: Chunk | None, own: list[_State]) -> None:
        """A chunk to all targets that take the source's rows, and to others what is their own."""
        deeds = [
            self._attempt(state, state.target.take_own(state.target.plan.own.data))
            for state in own
            if state.target.plan.own is not None
        ]
        if chunk is not None:
            fed = [state for state in self.states if state.alive and state.target.plan.own is None]
            deeds += [self._attempt(state, state.target.take(chunk)) for state in fed]
        if len(deeds) == 1:
            await deeds[0]
            return
        results = await asyncio.gather(*deeds, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _attempt(self, state: _State, deed: Any) -> None:
        """Do something with a target; its failure ends the transfer, or is noted."""
        try:
            await deed
        except Exception as failure:
            info = state.target.explain(failure) or self.explain(failure)
            if info is None:
                raise
            label = state.target.plan.label
            if not state.target.plan.warns:
                raise self._failed(failure, label, info) from failure
            state.failed += 1
            state.alive = state.target.goes_on and state.target.plan.own is None
            warning = f"{label}: {info.message}"
            if len(state.warnings) < WARNINGS:
                state.warnings.append(warning)
            self.call.host.log(f"warning: {warning}", stream="stderr")

    def _failed(self, failure: Exception, where: str, info: ErrorInfo | None = None) -> Exception:
        """The failure as one that says what failed; a mistake of our own stays as it is."""
        if isinstance(failure, TransferFailed):
            return failure
        known = info or self.explain(failure)
        return failure if known is None else TransferFailed(known, self.summary(done=False), where)


async def ahead(chunks: AsyncGenerator[Chunk, None]) -> AsyncGenerator[Chunk, None]:
    """The same chunks, of which one is fetched while another is being used; no more than these two are there."""
    queue: asyncio.Queue[Chunk | Exception | None] = asyncio.Queue()
    room = asyncio.Semaphore(1)

    async def fetch() -> None:
        try:
            async with aclosing(chunks):
                while True:
                    await room.acquire()
                    chunk = await anext(chunks, None)
                    queue.put_nowait(chunk)
                    if chunk is None:
                        return
                    del chunk
        except Exception as failure:  # noqa: BLE001 - it is handed to whoever waits for the chunk, whatever it is
            queue.put_nowait(failure)

    fetching = asyncio.create_task(fetch())
    try:
        while (found := await queue.get()) is not None:
            if isinstance(found, Exception):
                raise found
            room.release()
            yield found
            del found
    finally:
        fetching.cancel()
        await asyncio.wait([fetching])

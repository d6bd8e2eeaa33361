"""Runs backfills: starts the executions of slots, at most `concurrency` at once, and records how they end.

One process runs a backfill: a server with the leader lease, or `noetl backfill` itself. The progress is stored at most
twice a second. What was not stored is found again by the idempotency keys of the executions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from msgspec import Struct, field, structs

from noetl.errors import (
    Conflict,
    InvalidPlaybook,
    NoetlError,
    NotFound,
    RequestRefused,
    StoreUnavailable,
    TemplateError,
)
from noetl.runtime.clock import Clock
from noetl.runtime.tasks import cancel
from noetl.server.orchestrator.service import Orchestrator
from noetl.server.orchestrator.submissions import Submission
from noetl.server.scheduling.backfills import Backfill, Backfills, Progress, is_complete
from noetl.storage.ports.cluster import LeaderLease

log = logging.getLogger("noetl.schedules")

POLL_SECONDS = 1.0  # maximum delay until a new or changed backfill is found
SAVE_SECONDS = 0.5
LEADER_ROLE, LEADER_SECONDS = "backfills", 5.0
MAX_ERRORS = 100  # failed slots whose execution or message is recorded

OnProgress = Callable[[Backfill, Progress], None]


class BackfillRunner(Struct, eq=False):
    """Runs the backfills of an installation, or one of them."""

    backfills: Backfills
    orchestrator: Orchestrator
    clock: Clock
    leadership: LeaderLease | None = None
    _tasks: dict[str, asyncio.Task[Any]] = field(default_factory=dict)

    async def run_all(self) -> None:
        """Run every active backfill until cancelled."""
        try:
            while True:
                try:
                    await self._look()
                except NoetlError as problem:
                    log.warning("backfills could not be read: %s", problem)
                await asyncio.sleep(POLL_SECONDS)
        finally:
            await cancel(*self._tasks.values())

    async def _look(self) -> None:
        lease = self.leadership
        if lease is not None and not await lease.acquire_leadership(LEADER_ROLE, LEADER_SECONDS):
            await cancel(*self._tasks.values())
            self._tasks.clear()
            return
        for name in [name for name, task in self._tasks.items() if task.done()]:
            del self._tasks[name]
        for backfill in await self.backfills.active():
            if backfill.name not in self._tasks:
                self._tasks[backfill.name] = asyncio.ensure_future(self._run_quietly(backfill.name))

    async def _run_quietly(self, name: str) -> None:
        try:
            await self.run(name)
        except StoreUnavailable as problem:
            log.warning("backfill %s is continued, the store is unreachable: %s", name, problem)
        except Conflict as problem:
            log.info("%s", problem)
        except Exception as problem:
            log.error("backfill %s failed: %s", name, problem, exc_info=not isinstance(problem, NoetlError))

    async def run(self, name: str, on_progress: OnProgress | None = None) -> Progress:
        """Run one backfill until it is complete, cancelled, or paused with nothing running."""
        progress, revision = await self.backfills.progress(name)
        stored, saved_at = progress, 0.0
        waiting: dict[int, asyncio.Task[str]] = {}
        try:
            while True:
                backfill = await self.backfills.get(name)
                progress = await self._advance(backfill, progress, waiting)
                over = self._is_over(backfill, progress)
                if over:
                    progress = structs.replace(progress, ended_at=self.clock.now() if not backfill.paused else None)
                if progress != stored and (over or self.clock.monotonic() - saved_at >= SAVE_SECONDS):
                    revision = await self.backfills.save_progress(name, progress, revision)
                    stored, saved_at = progress, self.clock.monotonic()
                if on_progress is not None:
                    on_progress(backfill, progress)
                if over and await self.backfills.finish(backfill):
                    return progress
                done = await _first(waiting, POLL_SECONDS)
                for slot in done:
                    progress = self._ended(progress, slot, waiting.pop(slot).result())
        finally:
            await cancel(*waiting.values())
            if progress != stored:
                await self.backfills.save_progress(name, progress, revision)

    def _is_over(self, backfill: Backfill, progress: Progress) -> bool:
        if progress.running:
            return False
        return backfill.cancelled or backfill.paused or is_complete(backfill, progress)

    async def _advance(self, backfill: Backfill, progress: Progress, waiting: dict[int, asyncio.Task[str]]) -> Progress:
        """Start what may start, cancel what is to be cancelled, and wait for what runs."""
        if backfill.retries > progress.retries:
            again = {slot: progress.attempts.get(slot, 0) + 1 for slot in progress.failed}
            progress = structs.replace(
                progress,
                queue=progress.queue + progress.failed,
                failed=(),
                errors={},
                executions={},
                attempts={**progress.attempts, **again},
                retries=backfill.retries,
                ended_at=None,
            )
        if backfill.cancelled:
            for execution_id in progress.running.values():
                await self._cancel(execution_id, backfill.name)
        elif not backfill.paused:
            while len(progress.running) < backfill.concurrency:
                begun = await self._start_next(backfill, progress)
                if begun is None:
                    break
                progress = begun
        for slot, execution_id in progress.running.items():
            if slot not in waiting:
                waiting[slot] = asyncio.ensure_future(self._wait(execution_id))
        return progress

    async def _start_next(self, backfill: Backfill, progress: Progress) -> Progress | None:
        """Start one more slot; None if there is none."""
        if progress.queue:
            slot, taken = progress.queue[0], structs.replace(progress, queue=progress.queue[1:])
        elif progress.cursor < backfill.total:
            slot, taken = progress.cursor, structs.replace(progress, cursor=progress.cursor + 1)
        else:
            return None
        try:
            execution_id = await self._start(backfill, slot, progress.attempts.get(slot, 0))
        except (RequestRefused, InvalidPlaybook, TemplateError) as problem:
            errors = progress.errors
            if len(errors) < MAX_ERRORS:
                errors = {**errors, slot: str(problem)}
            return structs.replace(taken, failed=(*taken.failed, slot), errors=errors)
        return structs.replace(taken, running={**taken.running, slot: execution_id})

    async def _start(self, backfill: Backfill, slot: int, attempt: int) -> str:
        return await self.orchestrator.submit(
            Submission(
                path=backfill.path,
                version=backfill.version,
                payload=backfill.payload_of(slot),
                key=backfill.key(slot, attempt),
                caller=backfill.caller,
                requested_by=f"backfill {backfill.name}",
            )
        )

    def _ended(self, progress: Progress, slot: int, status: str) -> Progress:
        running = {other: execution_id for other, execution_id in progress.running.items() if other != slot}
        if status == "success":
            return structs.replace(progress, running=running, succeeded=progress.succeeded + 1)
        executions = progress.executions
        if len(executions) < MAX_ERRORS:
            executions = {**executions, slot: progress.running[slot]}
        return structs.replace(progress, running=running, failed=(*progress.failed, slot), executions=executions)

    async def _wait(self, execution_id: str) -> str:
        """The final status of an execution; one that was deleted meanwhile counts as failed."""
        while True:
            try:
                return (await self.orchestrator.wait(execution_id)).status
            except NotFound:
                return "failed"
            except StoreUnavailable:
                await asyncio.sleep(POLL_SECONDS)

    async def _cancel(self, execution_id: str, name: str) -> None:
        try:
            await self.orchestrator.cancel(execution_id, f"backfill {name} was cancelled")
        except (Conflict, NotFound):
            return  # it has ended


async def _first(waiting: dict[int, asyncio.Task[str]], seconds: float) -> list[int]:
    """The slots that have ended, after the first of them or after some seconds."""
    if not waiting:
        await asyncio.sleep(seconds)
        return []
    await asyncio.wait(waiting.values(), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    return [slot for slot, task in waiting.items() if task.done()]

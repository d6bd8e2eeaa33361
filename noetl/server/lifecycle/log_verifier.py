"""Verifies that every log is intact, that no attempt was started twice, and that the summaries agree with the logs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from noetl.core.engine.advance import fold
from noetl.core.engine.attempt_ledger import AttemptLedger
from noetl.core.engine.capacity import slots_held
from noetl.core.engine.state import State
from noetl.core.engine.views.open_waits import wait_counts
from noetl.core.model.playbook import Playbook
from noetl.errors import CorruptLog, NoetlError
from noetl.server.read_models.summaries import project, step_durations
from noetl.storage.ports.events import EventStore, ExecutionFilter, ExecutionSummary

PAGE = 500
EVENTS = 5_000


async def verify(store: EventStore) -> tuple[int, int, list[str]]:
    """Read every event of every execution; returns the number of executions, of events, and the problems."""
    executions = events = 0
    damaged: list[str] = []
    before: str | None = None
    try:
        while page := await store.executions(ExecutionFilter(before=before, limit=PAGE)):
            before = page[-1].execution_id
            for summary in page:
                executions += 1
                try:
                    events += await _verify_one(store, summary.execution_id)
                except CorruptLog as problem:
                    damaged.append(_described(summary.execution_id, problem))
    except CorruptLog as problem:  # the list of executions itself
        damaged.append(str(problem))
    return executions, events, damaged


async def repair(store: EventStore, load: Callable[[str], Awaitable[Playbook]]) -> tuple[int, list[str]]:
    """Rewrite the summaries that do not match their logs; returns how many, and what cannot be repaired. `load` finds a
    playbook by its digest (`Catalog.load`).

    A log is authoritative and is never changed."""
    repaired = 0
    left: list[str] = []
    before: str | None = None
    while page := await store.executions(ExecutionFilter(before=before, limit=PAGE)):
        before = page[-1].execution_id
        for listed in page:
            try:
                await _verify_one(store, listed.execution_id)
            except CorruptLog:
                try:
                    rewritten, unknown = await _rewrite(store, listed.execution_id, load)
                    await _verify_one(store, listed.execution_id)
                    repaired += rewritten
                    left += unknown
                except CorruptLog as problem:
                    left.append(_described(listed.execution_id, problem))
    return repaired, left


async def _rewrite(
    store: EventStore, execution_id: str, load: Callable[[str], Awaitable[Playbook]]
) -> tuple[bool, list[str]]:
    """Write the summary of an execution as its last append wrote it; returns whether, and what is unknown."""
    rewrite = getattr(store, "rewrite_summary", None)
    if rewrite is None:
        return False, []
    summary: ExecutionSummary | None = None
    playbook: Playbook | None = None
    state: State | None = None
    unknown: list[str] = []
    seq = 0
    while page := await store.read(execution_id, seq, EVENTS):
        if summary is None:
            try:
                playbook = await load(project(None, page[:1]).playbook)
            except NoetlError as problem:
                unknown = [f"execution {execution_id}: its waits, slots and durations are unknown: {problem}"]
        summary = project(summary, page)
        state = None if playbook is None else fold(playbook, page, state)
        seq = page[-1].seq
    if summary is None:
        return False, []
    if state is not None:
        steps = step_durations(state) if state.processed else None
        summary = project(summary, (), slots_held(state), wait_counts(state), steps)
    await rewrite(summary)
    return True, unknown


def _described(execution_id: str, problem: CorruptLog) -> str:
    """The problem with its execution, which an error of the database does not name."""
    return str(problem) if execution_id in str(problem) else f"execution {execution_id}: {problem}"


async def _verify_one(store: EventStore, execution_id: str) -> int:
    summary = await store.summary(execution_id)
    if summary is None:
        return 0  # deleted meanwhile
    expected = ExecutionSummary(execution_id=execution_id, path="", status="pending", started_at=0.0, key=summary.key)
    seq = 0
    ledger = AttemptLedger()
    repeated: list[str] = []
    while seq < summary.seq and (page := await store.read(execution_id, seq, min(EVENTS, summary.seq - seq))):
        expected = project(expected, page)
        repeated += (each for event in page for each in ledger.violations(event.body))
        seq = page[-1].seq
    # These fields also depend on the playbook, and are rewritten with every append.
    status = "running" if summary.status == "waiting" else summary.status
    found = msgspec.structs.replace(summary, seq=seq, status=status, held=None, due=None, inbox=0, steps=None)
    if not found.trigger:  # a row of an earlier version, without the fields that were added with `trigger`
        expected = msgspec.structs.replace(expected, trigger="", labels=(), late=None, reuses=found.reuses)
    if seq and msgspec.structs.replace(expected, seq=seq) != found:
        raise CorruptLog(
            f"execution {execution_id}: its summary does not match its log; `noetl doctor --repair` writes it "
            "again from the log"
        )
    if repeated:
        more = f" (and {len(repeated) - 1} more)" if len(repeated) > 1 else ""
        raise CorruptLog(f"execution {execution_id}: a tool may have run twice: {repeated[0]}{more}")
    return seq

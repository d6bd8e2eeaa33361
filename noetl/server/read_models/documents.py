"""Executions as JSON documents, for the API, the command line and clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from noetl.core.model.events import instant, seconds
from noetl.core.model.waits import InboxEntry
from noetl.server.read_models.summaries import Progress, RunResult, StepResult, error_document, output_document
from noetl.storage.ports.events import ExecutionSummary


def when(at: float | None) -> str | None:
    """An instant in ISO format."""
    return instant(at) if at is not None else None


class Row(msgspec.Struct, gc=False):
    """One row of the list of executions. Instants are formatted by the encoder, since pages have thousands of rows."""

    execution_id: str
    path: str
    version: str | None
    status: str
    started_at: datetime | str
    ended_at: datetime | str | None
    duration_ms: float | None
    error: str | None
    parent: str | None
    playbook: str
    steps_done: int
    steps_running: int
    seq: int
    rerun_of: str | None
    forked_from: str | None
    trigger: str
    labels: tuple[str, ...]
    late_s: float | None


def row_of(summary: ExecutionSummary) -> Row:
    """An execution as a row."""
    began, ended = summary.started_at, summary.ended_at
    start = datetime.fromtimestamp(began, UTC)
    end = datetime.fromtimestamp(ended, UTC) if ended is not None else None
    return Row(
        summary.execution_id,
        summary.path,
        summary.version,
        summary.status,
        start if start.microsecond else instant(began),  # the encoder omits the fraction of a whole second
        end if end is None or end.microsecond else when(ended),
        int((ended - began) * 1e6 + 0.5) / 1000 if ended is not None else None,
        summary.error,
        summary.parent,
        summary.playbook,
        summary.steps_done,
        summary.steps_running,
        summary.seq,
        summary.rerun_of,
        summary.forked_from,
        summary.trigger,
        summary.labels,
        summary.late,
    )


def summary_document(summary: ExecutionSummary) -> dict[str, Any]:
    """A summary as a JSON document."""
    document: dict[str, Any] = msgspec.to_builtins(row_of(summary))
    return document


def execution_document(summary: ExecutionSummary, progress: Progress, waits_for: Sequence[str] = ()) -> dict[str, Any]:
    """One execution with its steps, its output, and descriptions of the limits that block it."""
    failed = progress.status in ("failed", "cancelled")
    return {
        **summary_document(summary),
        "ctx": progress.ctx,
        "output": output_document(progress.output, progress.error if failed else None)
        if progress.ended_at is not None
        else None,
        "error": error_document(progress.error) if failed else None,
        "waits_for": list(waits_for),
        "compensation": progress.compensation,
        "steps": [
            msgspec.structs.asdict(row)
            | {
                "started_at": when(row.started_at),
                "ended_at": when(row.ended_at),
                "error": error_document(row.error),
            }
            for row in progress.steps.values()
        ],
    }


def inbox_document(entry: InboxEntry) -> dict[str, Any]:
    """A wait that a signal answers."""
    return {**msgspec.structs.asdict(entry), "since": instant(entry.since), "due": when(entry.due)}


def summary_of(document: Mapping[str, Any]) -> ExecutionSummary:
    """The summary of a `summary_document` or `execution_document`."""
    ended, error = document["ended_at"], document["error"]
    return ExecutionSummary(
        execution_id=document["execution_id"],
        path=document["path"],
        status=document["status"],
        started_at=seconds(document["started_at"]),
        version=document["version"],
        playbook=document["playbook"],
        ended_at=seconds(ended) if ended is not None else None,
        seq=document["seq"],
        parent=document["parent"],
        error=error["message"] if isinstance(error, Mapping) else error,
        steps_done=document["steps_done"],
        steps_running=document["steps_running"],
        rerun_of=document.get("rerun_of"),
        forked_from=document.get("forked_from"),
        trigger=document.get("trigger", ""),
        labels=tuple(document.get("labels", ())),
        late=document.get("late_s"),
    )


def result_of(document: Mapping[str, Any]) -> RunResult:
    """The result of an `execution_document`, possibly of a running execution."""
    return RunResult(
        execution_id=document["execution_id"],
        path=document["path"],
        status=document["status"],
        output=document["output"] or output_document(None),
        ctx=document["ctx"],
        error=document["error"],
        duration_ms=document["duration_ms"] or 0.0,
        steps=tuple(msgspec.convert(row, StepResult) for row in document["steps"]),
        compensation=document.get("compensation"),
    )

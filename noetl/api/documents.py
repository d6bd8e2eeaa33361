"""The shapes the API answers with, made from what control hands out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from noetl.control.views import Progress, error_document, output_document
from noetl.model.events import instant
from noetl.ports import ExecutionSummary, StoredPlaybook

_encode = msgspec.json.Encoder(enc_hook=str).encode


def answer(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON response."""
    return Response(_encode(document), status_code=status, media_type="application/json", headers=headers)


def page(items: Sequence[Any], following: str | None) -> dict[str, Any]:
    """One page of a list; `next` goes into the same parameter of the next request."""
    return {"items": items, "next": following}


def when(at: float | None) -> str | None:
    """An instant for people and scripts."""
    return instant(at) if at is not None else None


def summary_document(summary: ExecutionSummary) -> dict[str, Any]:
    """One row of the list of executions."""
    ended = summary.ended_at
    return {
        "execution_id": summary.execution_id,
        "path": summary.path,
        "version": summary.version,
        "status": summary.status,
        "started_at": when(summary.started_at),
        "ended_at": when(ended),
        "duration_ms": round(1000 * (ended - summary.started_at), 3) if ended is not None else None,
        "error": summary.error,
        "parent": summary.parent,
        "playbook": summary.playbook,
        "steps_done": summary.steps_done,
        "steps_running": summary.steps_running,
        "seq": summary.seq,
    }


def execution_document(summary: ExecutionSummary, progress: Progress) -> dict[str, Any]:
    """One execution with its steps and its output."""
    failed = progress.status in ("failed", "cancelled")
    return {
        **summary_document(summary),
        "ctx": progress.ctx,
        "output": output_document(progress.output, progress.error if failed else None)
        if progress.ended_at is not None
        else None,
        "error": error_document(progress.error) if failed else None,
        "steps": [
            {
                "step": row.step,
                "status": row.status,
                "runs": row.runs,
                "attempts": row.attempts,
                "tasks": row.tasks,
                "started_at": when(row.started_at),
                "ended_at": when(row.ended_at),
                "iterations": row.iterations,
                "iterations_done": row.iterations_done,
                "iterations_failed": row.iterations_failed,
                "children": row.children,
                "error": error_document(row.error),
            }
            for row in progress.steps.values()
        ],
    }


def playbook_document(stored: StoredPlaybook, *, text: bool = False) -> dict[str, Any]:
    """One version of the catalogue."""
    from noetl.dsl.summary import summarise

    document = {
        "path": stored.path,
        "version": stored.version,
        "digest": stored.digest,
        "registered_at": when(stored.registered_at),
        **summarise(stored.text)._asdict(),
    }
    return {**document, "content": stored.text} if text else document

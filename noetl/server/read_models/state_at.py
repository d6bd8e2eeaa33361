"""A folded state as a JSON document: `noetl replay` and the API's `state?at=SEQ`."""

from __future__ import annotations

from typing import Any

from noetl.core.engine.state import Loop, Run, State, StepRecord, StepRun
from noetl.core.model.events import instant
from noetl.core.model.playbook import ctx_part, state_part
from noetl.core.model.secret_names import mask_secret_names
from noetl.server.read_models.summaries import output_document


def state_document(state: State) -> dict[str, Any]:
    """The state of an execution after event `seq`."""
    return {
        "execution_id": state.execution_id,
        "path": state.playbook.path,
        "seq": state.seq,
        "at": instant(state.at),
        "status": state.status,
        "workload": mask_secret_names(state.workload),
        "ctx": mask_secret_names(ctx_part(state.ctx)),
        "state": mask_secret_names(state_part(state.ctx)),
        "steps": {name: _step(state, record) for name, record in state.steps.items()},
        "waiting": [
            {"step": step, "token": token.id, "from": token.origin, "reason": token.reason}
            for step, tokens in state.waiting.items()
            for token in tokens
        ],
        "runs": [_run(run) for run in state.open.values()],
        "loops": [_loop(run, loop) for run in state.runs.values() for loop in run.loops.values()],
        "children": [
            {"run_id": child.run_id, "path": child.request.playbook, "execution_id": child.child}
            for child in state.children.values()
        ],
        "waits": [
            {
                "run_id": wait.run_id,
                "key": wait.key,
                "task": wait.request.task,
                "signal": wait.request.signal,
                "title": wait.request.title,
                "since": instant(wait.at),
                "due": None if wait.due is None else instant(wait.due),
                "quota": None if wait.request.quota is None else wait.request.quota.key,
            }
            for wait in state.waits.values()
        ],
        "output": output_document(state.output) if state.output is not None else None,
        "error": {"kind": state.error.kind, "message": state.error.message} if state.error else None,
    }


def _step(state: State, record: StepRecord) -> dict[str, Any]:
    if record.open:
        status = "running" if record.running else "scheduled"
    elif record.outcome is not None:
        status = "success" if record.outcome.status == "ok" else "failed"
    else:
        status = "waiting" if state.waiting.get(record.name) else "pending"
    return {
        "status": status,
        "runs": record.number,
        "open": record.open,
        "started_at": instant(record.started_at) if record.started_at is not None else None,
        "finished_at": instant(record.finished_at) if record.finished_at is not None else None,
        "output": output_document(record.outcome) if record.outcome is not None else None,
    }


def _run(run: Run) -> dict[str, Any]:
    return {
        "run_id": run.id,
        "step": run.step_run.step.name,
        "iteration": list(run.path) or None,
        "status": run.status,
        "epoch": run.epoch,
        "worker": run.worker or None,
        "task": run.current or (run.position.task if run.position else None),
        "since": instant(run.at) if run.at else None,
        "scopes": {
            "step": run.position.step if run.position else {},
            "iter": run.position.iter if run.position else {},
        },
    }


def _loop(run: StepRun, loop: Loop) -> dict[str, Any]:
    return {
        "step": run.step.name,
        "run_id": run.id,
        "path": list(loop.path),
        "count": loop.count,
        "finished": loop.finished,
        "succeeded": loop.succeeded,
        "failed": loop.failed,
        "skipped": loop.skipped,
    }

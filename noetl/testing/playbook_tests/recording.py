"""Generates a test file from an execution: its payload, the outcomes of its tools, and its result."""

from __future__ import annotations

from typing import Any

import msgspec
import yaml

from noetl.core.model.events import ExecutionRequested, TaskDone
from noetl.core.model.ids import iteration_id, task_run_id
from noetl.core.model.outcome import Outcome
from noetl.embedded import LocalEngine
from noetl.errors import Conflict, PayloadUnavailable
from noetl.testing.playbook_tests.mocks import LOCAL_KINDS

MAX_RECORDED = 4 * 1024 * 1024


async def record(engine: LocalEngine, execution_id: str) -> str:
    """The text of a test file with the recorded outcomes of this execution."""
    from noetl.server.orchestrator.request_resolver import RequestResolver

    result = await engine.result(execution_id)
    if result.status not in ("success", "failed"):
        raise Conflict(
            f"execution {execution_id} is {result.status}; only succeeded and failed executions can be recorded"
        )
    orchestrator = engine.orchestrator
    playbook = (await orchestrator.state(execution_id)).playbook
    payload: dict[str, Any] = {}
    recorded: dict[str, Any] = {}
    for event in await orchestrator.events(execution_id):
        body = event.body
        if isinstance(body, ExecutionRequested):
            payload = dict(body.payload)
        elif isinstance(body, TaskDone) and not body.skipped and body.kind not in LOCAL_KINDS:
            outcome = body.outcome
            if outcome.ref is not None and outcome.data is None:
                try:
                    data = await RequestResolver(orchestrator.results, dict).hydrate(outcome.ref, MAX_RECORDED)
                except PayloadUnavailable as problem:
                    raise PayloadUnavailable(
                        f"task {body.task} of step {body.step} cannot be recorded: {problem}"
                    ) from None
                outcome = msgspec.structs.replace(outcome, data=data, ref=None, extracts={})
            run = task_run_id(iteration_id(body.step_run_id, body.path), body.task, body.visit, body.attempt)
            recorded[run.partition(":")[2]] = _plain(outcome)
    expect: dict[str, Any] = {
        "status": result.status,
        "output": result.data,
        "steps": {row.step: {"status": row.status, "runs": row.runs} for row in result.steps},
    }
    if result.error is not None:
        expect["error"] = {"kind": result.error["kind"]}
    document = {
        "playbook": playbook.file.rpartition("/")[2] or f"{playbook.name}.yaml",
        "tests": [{"name": f"as execution {execution_id}", "payload": payload, "recorded": recorded, "expect": expect}],
    }
    text: str = yaml.safe_dump(_plain(document), sort_keys=False, allow_unicode=True, width=110)
    return text


def _plain(value: Outcome | dict[str, Any]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=str))

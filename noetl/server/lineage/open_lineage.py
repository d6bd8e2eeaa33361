"""OpenLineage events of an execution, from its log.

Every task with datasets is a run of the job `PLAYBOOK.STEP.TASK`, whose parent is the run of the playbook. Ids of runs
are derived from those of the log, so the same execution always gives the same events. The parent of the run of a child
playbook is that of its caller.
"""

from __future__ import annotations

import uuid
from typing import Any

from noetl import __version__
from noetl.core.model.events import Recorded, TaskDone, instant
from noetl.storage.ports.events import ExecutionSummary

PRODUCER = "https://noetl.io"
SPEC = "https://openlineage.io/spec"
EVENT_SCHEMA = f"{SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"
_IDS = uuid.uuid5(uuid.NAMESPACE_URL, PRODUCER)
_ENDS = {"success": "COMPLETE", "failed": "FAIL", "cancelled": "ABORT"}


def has_lineage(recorded: Recorded) -> bool:
    """Whether an event has datasets of its own: the outcome of a child playbook has those of the child's last task."""
    done = recorded.body
    return isinstance(done, TaskDone) and "lineage" in done.outcome.meta and done.kind != "playbook"


class ExecutionLineage:
    """The events of an ended execution. `caller` is the execution that started it."""

    def __init__(self, summary: ExecutionSummary, namespace: str, caller: ExecutionSummary | None = None) -> None:
        self._summary = summary
        self._namespace = namespace
        self._parent = _parent(summary, namespace)
        self._job = {"namespace": namespace, "name": summary.path, "facets": {"jobType": _job_type("PLAYBOOK")}}
        self._facets: dict[str, Any] = {"processing_engine": _engine()}
        if caller is not None:
            self._facets["parent"] = _parent(caller, namespace)
        self._run = {"runId": run_id(summary.execution_id), "facets": self._facets}

    def begin(self) -> dict[str, Any]:
        """The start of the playbook."""
        return _event("START", self._summary.started_at, self._run, self._job)

    def task(self, done: Recorded) -> list[dict[str, Any]]:
        """The start and the end of a task that has datasets."""
        return _task_events(done, self._summary, self._namespace, self._parent)

    def end(self) -> list[dict[str, Any]]:
        """The end of the playbook; none while it runs."""
        summary = self._summary
        if summary.status not in _ENDS:
            return []
        failure = {"errorMessage": _error(summary.error)} if summary.error else {}
        ended = summary.ended_at if summary.ended_at is not None else summary.started_at
        run = {**self._run, "facets": {**self._facets, **failure}}
        return [_event(_ENDS[summary.status], ended, run, self._job)]


def run_id(*parts: str) -> str:
    """The id of a run: a UUID derived from ids of the log."""
    return str(uuid.uuid5(_IDS, "/".join(parts)))


def _task_events(
    recorded: Recorded, summary: ExecutionSummary, namespace: str, parent: dict[str, Any]
) -> list[dict[str, Any]]:
    done = recorded.body
    assert isinstance(done, TaskDone)
    lineage, meta = done.outcome.meta["lineage"], done.outcome.meta
    place = [summary.execution_id, done.step_run_id, done.task, str(done.visit), str(done.attempt)]
    place += ["/".join(map(str, done.path))] if done.path else []
    facets: dict[str, Any] = {"parent": parent, "processing_engine": _engine()}
    run = {"runId": run_id(*place), "facets": facets}
    job = {
        "namespace": namespace,
        "name": f"{summary.path}.{done.step}.{done.task}",
        "facets": {"jobType": _job_type("TASK")},
    }
    inputs = [_input(each) for each in lineage.get("inputs", ())]
    outputs = [_output(each) for each in lineage.get("outputs", ())]
    began = recorded.at - (meta.get("duration_ms") or 0) / 1000
    failed = done.outcome.error
    last = {**run, "facets": {**facets, "errorMessage": _error(failed.message)}} if failed else run
    return [
        _event("START", began, run, job, inputs, outputs),
        _event("FAIL" if failed else "COMPLETE", recorded.at, last, job, inputs, outputs),
    ]


def _event(
    type: str,
    at: float,
    run: dict[str, Any],
    job: dict[str, Any],
    inputs: list[dict[str, Any]] | None = None,
    outputs: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    return {
        "eventType": type,
        "eventTime": instant(at),
        "run": run,
        "job": job,
        "inputs": inputs or [],
        "outputs": outputs or [],
        "producer": PRODUCER,
        "schemaURL": EVENT_SCHEMA,
    }


def _dataset(given: dict[str, Any]) -> dict[str, Any]:
    facets = {}
    if given.get("fields"):
        facets["schema"] = {
            **_facet("1-1-1/SchemaDatasetFacet.json#/$defs/SchemaDatasetFacet"),
            "fields": given["fields"],
        }
    return {"namespace": given["namespace"], "name": given["name"], "facets": facets}


def _input(given: dict[str, Any]) -> dict[str, Any]:
    schema = "1-0-0/InputStatisticsInputDatasetFacet.json#/$defs/InputStatisticsInputDatasetFacet"
    return {**_dataset(given), "inputFacets": _statistics("inputStatistics", schema, given.get("rows"))}


def _output(given: dict[str, Any]) -> dict[str, Any]:
    schema = "1-0-2/OutputStatisticsOutputDatasetFacet.json#/$defs/OutputStatisticsOutputDatasetFacet"
    return {**_dataset(given), "outputFacets": _statistics("outputStatistics", schema, given.get("rows"))}


def _statistics(name: str, schema: str, rows: int | None) -> dict[str, Any]:
    return {} if rows is None else {name: {**_facet(schema), "rowCount": rows}}


def _parent(summary: ExecutionSummary, namespace: str) -> dict[str, Any]:
    return {
        **_facet("1-0-1/ParentRunFacet.json#/$defs/ParentRunFacet"),
        "run": {"runId": run_id(summary.execution_id)},
        "job": {"namespace": namespace, "name": summary.path},
    }


def _job_type(type: str) -> dict[str, Any]:
    facet = _facet("2-0-3/JobTypeJobFacet.json#/$defs/JobTypeJobFacet")
    return {**facet, "processingType": "BATCH", "integration": "NOETL", "jobType": type}


def _engine() -> dict[str, Any]:
    facet = _facet("1-1-1/ProcessingEngineRunFacet.json#/$defs/ProcessingEngineRunFacet")
    return {**facet, "version": __version__, "name": "NoETL"}


def _error(message: str) -> dict[str, Any]:
    facet = _facet("1-0-1/ErrorMessageRunFacet.json#/$defs/ErrorMessageRunFacet")
    return {**facet, "message": message, "programmingLanguage": "YAML"}


def _facet(schema: str) -> dict[str, Any]:
    return {"_producer": PRODUCER, "_schemaURL": f"{SPEC}/facets/{schema}"}

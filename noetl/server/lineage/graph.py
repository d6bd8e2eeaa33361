"""The graph of datasets and tasks, from the logs of recent executions.

For every playbook the newest executions are read, up to a bound. A task is one node, however often it ran; the datasets
of a task are those of its newest execution, and its rows are those of all its runs there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from noetl.core.model.events import Recorded, TaskDone, instant
from noetl.server.lineage.open_lineage import has_lineage
from noetl.server.read_models.log_pages import log_events
from noetl.storage.ports.events import EventStore, ExecutionFilter, ExecutionSummary

MAX_EXECUTIONS = 200  # whose logs are read for one graph
PER_PLAYBOOK = 5
MAX_EVENTS = 5000  # of one log
AT_ONCE = 50  # logs that are read together
SCANNED = 2000  # summaries, newest first


async def graph(store: EventStore, paths: Sequence[str], path: str | None = None) -> dict[str, Any]:
    """Nodes and edges of one playbook, or of all; `paths` are playbooks that may not have been executed recently."""
    found = _Graph()
    chosen = await _recent(store, paths, path)
    for begin in range(0, len(chosen), AT_ONCE):
        part = chosen[begin : begin + AT_ONCE]
        logs = await store.logs([each.execution_id for each in part], MAX_EVENTS)
        for summary in part:
            known = logs.get(summary.execution_id)  # not of a long log, or one that changes
            log = log_events(store, summary.execution_id, until=min(summary.seq, MAX_EVENTS))
            events = known[1] if known else [each async for each in log if has_lineage(each)]
            found.add(summary, events)
    return {"path": path, "executions": len(chosen), **found.document()}


async def _recent(store: EventStore, paths: Sequence[str], path: str | None) -> list[ExecutionSummary]:
    """The executions to read, newest first: the newest one of each playbook, then the second ones, and so on."""
    limit = SCANNED if path is None else PER_PLAYBOOK
    by_path: dict[str, list[ExecutionSummary]] = {}
    for each in await store.executions(ExecutionFilter(path=path, limit=limit)):
        by_path.setdefault(each.path, []).append(each)
    rare = [each for each in paths if each not in by_path] if path is None else []
    by_path |= {each.path: [each] for each in (await store.latest(rare)).values()}
    ranked = ((rank, each) for found in by_path.values() for rank, each in enumerate(found[:PER_PLAYBOOK]))
    chosen = [each for _, each in sorted(ranked, key=lambda one: (one[0], -int(one[1].execution_id)))]
    return sorted(chosen[:MAX_EXECUTIONS], key=lambda each: -int(each.execution_id))


class _Graph:
    def __init__(self) -> None:
        self._tasks: dict[str, dict[str, Any]] = {}
        self._datasets: dict[str, dict[str, Any]] = {}
        self._edges: dict[tuple[str, str], dict[str, Any]] = {}

    def add(self, summary: ExecutionSummary, events: Sequence[Recorded]) -> None:
        """Add the tasks of an execution; executions are added newest first."""
        newer = set(self._tasks)
        for each in events:
            done = each.body
            if not isinstance(done, TaskDone) or not has_lineage(each):
                continue
            task = f"{summary.path}.{done.step}.{done.task}"
            if task in newer:
                continue
            self._tasks[task] = {
                "id": task,
                "path": summary.path,
                "step": done.step,
                "task": done.task,
                "kind": done.kind,
                "status": done.outcome.status,
                "execution_id": summary.execution_id,
                "at": instant(each.at),
            }
            lineage = done.outcome.meta["lineage"]
            for dataset in lineage.get("inputs", ()):
                self._edges[self._dataset(dataset), task] = {}
            for dataset in lineage.get("outputs", ()):
                edge = self._edges.setdefault((task, self._dataset(dataset)), {})
                if dataset.get("rows") is not None:  # of all runs of the task in this execution
                    edge["rows"] = edge.get("rows", 0) + dataset["rows"]

    def document(self) -> dict[str, Any]:
        """The graph as JSON data."""
        return {
            "tasks": sorted(self._tasks.values(), key=lambda each: str(each["id"])),
            "datasets": sorted(self._datasets.values(), key=lambda each: str(each["id"])),
            "edges": [{"from": start, "to": end, **facts} for (start, end), facts in self._edges.items()],
        }

    def _dataset(self, given: dict[str, Any]) -> str:
        id = f"{given['namespace']}/{given['name']}"
        known = self._datasets.setdefault(id, {"id": id, "namespace": given["namespace"], "name": given["name"]})
        if given.get("fields"):
            known.setdefault("fields", given["fields"])
        return id

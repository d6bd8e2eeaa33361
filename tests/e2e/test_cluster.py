"""Two servers, four workers, one Postgres: each killed in turn while executions run; nothing lost, nothing doubled."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

from noetl.backends import open_stores
from noetl.model.events import PlaybookProcessed, Recorded, WorkflowFinished
from noetl.ports import ExecutionFilter
from tests.api.serving import Cluster

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: chaos, path: chaos/loop}
workflow:
  - step: start
    tool: {kind: python, code: "import time; time.sleep(0.05); result = {'n': 3}"}
    next: {arcs: [{step: each}]}
  - step: each
    loop: {in: "{{ range(6) | list }}", iterator: n, spec: {mode: parallel, max_in_flight: 4}}
    tool: {kind: python, input: {n: "{{ iter.n }}"}, code: "import time; time.sleep(0.1); result = {'n': n}"}
    next: {arcs: [{step: end}]}
  - step: end
    tool: {kind: noop}
"""


@pytest.fixture
def cluster(tmp_path: Path, database: str):
    settings = {"NOETL_STORE": database, "NOETL_SERVER_LEASE_SECONDS": "3", "NOETL_SLOTS": "4"}
    servers = [Cluster(tmp_path, **settings), Cluster(tmp_path, **settings)]
    both = ",".join(server.url for server in servers)
    for number, server in enumerate(servers):
        server.start_server()
        server.environ["NOETL_SERVER_URL"] = both if number == 0 else ",".join(reversed(both.split(",")))
        server.start_worker()
        server.start_worker()
    yield servers
    for server in servers:
        server.stop()


def oracles(dsn: str, ids: list[str]) -> None:
    """The log is dense, ended once, as the projection says, and no key is there twice."""

    async def look() -> None:
        events, _ = open_stores(dsn)
        assert await events.unfinished() == []
        for execution_id in ids:
            log = await events.read(execution_id)
            assert [each.seq for each in log] == list(range(1, len(log) + 1))
            assert sum(isinstance(each.body, WorkflowFinished) for each in log) == 1
            assert isinstance(log[-1].body, PlaybookProcessed)
            summary = await events.summary(execution_id)
            assert summary is not None and (summary.status, summary.seq) == ("success", len(log))
            doubled = [key for key, count in Counter(filter(None, map(key_of, log))).items() if count > 1]
            assert doubled == []
        assert len(await events.executions(ExecutionFilter(limit=1000))) == len(ids)
        await events.close()

    asyncio.run(look())


def key_of(recorded: Recorded) -> tuple[object, ...] | None:
    """What identifies an event for ever."""
    body = recorded.body
    if body.NAME in ("task.done", "task.failed", "step.done", "step.failed", "loop.iteration.done"):
        fields = ("step_run_id", "path", "task", "visit", "attempt")
        return (body.NAME, *(getattr(body, field, None) for field in fields))
    return None


def test_killing_each_server_and_worker_in_turn_loses_and_doubles_nothing(cluster, database):
    first, second = cluster
    ids: list[str] = []

    def submit(server: Cluster, count: int) -> None:
        for _ in range(count):
            status, document = server.ask("POST", "/api/execute", {"content": PLAYBOOK})
            assert status in (200, 201, 202), document
            ids.append(document["execution_id"])

    submit(first, 4)
    first.workers[0].kill()
    submit(second, 4)
    first.start_worker()
    first.server.kill()
    submit(second, 4)
    first.server.wait()
    first.start_server()
    second.workers[0].kill()
    submit(first, 4)
    second.server.kill()
    submit(first, 2)
    deadline = time.monotonic() + 60
    for execution_id in ids:
        assert first.finished(execution_id, deadline - time.monotonic())["status"] == "success"
    oracles(database, ids)

"""Lineage over HTTP, and OpenLineage events in a file, at an HTTP endpoint and in NATS."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from noetl.errors import RequestRefused, StoreUnavailable
from noetl.observability import metrics
from noetl.server.lineage.emitter import EventsRefused, LineageEmitter, NatsSender, open_sender
from tests.server.http.serving import Cluster
from tests.waiting import until

# What the OpenLineage specification 2-0-2 requires of a run event, and of the facets that are sent.
FACET = {
    "type": "object",
    "required": ["_producer", "_schemaURL"],
    "properties": {
        "_producer": {"type": "string", "format": "uri"},
        "_schemaURL": {"type": "string", "format": "uri", "pattern": "^https://openlineage.io/spec/facets/"},
    },
}
JOB = {
    "type": "object",
    "required": ["namespace", "name"],
    "properties": {"namespace": {"type": "string"}, "name": {"type": "string"}},
}
RUN = {"type": "object", "required": ["runId"], "properties": {"runId": {"type": "string", "format": "uuid"}}}
FIELDS = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string"}, "type": {"type": "string"}},
    },
}
DATASET = {
    "allOf": [JOB],
    "properties": {
        "facets": {
            "additionalProperties": FACET,
            "properties": {"schema": {"allOf": [FACET], "required": ["fields"], "properties": {"fields": FIELDS}}},
        },
        "outputFacets": {
            "additionalProperties": FACET,
            "properties": {"outputStatistics": {"allOf": [FACET], "properties": {"rowCount": {"type": "integer"}}}},
        },
    },
}
PARENT = {"allOf": [FACET], "required": ["run", "job"], "properties": {"run": RUN, "job": JOB}}
RUN_EVENT = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["eventTime", "producer", "schemaURL", "run", "job"],
    "properties": {
        "eventType": {"enum": ["START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"]},
        "eventTime": {"type": "string", "format": "date-time"},
        "producer": {"type": "string", "format": "uri"},
        "schemaURL": {"type": "string", "format": "uri"},
        "run": {"allOf": [RUN], "properties": {"facets": {"additionalProperties": FACET, "properties": {"parent": PARENT}}}},
        "job": {"allOf": [JOB], "properties": {"facets": {"additionalProperties": FACET}}},
        "inputs": {"type": "array", "items": DATASET},
        "outputs": {"type": "array", "items": DATASET},
    },
}  # fmt: skip
VALID = jsonschema_rs.validator_for(RUN_EVENT, validate_formats=True)

LOAD = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: load, path: tests/lineage/load}}
workflow:
  - step: start
    tool:
      - {{name: copy, kind: transfer, data: [{{id: 1}}, {{id: 2}}], target: {{kind: sqlite, file: "{folder}/a.sqlite", table: orders}}}}
"""
REPORT = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: report, path: tests/lineage/report}}
workflow:
  - step: start
    tool:
      - {{name: sum, kind: sqlite, file: "{folder}/a.sqlite", command: "CREATE TABLE IF NOT EXISTS totals AS SELECT count(*) AS n FROM orders"}}
      - {{name: export, kind: transfer, source: {{kind: sqlite, file: "{folder}/a.sqlite", table: totals}}, target: {{kind: file, path: "{folder}/totals.csv"}}}}
"""
FAILING = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: broken, path: tests/lineage/broken}}
workflow:
  - step: start
    tool: {{name: read, kind: sqlite, file: "{folder}/a.sqlite", command: "SELECT * FROM missing"}}
"""
CALLER = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: caller, path: tests/lineage/caller}}
workflow:
  - step: start
    loop: {{in: [1, 2, 3], iterator: each}}
    tool:
      - {{name: add, kind: transfer, data: [{{id: 1}}, {{id: 2}}], target: {{kind: sqlite, file: "{folder}/b.sqlite", table: added, mode: append}}}}
    next: {{arcs: [{{step: child}}]}}
  - step: child
    tool: {{name: call, kind: playbook, path: tests/lineage/child}}
"""
CHILD = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: child, path: tests/lineage/child}}
workflow:
  - step: start
    tool: {{name: read, kind: sqlite, file: "{folder}/b.sqlite", command: "SELECT count(*) FROM added"}}
"""


@pytest.fixture(scope="module")
def reporting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Path]]:
    """A server that writes lineage to a file."""
    folder = Path(tmp_path_factory.mktemp("lineage"))
    settings = {"NOETL_LINEAGE": f"file://{folder}/events.jsonl", "NOETL_LINEAGE_NAMESPACE": "acme"}
    cluster = Cluster(folder / "home", **settings)
    try:
        cluster.start_server()
        cluster.start_worker()
        yield cluster, folder
    finally:
        cluster.stop()


def run(cluster: Cluster, text: str, folder: Path) -> dict[str, Any]:
    _, document = cluster.ask("POST", "/api/execute", {"content": text.format(folder=folder)})
    return cluster.finished(document["execution_id"])


def written(folder: Path, execution_events: list[Any]) -> list[Any]:
    """The events in the file, once it has those of an execution."""
    file = folder / "events.jsonl"

    async def complete() -> bool:
        return file.exists() and json.dumps(execution_events[-1]["run"]["runId"]) in file.read_text()

    asyncio.run(until(complete))
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_tasks_become_valid_events_and_a_graph(reporting):
    cluster, folder = reporting
    assert run(cluster, LOAD, folder)["status"] == "success"
    report = run(cluster, REPORT, folder)
    assert report["status"] == "success"
    status, document = cluster.ask("GET", f"/api/executions/{report['execution_id']}/lineage")
    assert status == 200
    events = document["events"]
    assert [(each["eventType"], each["job"]["name"]) for each in events] == [
        ("START", "tests/lineage/report"),
        ("START", "tests/lineage/report.start.sum"),
        ("COMPLETE", "tests/lineage/report.start.sum"),
        ("START", "tests/lineage/report.start.export"),
        ("COMPLETE", "tests/lineage/report.start.export"),
        ("COMPLETE", "tests/lineage/report"),
    ]
    export = events[4]
    assert export["job"]["namespace"] == "acme"
    assert export["run"]["facets"]["parent"]["run"] == {"runId": events[0]["run"]["runId"]}
    assert [each["name"] for each in export["inputs"]] == [f"{folder}/a.sqlite#totals"]
    (output,) = export["outputs"]
    assert output["name"] == f"{folder}/totals.csv"
    assert output["facets"]["schema"]["fields"] == [{"name": "n", "type": "int64"}]
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 1
    sent = written(folder, events)
    assert [each for each in sent if each in events] == events
    for each in sent:
        VALID.validate(each)

    _, graph = cluster.ask("GET", "/api/lineage")
    edges = {(each["from"].rpartition("/")[2], each["to"].rpartition("/")[2]) for each in graph["edges"]}
    assert edges == {
        ("load.start.copy", "a.sqlite#orders"),
        ("a.sqlite#orders", "report.start.sum"),
        ("report.start.sum", "a.sqlite#totals"),
        ("a.sqlite#totals", "report.start.export"),
        ("report.start.export", "totals.csv"),
    }
    assert len(graph["tasks"]) == 3
    _, one = cluster.ask("GET", "/api/lineage?path=tests/lineage/load")
    assert [each["id"] for each in one["tasks"]] == ["tests/lineage/load.start.copy"]
    assert [each["rows"] for each in one["edges"]] == [2]


def test_a_failed_task_is_a_failed_run(reporting):
    cluster, folder = reporting
    failed = run(cluster, FAILING, folder)
    assert failed["status"] == "failed"
    _, document = cluster.ask("GET", f"/api/executions/{failed['execution_id']}/lineage")
    ends = [each for each in document["events"] if each["eventType"] == "FAIL"]
    assert len(ends) == 2
    assert all("missing" in each["run"]["facets"]["errorMessage"]["message"] for each in ends)
    for each in document["events"]:
        VALID.validate(each)


def test_rows_of_a_loop_are_added_and_a_child_has_the_run_of_its_caller_as_its_parent(reporting):
    cluster, folder = reporting
    cluster.ask("POST", "/api/catalog/register", {"content": CHILD.format(folder=folder)})
    called = run(cluster, CALLER, folder)
    assert called["status"] == "success"
    _, document = cluster.ask("GET", f"/api/executions/{called['execution_id']}/lineage")
    ends = [each for each in document["events"] if each["eventType"] == "COMPLETE" and each["outputs"]]
    assert [each["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] for each in ends] == [2, 2, 2]
    assert len({each["run"]["runId"] for each in ends}) == 3
    _, graph = cluster.ask("GET", "/api/lineage?path=tests/lineage/caller")
    assert [each["rows"] for each in graph["edges"]] == [6]

    _, children = cluster.ask("GET", "/api/executions?path=tests/lineage/child")
    (child,) = children["items"]
    _, of_child = cluster.ask("GET", f"/api/executions/{child['execution_id']}/lineage")
    for each in (of_child["events"][0], of_child["events"][-1]):
        parent = each["run"]["facets"]["parent"]
        assert parent["run"] == {"runId": document["events"][0]["run"]["runId"]}
        assert parent["job"] == {"namespace": "acme", "name": "tests/lineage/caller"}
        VALID.validate(each)


def test_an_execution_without_datasets_and_an_unknown_one(reporting):
    cluster, _ = reporting
    text = (
        "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: n}\nworkflow: [{step: start, tool: {kind: noop}}]\n"
    )
    _, document = cluster.ask("POST", "/api/execute", {"content": text})
    cluster.finished(document["execution_id"])
    nothing = {"events": [], "truncated": False}
    assert cluster.ask("GET", f"/api/executions/{document['execution_id']}/lineage") == (200, nothing)
    assert cluster.ask("GET", "/api/executions/123/lineage")[0] == 404
    assert cluster.ask("GET", "/api/lineage?path=none")[1]["tasks"] == []
    assert cluster.ask("GET", "/api/lineage", token="")[0] == 401


EVENTS = [{"eventType": "START", "n": 1}, {"eventType": "COMPLETE", "n": 2}]


@pytest.fixture
def emitting(monkeypatch: pytest.MonkeyPatch) -> Callable[..., LineageEmitter]:
    """An emitter of executions that all have the same events."""

    async def events(*_: Any) -> Any:
        for event in EVENTS:
            yield event

    monkeypatch.setattr("noetl.server.lineage.emitter.lineage_events", events)
    return lambda sender, **more: LineageEmitter(None, sender, "acme", **more)  # type: ignore[arg-type]


def test_events_are_posted_and_repeated_after_an_error(emitting):
    received: list[Any] = []
    answers = [503, 200, 200]

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(answers.pop(0))
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    async def scenario() -> None:
        emitter = emitting(open_sender(f"http://127.0.0.1:{server.server_port}"), pauses=(0.01,))
        task = asyncio.ensure_future(emitter.run())
        emitter.ended("1")
        await until(lambda: len(received) == 3)
        task.cancel()
        await asyncio.wait([task])

    try:
        asyncio.run(scenario())
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert received == [("/api/v1/lineage", EVENTS[0]), ("/api/v1/lineage", EVENTS[0]), ("/api/v1/lineage", EVENTS[1])]


class Recording:
    """A sender whose answers are given: an exception, seconds to wait, or None."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.begun = self.sent = 0
        self.closed = False

    async def send(self, events: list[dict[str, Any]]) -> None:
        self.begun += 1
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        await asyncio.sleep(answer or 0)
        self.sent += 1

    async def close(self) -> None:
        self.closed = True


def test_a_pause_that_is_cut_short_by_a_stop_loses_no_events(emitting):
    sender = Recording(OSError("connection refused"))

    async def scenario() -> None:
        task = asyncio.ensure_future((emitter := emitting(sender, pauses=(60.0,))).run())
        await asyncio.sleep(0)
        for number in "12":
            emitter.ended(number)
        await until(lambda: sender.begun == 1)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(scenario())
    assert (sender.sent, sender.closed) == (2, True)


def test_a_stop_does_not_wait_for_a_slow_endpoint(emitting, caplog):
    sender = Recording(*[60.0] * 9)

    async def scenario() -> None:
        task = asyncio.ensure_future((emitter := emitting(sender, end_seconds=0.01)).run())
        await asyncio.sleep(0)
        for number in "123":
            emitter.ended(number)
        await until(lambda: sender.begun == 1)
        task.cancel()
        await asyncio.wait([task], timeout=10)
        assert task.done()

    asyncio.run(scenario())
    assert "lineage of 3 executions is not sent: the server stops" in caplog.text
    assert sender.closed


def test_a_store_that_cannot_be_read_is_read_again_and_a_message_has_the_kind_of_an_exception_without_text(
    monkeypatch, caplog
):
    answers: list[Any] = [StoreUnavailable("gone"), RuntimeError("gone"), EVENTS, EVENTS]
    sender = Recording(None, TimeoutError())

    async def events(*_: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        for event in answer:
            yield event

    monkeypatch.setattr("noetl.server.lineage.emitter.lineage_events", events)

    async def scenario() -> None:
        emitter = LineageEmitter(None, sender, "acme", pauses=(0.0, 0.0))  # type: ignore[arg-type]
        await emitter._emit("1", (0.0, 0.0))
        await emitter._emit("2", ())

    asyncio.run(scenario())
    assert sender.sent == 1
    assert "lineage of execution 2 is not sent: TimeoutError" in caplog.text


def test_refused_events_are_dropped_at_once_and_counted(emitting, caplog):
    sender = Recording(EventsRefused("422 Unprocessable Entity"))
    before = metrics.LINEAGE.value("dropped"), metrics.LINEAGE.value("sent")

    async def scenario() -> None:
        emitter = emitting(sender)
        await emitter._emit("1", (60.0,))
        await emitter._emit("2", (60.0,))

    asyncio.run(scenario())
    assert (sender.begun, sender.sent) == (2, 1)
    assert "lineage of execution 1 is not sent: 422 Unprocessable Entity" in caplog.text
    assert (metrics.LINEAGE.value("dropped"), metrics.LINEAGE.value("sent")) == (before[0] + 1, before[1] + 1)


def test_many_events_are_sent_in_parts_and_only_the_missing_ones_again(monkeypatch):
    async def events(*_: Any) -> Any:
        for number in range(5):
            yield {"n": number}

    monkeypatch.setattr("noetl.server.lineage.emitter.lineage_events", events)
    monkeypatch.setattr("noetl.server.lineage.emitter.BATCH", 2)
    received: list[list[int]] = []

    class Once(Recording):
        async def send(self, events: list[dict[str, Any]]) -> None:
            await super().send(events)
            received.append([each["n"] for each in events])

    emitter = LineageEmitter(None, Once(None, OSError("gone")), "acme")  # type: ignore[arg-type]
    asyncio.run(emitter._emit("1", (0.0,)))
    assert received == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize(
    ("status", "problem"), [(422, EventsRefused), (400, EventsRefused), (503, OSError), (429, OSError)]
)
def test_a_status_about_the_event_is_a_refusal(status, problem):
    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    async def scenario() -> None:
        sender = open_sender(f"http://127.0.0.1:{server.server_port}")
        try:
            await sender.send(EVENTS)
        finally:
            await sender.close()

    try:
        with pytest.raises(problem, match=str(status)):
            asyncio.run(scenario())
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_messages_about_an_endpoint_have_no_secrets():
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)  # answers 501
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    async def scenario() -> str:
        sender = open_sender(f"http://user:secret@127.0.0.1:{server.server_port}/in?token=secret")
        try:
            await sender.send(EVENTS)
        except OSError as problem:
            return str(problem)
        finally:
            await sender.close()
        return ""

    try:
        text = asyncio.run(scenario())
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert text.startswith(f"http://127.0.0.1:{server.server_port}/in answered 501")
    assert "secret" not in text
    with pytest.raises(RequestRefused) as refused:
        open_sender("ftp://user:secret@host")
    assert "secret" not in str(refused.value)


def test_events_are_published(nats_server):
    import nats

    async def scenario() -> None:
        client = await nats.connect(nats_server)
        subscription = await client.subscribe("lineage.test")
        await client.flush()
        sender = open_sender(f"{nats_server}/lineage/test")
        assert isinstance(sender, NatsSender)
        await sender.send(EVENTS)
        found = [json.loads((await subscription.next_msg(timeout=10)).data) for _ in EVENTS]
        await sender.close()
        await client.close()
        assert found == EVENTS

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "address", ["on", "ftp://x", "kafka://x", "http://", "http://[x", "nats://h:port", "https://h:0"]
)
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(RequestRefused, match="lineage"):
        open_sender(address)

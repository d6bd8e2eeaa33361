"""Traces: spans with derived ids across processes, child executions and HTTP calls."""

from __future__ import annotations

import asyncio
import http.server
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from noetl.embedded import open_local
from noetl.observability import tracing
from noetl.server.orchestrator.submissions import Submission
from tests.server.http.serving import Cluster

TRACE = tracing.Trace(17, None, True)

CALLER = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: caller}
workflow:
  - step: start
    tool:
      - fetch: {kind: http, url: "{{ workload.url }}"}
      - count: {kind: noop}
    next: {arcs: [{step: fails}]}
  - step: fails
    tool: {name: fails, kind: python, code: "raise ValueError('geheim')"}
"""


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    tracing.ACTIVE = tracing.Tracing(exporter, service="test", at_once=True)
    yield exporter
    tracing.stop()


@pytest.fixture
def url() -> Iterator[tuple[str, list[str | None]]]:
    heard: list[str | None] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.headers.get("traceparent"))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/", heard
    server.shutdown()
    thread.join()
    server.server_close()


def run(tmp_path: Path, text: str, payload: dict[str, Any], trace: str | None = None) -> str:
    async def scenario() -> str:
        async with await open_local(store="memory:", home=tmp_path) as engine:
            execution_id = await engine.orchestrator.submit(Submission(text=text, payload=payload, trace=trace))
            await engine.orchestrator.wait(execution_id, 30)
            return execution_id

    return asyncio.run(scenario())


def by_name(exporter: InMemorySpanExporter) -> dict[str, Any]:
    return {span.name: span for span in exporter.get_finished_spans()}


def test_spans_of_an_execution_form_one_tree(tmp_path: Path, spans: InMemorySpanExporter, url):
    address, heard = url
    execution_id = run(tmp_path, CALLER, {"url": address})

    found = by_name(spans)

    assert sorted(found) == [
        "execution caller", "step fails", "step start", "task count", "task fails", "task fetch",
    ]  # fmt: skip
    root = found["execution caller"]
    assert root.parent is None
    assert root.attributes["noetl.execution_id"] == execution_id
    assert {span.context.trace_id for span in found.values()} == {root.context.trace_id}
    for step in ("start", "fails"):
        assert found[f"step {step}"].parent.span_id == root.context.span_id
    for task, step in (("fetch", "start"), ("count", "start"), ("fails", "fails")):
        assert found[f"task {task}"].parent.span_id == found[f"step {step}"].context.span_id
    fetch = found["task fetch"]
    assert heard == [f"00-{fetch.context.trace_id:032x}-{fetch.context.span_id:016x}-01"]
    assert [name for name, span in found.items() if not span.status.is_ok and span.status.description] != []
    assert not found["task fails"].status.is_ok and not root.status.is_ok
    assert "geheim" not in "".join(span.to_json() for span in found.values())


def test_an_execution_joins_the_trace_of_its_request(tmp_path: Path, spans: InMemorySpanExporter, url):
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    run(tmp_path, CALLER, {"url": url[0]}, trace)
    root = by_name(spans)["execution caller"]
    assert f"{root.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert f"{root.parent.span_id:016x}" == "b7ad6b7169203331"


def test_a_child_execution_is_below_the_calling_task(tmp_path: Path, spans: InMemorySpanExporter):
    (tmp_path / "child.yaml").write_text(
        "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: child}\n"
        "workflow:\n  - step: start\n    tool: {kind: noop}\n"
    )
    text = f"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: mother}}
workflow:
  - step: call
    tool: {{kind: playbook, path: "{tmp_path / "child"}"}}
"""
    run(tmp_path, text, {})
    found = by_name(spans)
    assert found["execution child"].context.trace_id == found["execution mother"].context.trace_id
    assert found["execution child"].parent is not None
    assert found["execution child"].parent.span_id != found["execution mother"].context.span_id


def test_no_spans_are_created_when_tracing_is_off(tmp_path: Path, url):
    assert tracing.ACTIVE is None
    run(tmp_path, CALLER, {"url": url[0]})
    assert url[1] == [None]
    assert tracing.current_traceparent() is None


@contextmanager
def collecting() -> Iterator[tuple[str, list[Any]]]:
    """An OTLP collector: its address, and the spans that it has received."""
    received: list[Any] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.path == "/v1/traces"
            for resource in request.resource_spans:
                received.extend(span for scope in resource.scope_spans for span in scope.spans)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def attributes_of(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


TRACED = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: traced}
executor:
  spec:
    tracing: TRACING
workflow:
  - step: start
    tool: [{name: fetch, kind: noop}]
    next: {arcs: [{step: shown}]}
  - step: shown
    tool: [{name: shown, kind: python, input: {id: "{{ start.meta.trace_id | default(none) }}"}, code: "result = id"}]
"""


def test_server_and_worker_export_one_trace_and_outcomes_have_its_id(tmp_path: Path):
    text = TRACED.replace(
        "TRACING", '{enabled: true, sample: 1, attributes: {team: billing, order: "{{ workload.order }}", size: 3}}'
    )
    with collecting() as (address, received):
        cluster = Cluster(tmp_path, NOETL_TRACES="otlp", OTEL_EXPORTER_OTLP_ENDPOINT=address)
        try:
            cluster.start_server()
            cluster.start_worker()
            status, document = cluster.ask("POST", "/api/execute", {"content": text, "payload": {"order": "A-17"}})
            assert status == 202, document
            ended = cluster.finished(document["execution_id"])
            assert ended["status"] == "success", ended
            _, events = cluster.ask("GET", f"/api/executions/{document['execution_id']}/events")
        finally:
            cluster.stop()  # exports what is pending
        found = {span.name: span for span in received}
    assert sorted(found) == ["execution traced", "step shown", "step start", "task fetch", "task shown"]
    (trace_id,) = {span.trace_id.hex() for span in found.values()}
    for span in found.values():
        own = attributes_of(span)
        assert (own["team"], own["order"], own["size"]) == ("billing", "A-17", 3)
        assert own.get("noetl.execution_id", document["execution_id"]) == document["execution_id"]
    assert found["task fetch"].parent_span_id == found["step start"].span_id
    assert found["step start"].parent_span_id == found["execution traced"].span_id
    assert ended["output"]["data"] == trace_id
    outputs = [each["payload"]["outcome"] for each in events["items"] if each["name"] == "task.done"]
    assert [output["meta"]["trace_id"] for output in outputs] == [trace_id, trace_id]


def test_a_playbook_can_turn_tracing_off(tmp_path: Path, spans: InMemorySpanExporter):
    assert result_of(tmp_path, TRACED.replace("TRACING", "{enabled: false}")) is None
    assert spans.get_finished_spans() == ()


def test_a_share_of_the_executions_is_traced_as_a_whole(tmp_path: Path, spans: InMemorySpanExporter):
    text = TRACED.replace("TRACING", "{sample: 0.5}")

    async def scenario() -> dict[str, str | None]:
        found = {}
        async with await open_local(store="memory:", home=tmp_path) as engine:
            for _ in range(30):
                result = await engine.run(text, None, timeout=30)
                found[result.execution_id] = result.data
        return found

    ids = asyncio.run(scenario())
    spans_of: dict[str, list[str]] = {}
    for span in spans.get_finished_spans():
        spans_of.setdefault(f"{span.context.trace_id:032x}", []).append(span.name)
    traced = [trace_id for trace_id in ids.values() if trace_id is not None]
    assert 3 < len(traced) < 27  # of 30 with a share of a half: another number has a probability below 1e-5
    assert sorted(spans_of) == sorted(traced)
    assert {len(names) for names in spans_of.values()} == {5}


def test_the_request_decides_on_sampling(tmp_path: Path, spans: InMemorySpanExporter, url):
    address, heard = url
    for flag in ("00", "01"):
        trace = f"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flag}"
        run(tmp_path, CALLER, {"url": address}, trace)
        assert bool(spans.get_finished_spans()) == (flag == "01")
        assert heard[-1] is not None and heard[-1].endswith(flag)


def test_trace_ids_without_an_exporter(tmp_path: Path, url):
    assert tracing.ACTIVE is None
    first, second = (result_of(tmp_path, TRACED.replace("TRACING", "{enabled: true}")) for _ in range(2))
    assert len(first) == len(second) == 32 and first != second
    assert result_of(tmp_path, TRACED.replace("TRACING", "{}")) is None


def test_an_attribute_that_cannot_be_evaluated_is_left_out(
    tmp_path: Path, spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
):
    text = TRACED.replace("TRACING", '{attributes: {bad: "{{ workload.order.id }}", good: yes it is}}')
    result_of(tmp_path, text)
    found = by_name(spans)["step start"].attributes
    assert "bad" not in found and found["good"] == "yes it is"
    assert "the span attribute bad is left out" in caplog.text


def result_of(tmp_path: Path, text: str) -> Any:
    async def scenario() -> Any:
        async with await open_local(store="memory:", home=tmp_path) as engine:
            result = await engine.run(text, None, timeout=30)
            assert result.status == "success", result.error
            return result.data

    return asyncio.run(scenario())


def test_spans_can_be_written_to_the_console():
    stream = io.StringIO()
    tracing.start("console", service="noetl-test", stream=stream)
    assert tracing.ACTIVE is not None
    tracing.ACTIVE.execution(TRACE, "17", path="p", status="failed", started_at=1.0, ended_at=2.0)
    tracing.stop()
    (span,) = map(json.loads, stream.getvalue().splitlines())
    assert (span["name"], span["attributes"]["noetl.status"]) == ("execution p", "failed")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00-0-0-01",
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "zz-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ],
)
def test_an_invalid_traceparent_is_ignored(text: str):
    assert not tracing.is_traceparent(text)

"""Traces: spans with derived ids across processes, child executions and HTTP calls."""

from __future__ import annotations

import asyncio
import http.server
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from noetl.embedded import open_local
from noetl.observability import tracing
from noetl.server.orchestrator.submissions import Submission

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


def test_spans_are_exported_to_the_configured_endpoint(monkeypatch: pytest.MonkeyPatch):
    heard: list[tuple[str, int]] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            heard.append((self.path, len(self.rfile.read(length))))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    try:
        tracing.start("otlp", service="noetl-test")
        assert tracing.ACTIVE is not None
        tracing.ACTIVE.execution("17", None, path="p", status="success", started_at=1.0, ended_at=2.0)
        tracing.stop()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert [path for path, _ in heard] == ["/v1/traces"] and heard[0][1] > 100


def test_spans_can_be_written_to_the_console():
    stream = io.StringIO()
    tracing.start("console", service="noetl-test", stream=stream)
    assert tracing.ACTIVE is not None
    tracing.ACTIVE.execution("17", None, path="p", status="failed", started_at=1.0, ended_at=2.0)
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

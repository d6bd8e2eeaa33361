"""Custom events, results that are always stored, and steps that the answer of a service decides."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from noetl.core.engine.advance import fold
from noetl.core.language.editor.net_document import net_document
from noetl.core.model.events import envelope, recorded_of

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_custom_events_are_appended_at_the_end_of_the_step(play):
    ran = play("""
    workflow:
      - step: start
        spec:
          policy:
            emit:
              events:
                - {name: loaded, payload: {rows: "{{ output.data.rows }}", by: "{{ execution_id }}"}}
                - {name: many, payload: "{{ output.data.rows }}", when: "{{ output.data.rows > 100 }}"}
                - {name: broken, payload: "{{ output.data.nothing.at.all }}"}
        tool: {kind: python, code: "result = {'rows': 3}"}
        next: {arcs: [{step: end}]}
      - {step: end, tool: {kind: noop}}
    """)
    assert ran.status == "success"
    loaded, broken = ran.of("custom")
    assert loaded.data == {"rows": 3, "by": ran.result.execution_id}
    assert (broken.name, broken.error.kind) == ("broken", "template")
    position = ran.names.index("custom")
    assert ran.names[position - 1] == "step.done"
    document = envelope(ran.events[position])
    assert (document["name"], document["payload"]["data"]["rows"]) == ("custom.loaded", 3)
    assert recorded_of(document).body == loaded


def test_a_failed_step_emits_only_events_whose_condition_holds(play):
    ran = play("""
    workflow:
      - step: start
        spec:
          policy:
            emit:
              events:
                - {name: done, payload: 1}
                - {name: failed, payload: "{{ output.error.kind }}", when: "{{ event.name == 'step.failed' }}"}
        tool: {kind: python, code: "raise ValueError('no')"}
    """)
    assert [(event.name, event.data) for event in ran.of("custom")] == [("failed", "python")]


def test_with_reference_first_every_result_is_stored(play):
    ran = play("""
    executor: {spec: {policy: {results: {reference_first: true}}}}
    workflow:
      - step: start
        tool: {kind: python, code: "result = {'n': 1}"}
        next: {arcs: [{step: end}]}
      - {step: end, tool: {kind: python, input: {n: "{{ start.n }}"}, code: "result = n + 1"}}
    """)
    assert all(event.outcome.ref is not None and event.outcome.data is None for event in ran.of("task.done"))
    assert ran.status == "success"


def test_the_answer_of_a_service_decides_the_plan(stage):
    plan = [
        {"step": "count", "tool": {"kind": "python", "code": "result = 41"}, "next": {"arcs": [{"step": "add"}]}},
        {"step": "add", "tool": {"kind": "python", "input": {"n": "{{ count.data }}"}, "code": "result = n + 1"}},
    ]

    class Service(BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps(plan).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            return

    server = HTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/plan"
        ran = stage.play((EXAMPLES / "synthesis.yaml").read_text(encoding="utf-8"), {"url": url})
        assert ran.data == 42
        state = stage.do(stage.orchestrator.state(ran.result.execution_id))
        nodes = net_document(state.playbook, state.synthesized.values())["nodes"]
        assert {node["step"] for node in nodes if node["synthesized"]} == {"count", "add"}
        assert (
            fold(state.playbook, ran.events).synthesized == state.synthesized
        )  # without the service and the validator
        plan[0]["tool"]["kind"] = "shell"
        refused = stage.play((EXAMPLES / "synthesis.yaml").read_text(encoding="utf-8"), {"url": url})
        assert (refused.status, refused.error["kind"]) == ("failed", "schema")
        assert "allowed are python" in refused.error["message"]
    finally:
        server.shutdown()
        server.server_close()

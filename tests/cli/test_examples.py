"""Every example runs and has the expected output."""

from __future__ import annotations

import base64
import http.server
import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.server.http.serving import Cluster

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
OUTPUTS = {
    "hello.yaml": "Hello, world!",
    "fan_out_and_join.yaml": "shipped from shelf 2, 120 paid",
    "best_effort.yaml": {"total": 49, "seen": ["12", "7", "30"], "failed": 1},
    "children/main.yaml": 10,
    "children/region.yaml": {"region": "north", "stores": 5},
    "workbook.yaml": "Ada Lovelace",
    "schemas.yaml": ["amount"],
    "arcs.yaml": "applied",
    "synthesis.yaml": "cleaned and published",
    "placement.yaml": {"trained": 4, "best": 0.96},
    "tracing.yaml": True,
    "reference_first.yaml": {"rows": 3, "total": 60},
    "quotas.yaml": 8,
}
FAILING = {
    "saga.yaml": {"undone": ["cancelled room in Rome", "cancelled room in Paris", "cancelled flight of Ada"]},
}  # the example and its ctx


def test_every_example_has_an_expectation():
    found = {
        str(file.relative_to(EXAMPLES))
        for file in EXAMPLES.rglob("*.yaml")
        if not {"build", "jobs", "cookbook"} & {*file.parts}
    }
    assert found == {*OUTPUTS, *FAILING, "quickstart/playbook.yaml"}


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_example_gives_its_output(noetl, name):
    answer = noetl("run", EXAMPLES / name, "--json")
    assert answer.code == 0, answer.err
    assert answer.json["output"]["data"] == OUTPUTS[name]
    assert "warning" not in answer.err


def test_the_answer_of_a_service_decides_the_plan(noetl):
    plan = [
        {"step": "load", "tool": {"kind": "python", "code": "result = [3, 4]"}, "next": {"arcs": [{"step": "sum_up"}]}},
        {
            "step": "sum_up",
            "tool": {"kind": "python", "input": {"all": "{{ load.data }}"}, "code": "result = sum(all)"},
        },
    ]
    with serving(json.dumps(plan)) as url:
        answer = noetl("run", EXAMPLES / "synthesis.yaml", "--json", "--set", f"url={url}")
    assert answer.code == 0, answer.err
    assert answer.json["output"]["data"] == 7
    assert [each["step"] for each in answer.json["steps"]] == ["plan", "load", "sum_up"]


@contextmanager
def serving(text):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/plan"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("name", FAILING)
def test_an_example_of_a_failure_gives_its_ctx(noetl, name):
    answer = noetl("run", EXAMPLES / name, "--json")
    assert answer.code == 1, answer.err
    assert answer.json["ctx"] == FAILING[name]
    assert answer.json["compensation"] == {"done": 3, "failed": 0}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("home"), NOETL_WORKER_LABELS="gpu=true,zone=eu")
    try:
        cluster.start_server()
        cluster.start_worker()
        yield cluster
    finally:
        cluster.stop()


@pytest.mark.parametrize("name", [*(name for name in OUTPUTS if "/" not in name), *FAILING])
def test_an_example_gives_the_same_on_a_server(cluster, name):
    body = {"content": (EXAMPLES / name).read_text(encoding="utf-8")}
    status, started = cluster.ask("POST", "/api/execute", body)
    assert status == 202, started
    document = cluster.finished(started["execution_id"], 60)
    if name in FAILING:
        assert (document["status"], document["ctx"]) == ("failed", FAILING[name])
        assert document["compensation"]["failed"] == 0
    else:
        output = document["output"]
        if output["ref"] is not None:  # `reference_first`
            reference = base64.urlsafe_b64encode(json.dumps(output["ref"]).encode()).decode()
            assert cluster.ask("GET", f"/api/results/{reference}") == (200, OUTPUTS[name])
            return
        assert output["data"] == OUTPUTS[name]


def test_the_quickstart_pages_retries_and_stores_rows(noetl, folder):
    import duckdb

    ran = subprocess.run(
        [sys.executable, EXAMPLES / "quickstart" / "run.py", "--json", "--set", f"build={folder}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    assert "Denmark" in ran.stderr
    document = noetl("status", "last", "--json").json
    assert document["output"]["data"] == {"pages": 24, "orders": 600, "revenue": 201720.66}
    log = noetl("events", "last", "--json").lines
    retried = [event for event in log if event["name"] == "task.done" and event["payload"].get("do") == "retry"]
    assert len(retried) == 4
    with duckdb.connect(str(folder / "shop.duckdb"), read_only=True) as database:
        counts = [
            database.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            for name in ("customers", "products", "orders")
        ]
        assert counts == [120, 60, 600]
        rows = database.execute("FROM revenue ORDER BY country").fetchall()
        assert database.execute(f"FROM '{folder}/revenue.parquet' ORDER BY country").fetchall() == rows
        assert len(rows) == 7

"""The jobs of `examples/jobs` that rest on mail, triggers and schedules, end to end with their stub services."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import noetl
from noetl.cli import app as program
from tests.jobs.conftest import JOBS
from tests.server.http.serving import Cluster
from tests.smtp import smtp_server


def wait_for(condition: Any, seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.05)
    return value


@pytest.fixture
def cluster(tmp_path, monkeypatch) -> Iterator[Cluster]:
    home = tmp_path / "home"
    home.mkdir()
    cluster = Cluster(home)
    try:
        cluster.start_server()
        cluster.start_worker()
        monkeypatch.setenv("NOETL_HOME", str(home))
        monkeypatch.setenv("NOETL_SERVER_URL", cluster.url)
        monkeypatch.setenv("NOETL_TOKEN", cluster.token)
        yield cluster
    finally:
        cluster.stop()


def project(job: str, tmp_path: Path, **changes: str) -> Path:
    """A copy of a job in which some texts are replaced."""
    folder = shutil.copytree(JOBS / job, tmp_path / job)
    for file in folder.glob("*.yaml"):
        text = file.read_text()
        for before, after in changes.items():
            text = text.replace(before, after)
        file.write_text(text)
    return folder


@pytest.mark.parametrize("file", sorted(JOBS.glob("*/*.yaml")), ids=lambda file: f"{file.parent.name}/{file.name}")
def test_a_job_is_short_and_valid(file: Path):
    text = file.read_text()
    assert len(text.splitlines()) < 60
    if not file.name.endswith((".resource.yaml", ".test.yaml")):
        assert [str(each) for each in noetl.validate(text, file=str(file))] == []


def test_fan_out_with_tolerated_failures_and_a_mail(stub):
    playbook = JOBS / "fan_out_with_mail" / "playbook.yaml"
    with smtp_server() as inbox:
        payload = {"api": stub(JOBS / "fan_out_with_mail" / "stub.py", "east").url, "smtp": inbox.fields}
        result = noetl.run(playbook, payload, store="memory:")
        assert result.status == "success", result.error
        (message,) = inbox.messages
        assert message["Subject"] == "Sales: 5 of 6 regions, 180 in total"
        (attached,) = message.iter_attachments()
        (failure,) = json.loads(attached.get_content())
        assert (failure["item"], failure["error"]["kind"]) == ("east", "server_error")
        payload["api"] = stub(JOBS / "fan_out_with_mail" / "stub.py", "east", "west", "north", "south").url
        result = noetl.run(playbook, payload, store="memory:")
        assert inbox.messages[1]["Subject"] == "Sales could not be fetched"


def test_a_streamed_answer_is_validated_with_feedback(stub):
    playbook = JOBS / "streaming_answer" / "playbook.yaml"
    model = stub(JOBS / "streaming_answer" / "stub.py", "2")
    result = noetl.run(playbook, {"api": model.url}, store="memory:")
    assert result.status == "success", result.error
    assert result.data == {"fruits": [{"name": "apple", "price": 1.5}, {"name": "pear", "price": 2}], "total": 3.5}
    first, second, third = model.get("/feedback")
    assert first == ""
    assert second.startswith("not a JSON list")
    assert third.startswith("price must be a number above 0")
    result = noetl.run(playbook, {"api": stub(JOBS / "streaming_answer" / "stub.py", "9").url}, store="memory:")
    assert result.status == "failed"
    assert result.error is not None and result.error["kind"] == "schema"


def test_sql_models_are_built_and_tested(tmp_path):
    folder = project("sql_models", tmp_path)
    payload = {"database": str(tmp_path / "shop.duckdb"), "source": str(folder / "data" / "orders.csv")}
    result = noetl.run(folder / "playbook.yaml", payload, store="memory:")
    assert result.status == "success", result.error
    assert [(row["customer"], float(row["amount"]), row["orders"]) for row in result.data["rows"]] == [
        ("ann", 15.5, 2),
        ("bob", 20.0, 1),
    ]
    with (folder / "data" / "orders.csv").open("a") as file:
        file.write("4,,7\n")
    result = noetl.run(folder / "playbook.yaml", payload, store="memory:")
    assert result.status == "failed"
    message = (result.error or {})["message"]
    assert "orders_have_customers: 1 bad rows" in message
    assert "revenue_adds_up: 1 bad rows" in message


def test_a_nightly_load_that_is_late_is_mailed_and_so_is_its_recovery(stub, cluster: Cluster, tmp_path):
    api = stub(JOBS / "nightly" / "stub.py", "3").url
    changes = {"0 2 * * *": "0 0 1 1 *", "2h": "1s", "5m": "0s", "http://127.0.0.1:8092": api}
    folder = project("nightly", tmp_path, **changes)
    with smtp_server() as inbox:
        cluster.ask("PUT", "/api/credentials/smtp", {"type": "smtp", "data": inbox.fields})
        assert program.run(["apply", str(folder)]) == 0
        assert program.run(["notify", "test", "nightly"]) == 0
        # A tick of every second, until the first one is late.
        assert program.run(["schedule", "edit", "nightly", "--cron", "* * * * * *"]) == 0
        wait_for(lambda: any("nightly/load is late" in each["Subject"] for each in inbox.messages))
        assert program.run(["schedule", "pause", "nightly"]) == 0
        wait_for(lambda: any("succeeded again" in each["Subject"] for each in inbox.messages))
        shown = cluster.ask("GET", "/api/schedules/nightly")[1]
        assert shown["late"] >= 1
        started = cluster.finished(shown["last_execution"])
        assert started["output"]["data"] == {"orders": 2}


def test_files_start_loads_and_loads_start_publications(stub, cluster: Cluster, tmp_path):
    inbox = tmp_path / "in"
    inbox.mkdir()
    receiver = stub(JOBS / "triggers" / "stub.py")
    folder = project("triggers", tmp_path, **{"/var/in": str(inbox), "http://127.0.0.1:8093": receiver.url})
    assert program.run(["apply", str(folder)]) == 0
    wait_for(lambda: cluster.ask("GET", "/api/triggers/object/inbox")[1]["cursor"])
    (inbox / "orders.csv").write_text("id,amount\n1,10\n2,5.5\n")
    (result,) = wait_for(lambda: receiver.get("/results"))
    assert result["result"] == {"rows": 2, "amount": 15.5}
    assert cluster.finished(result["of"])["path"] == "triggers/load"
    history = cluster.ask("GET", "/api/deliveries")[1]["items"]
    assert [(each["kind"], each["status"]) for each in history] == [("execution", "started"), ("object", "started")]

"""The job `examples/jobs/approval`: approved, refused, escalated."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_executions import wait_for
from tests.jobs.conftest import JOBS, Stub


@pytest.fixture
def payments(stub) -> Stub:
    return stub(JOBS / "approval" / "stub.py")


def run(start, payments: Stub, *words: str):
    return start("run", str(JOBS / "approval" / "playbook.yaml"), "--json", "--set", f"api={payments.url}", *words)


def answer(noetl, name: str, approved: bool) -> None:
    wait_for(lambda: [each for each in noetl("inbox", "--json").json if each["signal"] == name])
    assert noetl("signal", "last", "--name", name, "--set", f"approved={str(approved).lower()}").code == 0


@pytest.mark.parametrize(("approved", "status"), [(True, "paid"), (False, "refused")])
def test_the_answer_decides(noetl, start, payments, approved, status):
    process = run(start, payments, "--set", "amount=250")
    answer(noetl, "approve", approved)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert payments.get("/payments") == [{"id": 1, "status": status, "amount": 250, "payee": "Bob"}]
    assert json.loads(out)["output"]["data"]["status"] == status


def test_without_an_answer_in_time_it_is_escalated(noetl, start, payments):
    process = run(start, payments, "--set", "patience=100ms")
    answer(noetl, "escalated", True)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert [each["status"] for each in payments.get("/payments")] == ["paid"]
    steps = [row["step"] for row in json.loads(out)["steps"]]
    assert steps == ["request", "ask", "escalate", "pay"]

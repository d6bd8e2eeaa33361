"""Waits on the command line: `noetl run` waits, other terminals answer, `noetl inbox` lists."""

from __future__ import annotations

import json
import time

from tests.cli.test_executions import wait_for

APPROVAL = """
workload: {amount: 100}
workflow:
  - step: start
    tool:
      - name: approval
        kind: wait
        signal: approve
        title: "Pay {{ workload.amount }}?"
        form: {type: object, required: [approved], properties: {approved: {type: boolean}}}
        timeout: 48h
      - {name: end, kind: python, input: {a: "{{ approval.data.approved }}"}, code: "result = a"}
"""


def waits(noetl) -> bool:
    found = noetl("executions", "--status", "waiting", "--json").json
    return bool(found)


def test_a_run_waits_and_is_answered_from_another_terminal(noetl, playbook, start):
    process = start("run", playbook(APPROVAL, "pay"), "--json")
    wait_for(lambda: waits(noetl))
    assert noetl("status", "last", "--json").json["status"] == "waiting"
    (entry,) = noetl("inbox", "--json").json
    assert (entry["signal"], entry["title"], entry["roles"]) == ("approve", "Pay 100?", ["operator"])
    assert entry["form"]["required"] == ["approved"] and entry["due"] > entry["since"]
    shown = noetl("inbox")
    assert "Pay 100?" in shown.out
    assert f"noetl signal {entry['execution_id']} --name approve --set approved=VALUE" in shown.err
    assert 'waiting at task "approval"' in noetl("why", "last").out
    refused = noetl("signal", "last", "--name", "approve", "--set", "approved=perhaps")
    assert refused.code == 2 and 'approved: "perhaps" is not of type "boolean"' in refused.err
    answer = noetl("signal", "last", "--name", "approve", "--set", "approved=true", "--json")
    assert answer.json["status"] == "running"
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert json.loads(out)["output"]["data"] is True
    assert 'waits for the signal "approve": Pay 100?' in err and "answer with: noetl signal" in err
    assert noetl("inbox", "--json").json == []
    assert "nothing waits for an answer" in noetl("inbox").err


def test_a_timer_goes_on_by_itself(noetl, playbook):
    began = time.monotonic()
    text = "workflow:\n  - {step: start, tool: {kind: wait, for: 300ms}}\n"
    answer = noetl("run", playbook(text, "pause"), "--json")
    assert answer.json["status"] == "success" and time.monotonic() - began >= 0.3
    assert "start.start_task waits until" in answer.err


def test_a_signal_to_an_execution_whose_process_has_ended_is_taken_when_it_is_resumed(noetl, playbook, start):
    process = start("run", playbook(APPROVAL, "pay"))
    wait_for(lambda: waits(noetl))
    process.kill()
    process.communicate()
    assert noetl("signal", "last", "--name", "approve", "--set", "approved=false").code == 0
    answer = noetl("resume", "last", "--json")
    assert answer.json["output"]["data"] is False, answer.err


def test_an_execution_that_waits_is_resumed_after_its_process_ended(noetl, playbook, start):
    process = start("run", playbook(APPROVAL, "pay"))
    wait_for(lambda: waits(noetl))
    process.kill()
    process.communicate()
    again = start("resume", "last", "--json")
    wait_for(lambda: noetl("inbox", "--json").json)
    assert noetl("signal", "last", "--name", "approve", "--set", "approved=true").code == 0
    out, err = again.communicate(timeout=30)
    assert again.returncode == 0, err
    assert json.loads(out)["output"]["data"] is True


def test_ctrl_c_cancels_a_run_that_waits(noetl, playbook, start):
    import signal

    process = start("run", playbook(APPROVAL, "pay"), "--json")
    wait_for(lambda: waits(noetl))
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 130 and json.loads(out)["status"] == "cancelled"


def test_a_link_needs_a_server(noetl):
    answer = noetl("inbox", "--link", "last")
    assert answer.code == 2 and "a link is a page of a server" in answer.err

"""Commands that inspect and control executions from their logs."""

from __future__ import annotations

import json

import pytest

from tests.e2e.api import serving

LOOP = """\
workload: {numbers: [1, 2, 3]}
workflow:
  - step: start
    loop:
      in: "{{ workload.numbers }}"
      iterator: number
      spec: {mode: parallel, max_in_flight: 2}
    tool:
      - name: maybe
        kind: python
        input: {attempt: "{{ _attempt }}", number: "{{ iter.number }}"}
        code: |
          if number == 2 and attempt == 1:
              raise RuntimeError("not yet")
          result = number * 10
        spec:
          policy:
            rules:
              - when: "{{ output.status == 'error' }}"
                then: {do: retry, attempts: 3}
    next:
      arcs:
        - step: end
          when: "{{ event.name == 'loop.done' }}"
  - step: end
    tool:
      - name: total
        kind: python
        input: {values: "{{ start.results }}"}
        code: |
          result = sum(values)
"""
NOOP = "workflow:\n  - step: start\n    tool: {kind: noop}\n"


@pytest.fixture
def ran(noetl, playbook) -> dict:
    """The document of a finished run with a loop and a retry in it."""
    return noetl("run", playbook(LOOP), "--json").json


def test_events_are_printed_as_one_envelope_per_line_without_gaps(noetl, ran):
    answer = noetl("events", ran["execution_id"], "--json")
    assert answer.code == 0
    log = answer.lines
    assert [event["seq"] for event in log] == list(range(1, len(log) + 1))
    assert log[0]["name"] == "playbook.execution.requested"
    assert log[-1]["name"] == "playbook.processed"
    needed = {
        "event_id", "execution_id", "timestamp", "source", "name", "entity_type", "entity_id", "status", "payload",
        "step", "step_run_id", "iteration_id", "iteration_index", "task_run_id", "task_label", "attempt", "seq",
        "parent_event_id",
    }  # fmt: skip
    for event in log:
        assert needed <= set(event)
        assert event["execution_id"] == ran["execution_id"]
    assert sum(event["name"] == "loop.iteration.done" for event in log) == 3


def test_events_as_text_name_the_step_and_the_details(noetl, ran):
    out = noetl("events", "last").out
    assert "start/1.maybe" in out
    assert "not yet" in out
    assert "retry" in out
    assert "-> end" in out
    assert "3 succeeded, 0 failed" in out


def test_events_start_after_a_seq_and_are_followed_to_the_end(noetl, ran):
    whole = noetl("events", "last", "--json").lines
    assert noetl("events", "last", "--json", "--after", "5").lines == whole[5:]
    assert noetl("events", "last", "--json", "--follow").lines == whole


def test_following_prints_events_while_the_execution_runs(noetl, start, playbook):
    slow = "workflow:\n  - step: start\n    tool: {kind: python, code: 'import time; time.sleep(1.0); result = 1'}\n"
    run = start("run", playbook(slow), "--json")
    follower = None
    for line in run.stderr:
        if line.startswith("start: running"):
            follower = start("events", "last", "--follow", "--json")
            break
    out, err = follower.communicate(timeout=30)
    assert follower.returncode == 0, err
    names = [json.loads(line)["name"] for line in out.splitlines()]
    assert names[-1] == "playbook.processed"
    assert run.wait(30) == 0


def test_status_is_the_document_of_the_run(noetl, ran):
    answer = noetl("status", ran["execution_id"], "--json")
    assert answer.json == ran
    out = noetl("status", "last").out
    assert "success" in out
    assert "3/3" in out


def test_executions_are_listed_newest_first(noetl, ran, playbook):
    noetl("run", playbook(NOOP, "other"))
    listed = noetl("executions", "--json").json
    assert [one["path"] for one in listed] == ["tests/other", "tests/sample"]
    assert listed[1]["execution_id"] == ran["execution_id"]
    assert [one["path"] for one in noetl("executions", "--json", "--path", "tests/sample").json] == ["tests/sample"]
    assert noetl("executions", "--json", "--status", "failed").json == []
    assert len(noetl("executions", "--json", "--limit", "1").json) == 1
    assert "tests/other" in noetl("executions").out


@pytest.mark.parametrize("command", ["status", "events", "replay", "why", "cancel", "rerun"])
def test_an_unknown_id_is_a_one_line_error(noetl, command):
    for name in ("12345", "not-a-number", "last"):
        answer = noetl(command, name)
        assert answer.code == 2
        assert answer.out == ""
        assert answer.err.count("\n") == 1


def test_replay_computes_the_final_state_from_the_log(noetl, ran):
    document = noetl("replay", "last", "--json").json
    assert document["execution_id"] == ran["execution_id"]
    assert document["status"] == "success"
    assert document["ctx"] == ran["ctx"]


def test_replay_stops_at_the_given_event(noetl, ran):
    whole = noetl("events", "last", "--json").lines
    middle = next(event["seq"] for event in whole if event["name"] == "loop.started")
    document = noetl("replay", "last", "--at", str(middle), "--json").json
    assert document["seq"] == middle
    assert document["status"] == "running"
    assert noetl("replay", "last", "--at", str(len(whole) + 1)).code == 2
    assert noetl("replay", "last", "--at", "0").code == 2


def test_why_explains_how_an_execution_ended(noetl, ran, playbook):
    assert "succeeded" in noetl("why", "last").out
    broken = "workflow:\n  - step: start\n    tool: {kind: python, code: 'raise ValueError(\"no such luck\")'}\n"
    noetl("run", playbook(broken, "broken"))
    assert "no such luck" in noetl("why", "last").out
    assert noetl("why", "last", "--json").json


def test_why_explains_what_a_running_execution_waits_for(noetl, start, playbook):
    slow = "workflow:\n  - step: start\n    tool: {kind: python, code: 'import time; time.sleep(60)'}\n"
    run = start("run", playbook(slow))
    for line in run.stderr:
        if line.startswith("start: running"):
            break
    answer = noetl("why", "last")
    assert "is running; it started" in answer.out
    assert 'step "start"' in answer.out
    run.terminate()
    assert run.wait(30) == 130
    assert "it was cancelled" in noetl("why", "last").out


def test_an_ended_execution_cannot_be_cancelled(noetl, ran):
    answer = noetl("cancel", "last")
    assert answer.code == 2
    assert answer.err.count("\n") == 1


def test_a_run_can_be_cancelled_from_another_terminal(noetl, start, playbook):
    slow = "workflow:\n  - step: start\n    tool: {kind: python, code: 'import time; time.sleep(60)'}\n"
    run = start("run", playbook(slow), "--json")
    for line in run.stderr:
        if line.startswith("start: running"):
            break
    assert noetl("cancel", "last", "--reason", "enough").code == 0
    out, err = run.communicate(timeout=30)
    assert run.returncode == 1, err
    assert json.loads(out)["status"] == "cancelled"


def test_rerun_is_a_new_execution_of_the_same_text_and_payload(noetl, playbook, folder):
    file = playbook(LOOP)
    first = noetl("run", file, "--json", "--set", "numbers=[5, 6]").json
    (folder / file).write_text("changed: since\n")
    again = noetl("rerun", first["execution_id"], "--json")
    assert again.code == 0
    assert again.json["execution_id"] != first["execution_id"]
    assert again.json["output"]["data"] == 110


def test_rerun_from_a_step_keeps_earlier_results(noetl, ran):
    again = noetl("rerun", "last", "--from", "end", "--json")
    assert again.code == 0
    assert again.json["output"]["data"] == 60
    names = {event["step"] for event in noetl("events", "last", "--json").lines if event["name"] == "step.scheduled"}
    assert names == {"end"}
    answer = noetl("rerun", "last", "--from", "nowhere")
    assert answer.code == 2
    assert "nowhere" in answer.err


def test_a_killed_run_is_resumed_where_it_stopped(noetl, playbook, start, folder):
    file = playbook(
        "workflow:\n"
        "  - step: start\n    tool: {kind: shell, cmd: echo once >> done.txt}\n    next: {arcs: [{step: wait}]}\n"
        "  - step: wait\n    tool: {kind: shell, cmd: 'touch waiting; while [ ! -e go ]; do sleep 0.05; done; echo through'}\n",
        "dies",
    )
    process = start("run", file)
    wait_for(lambda: (folder / "waiting").exists())
    assert noetl("status", "last").err == ""
    alive = noetl("resume", "last")
    assert alive.code == 2
    assert "another process" in alive.err
    process.kill()
    process.wait()
    (folder / "go").touch()
    answer = noetl("resume", "last", "--json")
    assert answer.code == 0, answer.err
    assert answer.json["status"] == "success"
    assert (folder / "done.txt").read_text() == "once\n"
    assert noetl("resume", "last").code == 2


@pytest.mark.parametrize("limit", [65536, 64])  # the results are inline, or stored
def test_a_whole_http_result_means_the_same_after_a_resume(noetl, playbook, start, folder, limit):
    file = playbook(
        f"executor: {{spec: {{policy: {{limits: {{max_payload_bytes: {limit}}}}}}}}}\n"
        """workload: {api: ""}
workflow:
  - step: users
    tool: {kind: http, url: "{{ workload.api }}/users"}
    next: {arcs: [{step: end}]}
  - step: end
    tool:
      - {name: item, kind: http, url: "{{ workload.api }}/items"}
      - {name: hold, kind: shell, cmd: "touch waiting; while [ ! -e go ]; do sleep 0.05; done"}
      - {name: a, kind: transfer, data: "{{ users }}", targets: [{kind: sqlite, file: rows.db, table: users}]}
      - {name: b, kind: transfer, data: "{{ item }}", targets: [{kind: sqlite, file: rows.db, table: items}]}
      - {name: read, kind: sqlite, file: rows.db, command: "SELECT (SELECT group_concat(id) FROM users) AS users, (SELECT group_concat(id) FROM items) AS items"}
      - {name: show, kind: python, input: {rows: "{{ read.rows }}", whole: "{{ users }}"}, code: "result = {**rows[0], 'keys': sorted(whole)}"}
""",
        "rows",
    )
    with serving() as api:
        process = start("run", file, "--set", f"api={api}")
        wait_for(lambda: (folder / "waiting").exists())
        process.kill()
        process.wait()
        (folder / "go").touch()
        answer = noetl("resume", "last", "--json")
    assert answer.code == 0, answer.err
    keys = ["body", "data", "headers", "status_code", "url"]
    assert answer.json["output"]["data"] == {"users": "1,2,3", "items": "1,2", "keys": keys}


def wait_for(what, seconds: float = 20.0) -> None:
    import time

    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


TWO_WAYS = """\
workflow:
  - step: start
    tool: {kind: noop}
    next: {spec: {mode: inclusive}, arcs: [{step: slow}, {step: gated}]}
  - step: slow
    tool: {kind: shell, cmd: 'touch waiting; while [ ! -e go ]; do sleep 0.05; done'}
  - step: gated
    spec: {policy: {admit: {rules: [{when: "{{ ctx.go | default(false) }}", then: {allow: true}}]}}}
    tool: {kind: shell, cmd: touch go}
"""


def test_a_run_receives_a_signal_from_another_terminal(noetl, playbook, start, folder):
    process = start("run", playbook(TWO_WAYS, "two"), "--json")
    wait_for(lambda: (folder / "waiting").exists())
    assert "gated" in noetl("why", "last").out
    assert noetl("signal", "last", "--set", "go=true").code == 0
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert [row["status"] for row in json.loads(out)["steps"]] == ["success"] * 3


def test_a_run_that_is_cancelled_elsewhere_stops_its_tool(noetl, playbook, start, folder):
    process = start("run", playbook(TWO_WAYS, "two"), "--json")
    wait_for(lambda: (folder / "waiting").exists())
    assert noetl("cancel", "last", "--json").json["status"] == "cancelled"
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, json.loads(out)["status"]) == (1, "cancelled")


def test_a_run_is_paused_and_resumed_from_another_terminal(noetl, playbook, start, folder):
    text = (
        "workflow:\n  - step: start\n    tool: {kind: shell, cmd: 'touch waiting; while [ ! -e go ]; do sleep 0.05; done'}\n"
        "    next: {arcs: [{step: end}]}\n  - step: end\n    tool: {kind: noop}\n"
    )
    process = start("run", playbook(text, "paused"), "--json")
    wait_for(lambda: (folder / "waiting").exists())
    assert noetl("pause", "last", "--json").json["status"] == "paused"
    (folder / "go").touch()
    wait_for(lambda: noetl("replay", "last", "--json").json["steps"]["start"]["status"] == "success")
    assert process.poll() is None
    assert noetl("resume", "last", "--json").json["status"] == "running"
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert json.loads(out)["status"] == "success"


def test_a_control_command_does_not_run_the_effects_itself(noetl, playbook, start, folder):
    process = start("run", playbook(TWO_WAYS, "two"))
    wait_for(lambda: (folder / "waiting").exists())
    process.kill()
    process.wait()
    assert noetl("signal", "last", "--set", "go=true").code == 0
    for command in ("status", "why", "events", "replay"):
        assert noetl(command, "last").code == 0
    for command in ("status", "why"):
        assert "the process that ran it has ended; `noetl resume" in noetl(command, "last").err
    assert not (folder / "go").exists()
    answer = noetl("resume", "last", "--json")
    assert answer.json["status"] == "success", answer.err
    assert (folder / "go").exists()


def test_logs_are_printed_filtered_and_followed(noetl, playbook):
    text = """\
workflow:
  - step: start
    tool:
      - {name: one, kind: python, code: "import sys; print('hello'); print('WARNING: careful', file=sys.stderr)"}
      - {name: two, kind: python, code: "print('colors ' + chr(27) + '[31mred' + chr(27) + '[0m')"}
"""
    ran = noetl("run", playbook(text), "--json").json
    lines = noetl("logs", ran["execution_id"], "--json").lines
    assert [(line["task"], line["stream"], line["text"]) for line in lines] == [
        ("one", "stdout", "hello"),
        ("one", "stderr", "WARNING: careful"),
        ("two", "stdout", "colors \x1b[31mred\x1b[0m"),
    ]
    shown = noetl("logs", "last", "--follow").out
    assert "start.one  hello" in shown and "colors red" in shown and "\x1b" not in shown
    assert [line["text"] for line in noetl("logs", "last", "--json", "--level", "warning").lines] == [
        "WARNING: careful"
    ]
    assert [line["text"] for line in noetl("logs", "last", "--json", "--search", "RED").lines] == [lines[2]["text"]]
    assert noetl("logs", "12345").code == 2

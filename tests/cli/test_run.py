"""`noetl run`: a playbook from a file to an exit code."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time

import pytest

NOOP = """\
workflow:
  - step: start
    tool: {kind: noop}
"""

GREET = """\
workload:
  who: world
  deep: {a: 1, b: 2}
workflow:
  - step: start
    tool:
      - name: greet
        kind: python
        input: {who: "{{ workload.who }}", deep: "{{ workload.deep }}"}
        code: |
          print("working for", who)
          result = {"who": who, "deep": deep}
    next:
      arcs:
        - step: end
          set: {ctx.seen: "{{ output.data.who }}"}
  - step: end
    tool:
      - name: say
        kind: python
        input: {who: "{{ start.who }}", deep: "{{ start.deep }}"}
        code: |
          result = {"hello": who, "deep": deep}
"""

FAILING = """\
workflow:
  - step: start
    tool:
      - name: break_it
        kind: python
        code: |
          raise ValueError("no such luck")
"""

SLOW = """\
workflow:
  - step: start
    tool: {kind: noop}
    next: {arcs: [{step: sleep}]}
  - step: sleep
    tool:
      - name: nap
        kind: python
        code: |
          import time
          print("asleep", flush=True)
          time.sleep(60)
"""


def test_a_run_that_succeeds_exits_with_0_and_prints_its_output(noetl, playbook):
    answer = noetl("run", playbook(GREET))
    assert answer.code == 0
    assert answer.json == {"hello": "world", "deep": {"a": 1, "b": 2}}
    assert "success" in answer.err


def test_the_json_document_has_the_documented_fields(noetl, playbook):
    answer = noetl("run", playbook(GREET), "--json", "--quiet")
    document = answer.json
    assert answer.code == 0
    assert answer.err == ""
    assert set(document) >= {"execution_id", "path", "status", "output", "ctx", "error", "duration_ms", "steps"}
    assert document["path"] == "tests/sample"
    assert document["status"] == "success"
    assert document["error"] is None
    assert document["ctx"] == {"seen": "world"}
    assert set(document["output"]) >= {"status", "data", "ref", "error"}
    assert document["output"]["status"] == "ok"
    assert document["output"]["data"]["hello"] == "world"
    assert document["duration_ms"] >= 0
    steps = [{key: step[key] for key in ("step", "status", "runs", "attempts")} for step in document["steps"]]
    assert steps == [
        {"step": "start", "status": "success", "runs": 1, "attempts": 1},
        {"step": "end", "status": "success", "runs": 1, "attempts": 1},
    ]


def test_a_run_that_fails_exits_with_1_and_prints_the_reason(noetl, playbook):
    answer = noetl("run", playbook(FAILING))
    assert answer.code == 1
    assert answer.out == ""
    assert "no such luck" in answer.err
    assert "Traceback" not in answer.err.splitlines()[0]
    answer = noetl("run", playbook(FAILING), "--json")
    assert answer.code == 1
    assert answer.json["status"] == "failed"
    assert "no such luck" in answer.json["error"]["message"]
    assert answer.json["output"]["status"] == "error"


def test_payload_and_set_are_merged_into_the_workload(noetl, playbook, folder):
    file = playbook(GREET)
    (folder / "in.json").write_text('{"who": "file", "deep": {"b": 5}}')
    (folder / "in.yaml").write_text("who: yaml\n")
    run = lambda *words: noetl("run", file, "--json", *words).json["output"]["data"]  # noqa: E731
    assert run("--payload", '{"who": "Ada"}') == {"hello": "Ada", "deep": {"a": 1, "b": 2}}
    assert run("--payload", "@in.json") == {"hello": "file", "deep": {"a": 1, "b": 5}}
    assert run("--payload", "@in.yaml") == {"hello": "yaml", "deep": {"a": 1, "b": 2}}
    assert run("--set", "deep.a=7", "--set", "who=on") == {"hello": "on", "deep": {"a": 7, "b": 2}}
    assert run("--set", "workload.deep.a=7")["deep"] == {"a": 7, "b": 2}  # as other runtimes write it
    assert run("--payload", "@in.json", "--set", "deep.b=[x, 1]")["deep"] == {"a": 1, "b": ["x", 1]}


@pytest.mark.parametrize(
    "words",
    [
        ("--payload", "{"),
        ("--payload", "[1]"),
        ("--payload", "@missing.json"),
        ("--set", "nothing"),
        ("--set", "=3"),
        ("--set", "a..b=3"),
        ("--timeout", "0"),
        ("--timeout", "soon"),
    ],
)
def test_bad_arguments_are_usage_errors_in_one_line_and_nothing_runs(noetl, playbook, words):
    answer = noetl("run", playbook(NOOP), *words)
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.count("\n") == 1
    assert noetl("executions", "--json").json == []


def test_the_output_of_tools_is_written_to_stderr(noetl, playbook):
    answer = noetl("run", playbook(GREET))
    assert "working for world" in answer.err
    assert "working for" not in answer.out
    assert "working for" not in noetl("run", playbook(GREET), "--quiet").err


def test_an_invalid_playbook_exits_with_3_and_names_every_position(noetl, playbook):
    answer = noetl(
        "run", playbook("workflow:\n  - step: start\n    tool: {kind: nope}\n    next: {arcs: [{step: x}]}\n")
    )
    assert answer.code == 3
    assert answer.out == ""
    assert "sample.yaml:6:18: error:" in answer.err
    assert "sample.yaml:7:26: error:" in answer.err
    assert noetl("executions", "--json").json == []


@pytest.mark.parametrize(
    ("name", "content", "code", "words"),
    [
        ("missing.yaml", None, 2, "no such file"),
        ("empty.yaml", b"", 3, "no content"),
        ("binary.yaml", bytes(range(256)), 3, "not valid UTF-8"),
        ("large.yaml", b"a" * 50_000_000, 3, "MB"),
        ("list.yaml", b"- 1\n- 2\n", 3, "list.yaml:1:1"),
    ],
)
def test_a_file_that_is_not_a_playbook_is_a_one_line_error(noetl, folder, name, content, code, words):
    if content is not None:
        (folder / name).write_bytes(content)
    answer = noetl("run", name)
    assert answer.code == code
    assert answer.out == ""
    assert words in answer.err
    assert name in answer.err.splitlines()[0]
    assert "Traceback" not in answer.err


def test_a_folder_and_an_unreadable_file_are_one_line_errors(noetl, folder, monkeypatch):
    (folder / "some.yaml").mkdir()
    answer = noetl("run", "some.yaml")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "folder" in answer.err

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    answer = noetl("run", "locked.yaml")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "permission denied" in answer.err


def test_a_large_output_is_printed_like_a_small_one(noetl, playbook):
    large = "workflow:\n  - step: start\n    tool: {kind: python, code: 'result = [\"x\" * 100] * 5000'}\n"
    answer = noetl("run", playbook(large))
    assert answer.json == ["x" * 100] * 5000
    document = noetl("run", playbook(large), "--json").json
    assert document["output"]["data"] == ["x" * 100] * 5000
    assert document["output"]["ref"]["meta"]["bytes"] > 500_000
    assert noetl("status", "last", "--json").json == document


def test_a_playbook_is_read_from_stdin(start, playbook, folder):
    process = start("run", "-", "--json", stdin=subprocess.PIPE)
    out, _ = process.communicate((folder / playbook(NOOP)).read_text(), timeout=30)
    assert process.returncode == 0
    assert json.loads(out)["status"] == "success"


@pytest.mark.parametrize("registered", [False, True], ids=["a file", "a registered playbook"])
def test_a_playbook_is_compiled_once(noetl, playbook, monkeypatch, registered):
    from noetl.core.language import compile as compiler

    name = playbook(NOOP)
    if registered:
        name = noetl("register", name, "--json").json[0]["path"]
    compilations = []
    compile_text = compiler._compile

    def count(*arguments):
        compilations.append(arguments)
        return compile_text(*arguments)

    monkeypatch.setattr(compiler, "_compile", count)
    assert noetl("run", name).code == 0
    assert len(compilations) == 1


def test_a_timeout_cancels_the_execution_and_exits_with_124(noetl, playbook):
    began = time.monotonic()
    answer = noetl("run", playbook(SLOW), "--timeout", "0.3", "--json")
    assert time.monotonic() - began < 20
    assert answer.code == 124
    assert answer.json["status"] == "cancelled"
    assert "timed out" in json.dumps(answer.json["error"])
    assert noetl("status", "last", "--json").json["status"] == "cancelled"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_recorded_as_cancelled(noetl, start, playbook, number):
    process = start("run", playbook(SLOW), "--json")
    said = []
    for line in process.stderr:
        said.append(line)
        if "asleep" in line:
            break
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, "".join(said) + err
    assert json.loads(out)["status"] == "cancelled"
    assert "Traceback" not in err
    names = [event["name"] for event in noetl("events", "last", "--json").lines]
    assert "execution.cancelled" in names
    assert names[-2:] == ["workflow.finished", "playbook.processed"]
    assert noetl("executions", "--json").json[0]["status"] == "cancelled"


def test_two_runs_side_by_side_both_work(start, playbook):
    file = playbook(GREET)
    runs = [start("run", file, "--json", "--set", f"who=run{number}") for number in range(2)]
    for number, process in enumerate(runs):
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert json.loads(out)["output"]["data"]["hello"] == f"run{number}"


def test_another_store_can_be_given(noetl, playbook, folder):
    assert noetl("run", playbook(NOOP), "--store", "mine.db").code == 0
    assert (folder / "mine.db").exists()
    assert noetl("executions", "--json").json == []
    assert len(noetl("executions", "--json", "--store", "mine.db").json) == 1
    assert noetl("run", playbook(NOOP), "--store", "memory:").code == 0


def test_a_home_that_is_not_writable_is_a_one_line_error(noetl, playbook, folder, monkeypatch):
    (folder / "file").write_text("")
    monkeypatch.setenv("NOETL_HOME", str(folder / "file" / "home"))
    answer = noetl("run", playbook(NOOP))
    assert answer.code in (1, 2, 4)
    assert answer.err.count("\n") == 1
    assert "internal error" not in answer.err


def cpu_seconds(*command: str) -> float:
    """The least CPU time that a command took over a few runs, bytecode compiled."""
    warm = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    spent = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], capture_output=True, check=True, env=warm)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(spent)


@pytest.mark.serial
def test_a_one_step_run_takes_less_than_400_ms_of_cpu(playbook):
    # On a machine whose cores are busy with other things the same work takes more CPU time: then
    # the libraries a run cannot do without are the measure.
    libraries = cpu_seconds("-c", "import asyncio, click, jinja2.sandbox, msgspec, sqlite3, yaml")
    assert cpu_seconds("-m", "noetl.clictl", "run", playbook(NOOP)) < max(0.400, 2.5 * libraries)


def test_a_one_step_run_imports_nothing_it_does_not_use(playbook):
    code = (
        "import sys\nfrom noetl.cli import app as program\n"
        f"assert program.run(['run', '-q', {playbook(NOOP)!r}]) == 0\n"
        "heavy = {'rich', 'aiohttp', 'duckdb', 'pyarrow', 'psycopg', 'asyncpg', 'nats', 'obstore', 'fastapi',"
        " 'pydantic', 'cryptography', 'platformdirs', 'tomllib'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr

"""The embedded engine as a program: files, stores, interruption, timeouts, two processes, restarts."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import pytest

import noetl
from noetl.core.model.events import ExecutionCancelled, WorkerLost
from noetl.embedded import open_local
from noetl.errors import NotFound, RequestRefused, StoreUnavailable

HELLO = """apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hello, path: e2e/hello}
workload: {who: world}
workflow:
  - step: start
    tool: {kind: python, input: {who: "{{ workload.who }}"}, code: "result = f'hello {who}'"}
"""

SLOW = """apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: slow}
workflow:
  - step: start
    tool: {kind: python, code: "import time; time.sleep(60)"}
"""


def test_a_text_a_file_and_a_path_run(tmp_path, monkeypatch):
    monkeypatch.setenv("NOETL_HOME", str(tmp_path / "home"))
    file = tmp_path / "hello.yaml"
    file.write_text(HELLO)
    assert noetl.run(HELLO).data == "hello world"
    assert noetl.run(file, {"who": "file"}).data == "hello file"
    monkeypatch.chdir(tmp_path)
    assert noetl.run("hello").data == "hello world"
    assert noetl.run("hello.yaml", store="memory:").data == "hello world"


def test_the_catalog_takes_precedence_over_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e2e").mkdir()
    (tmp_path / "e2e" / "hello.yaml").write_text(HELLO.replace("hello {who}", "from the file"))

    async def scenario():
        from noetl.server.orchestrator.catalog import Source

        async with await open_local(home=tmp_path / "home") as engine:
            before = await engine.run("e2e/hello")
            await engine.orchestrator.catalog.register(Source(HELLO), 1.0)
            return before.data, (await engine.run("e2e/hello")).data

    assert asyncio.run(scenario()) == ("from the file", "hello world")


def test_an_unknown_playbook_is_a_one_line_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFound, match="nowhere"):
        noetl.run("nowhere.yaml", store="memory:")
    (tmp_path / "folder").mkdir()
    with pytest.raises(RequestRefused, match="folder"):
        noetl.run("folder", store="memory:")
    (tmp_path / "binary.yaml").write_bytes(b"apiVersion: \xff\xfe")
    with pytest.raises(RequestRefused, match="UTF-8"):
        noetl.run("binary.yaml", store="memory:")
    with (tmp_path / "huge.yaml").open("wb") as huge:
        huge.truncate(50_000_000)
    with pytest.raises(RequestRefused, match="larger than"):
        noetl.run("huge.yaml", store="memory:")
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(noetl.InvalidPlaybook):
        noetl.run("empty.yaml", store="memory:")
    with pytest.raises(RequestRefused, match="unknown event store"):
        noetl.run(HELLO, store="mongodb://x")
    (tmp_path / "not.db").write_text("this is no database " * 1000)
    with pytest.raises(StoreUnavailable, match=r"not\.db"):
        noetl.run(HELLO, store=str(tmp_path / "not.db"))


def test_run_inside_an_event_loop_names_the_async_function():
    async def scenario():
        with pytest.raises(noetl.NoetlError, match="run_async"):
            noetl.run(HELLO)
        return (await noetl.run_async(HELLO, store="memory:")).data

    assert asyncio.run(scenario()) == "hello world"


def test_a_run_that_takes_too_long_is_cancelled_and_recorded(tmp_path):
    async def scenario():
        async with await open_local(home=tmp_path) as engine:
            began = time.monotonic()
            result = await engine.run(SLOW, timeout=0.3)
            assert time.monotonic() - began < 8
            events = await engine.orchestrator.events(result.execution_id)
            return result, events

    result, events = asyncio.run(scenario())
    assert (result.status, result.timed_out) == ("cancelled", True)
    assert "timed_out" not in result.document()
    (cancelled,) = [recorded.body for recorded in events if isinstance(recorded.body, ExecutionCancelled)]
    assert "0.3 s" in cancelled.reason


def test_the_same_key_runs_once(tmp_path):
    async def scenario():
        async with await open_local(home=tmp_path) as engine:
            first = await engine.run(HELLO, key="order-1")
            again = await engine.run(HELLO, key="order-1")
            return first, again

    first, again = asyncio.run(scenario())
    assert first.execution_id == again.execution_id
    assert again.data == "hello world"


PROGRAM = """
import asyncio, json, sys
from noetl.embedded import open_local

async def main():
    async with await open_local(home=sys.argv[1]) as engine:
        result = await engine.run(sys.argv[2], json.loads(sys.argv[3]), on_start=lambda id: print(id, flush=True))
        print(json.dumps(result.document()), flush=True)

try:
    asyncio.run(main())
except KeyboardInterrupt:
    sys.exit(130)
"""


def start(home, text, payload=None):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(home), text, json.dumps(payload or {})],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def look(home, execution_id):
    async def scenario():
        async with await open_local(home=home, work=False) as engine:
            events = await engine.orchestrator.events(execution_id)
            return await engine.result(execution_id), [recorded.body for recorded in events]

    return asyncio.run(scenario())


def test_an_interrupt_is_recorded_and_the_log_stays_readable(tmp_path):
    process = start(tmp_path, SLOW)
    execution_id = process.stdout.readline().strip()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130, errors
    result, bodies = look(tmp_path, execution_id)
    assert result.status == "cancelled"
    assert [body.reason for body in bodies if isinstance(body, ExecutionCancelled)] == ["interrupted"]


def test_two_processes_can_share_one_home(tmp_path):
    loop = """apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: both}
workload: {n: 60}
workflow:
  - step: start
    loop: {in: "{{ range(workload.n) | list }}", iterator: n, spec: {mode: parallel, max_in_flight: 4}}
    tool: {kind: noop, set: {iter.a: "{{ iter.n }}"}}
    next: {arcs: [{step: end, set: {ctx.n: "{{ output.loop.succeeded }}"}}]}
  - {step: end, tool: {kind: noop}}
"""
    processes = [start(tmp_path, loop) for _ in range(3)]
    for process in processes:
        out, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        document = json.loads(out.splitlines()[1])
        assert (document["status"], document["ctx"]) == ("success", {"n": 60})


def test_a_killed_run_is_resumed_where_it_stopped(tmp_path):
    text = """apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: resumed}
workload: {file: ""}
workflow:
  - step: start
    tool: {kind: python, input: {file: "{{ workload.file }}"}, code: "open(file, 'a').write('start\\\\n')"}
    next: {arcs: [{step: wait}]}
  - step: wait
    tool:
      kind: python
      input: {file: "{{ workload.file }}"}
      code: |
        import os, time
        open(file, 'a').write('wait\\n')
        if not os.path.exists(file + '.go'):
            time.sleep(60)
        result = 'went on'
"""
    trace = tmp_path / "trace"
    process = start(tmp_path / "home", text, {"file": str(trace)})
    execution_id = process.stdout.readline().strip()
    deadline = time.monotonic() + 20
    while not (trace.exists() and "wait" in trace.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=20)
    (tmp_path / "trace.go").write_text("")

    async def scenario():
        async with await open_local(home=tmp_path / "home", resume=True) as engine:
            await engine.orchestrator.wait(execution_id, 20)
            log = [each.body for each in await engine.orchestrator.events(execution_id)]
            return await engine.result(execution_id), [body for body in log if isinstance(body, WorkerLost)]

    result, lost = asyncio.run(scenario())
    assert (result.status, result.data) == ("success", "went on")
    assert [body.stopped for body in lost] == [True]  # a killed `noetl run` is no evidence against the run
    assert trace.read_text().splitlines() == ["start", "wait", "wait"]

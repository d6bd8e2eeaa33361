"""Class "trust model": tasks do not outlive their call, do not share interpreters, and do not read the installation."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from noetl.runtime.resources import close_loop_resources
from noetl.testing import run_tool
from noetl.tools.python.process_pool import PythonPool


def ends(pid: int, seconds: float = 5.0) -> bool:
    """Whether a process ends in time; a zombie has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                if file.read().rpartition(b")")[2].split()[0] == b"Z":
                    return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize(
    "command",
    [
        "setsid sleep 600 > /dev/null 2>&1 & echo $!",
        "(setsid sleep 600 > /dev/null 2>&1 & echo $!)",
        "nohup setsid sh -c 'sleep 600' > /dev/null 2>&1 & echo $!",
        "(setsid sh -c 'sleep 600 & echo $!; wait' 2> /dev/null &) | head -1",
    ],
)
def test_processes_in_other_sessions_end_with_their_shell_task(command):
    outcome = run_tool("shell", {"command": command})
    assert outcome.error is None
    assert ends(int(outcome.data["stdout"].split()[0]))


DAEMON = """
import subprocess
process = subprocess.Popen(["setsid", "sleep", "600"], start_new_session=True)
result = process.pid
"""
DOUBLE_FORK = """
import os
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(write, str(os.getpid()).encode())
        import time
        time.sleep(600)
    os._exit(0)
result = int(os.read(read, 20))
"""


@pytest.mark.parametrize("code", [DAEMON, DOUBLE_FORK], ids=["popen", "double fork"])
def test_processes_in_other_sessions_end_with_their_python_task(code):
    outcome = run_tool("python", {"code": code})
    assert outcome.error is None, outcome.error
    assert ends(outcome.data)


def test_a_killed_shell_task_takes_its_sessions_along(tmp_path):
    file = tmp_path / "pid"
    outcome = run_tool("shell", {"command": f"setsid sleep 600 & echo $! > {file}; sleep 600"}, timeout=1.0)
    assert outcome.error.kind == "timeout"
    assert ends(int(file.read_text()))


def pids(calls: list[tuple[str, str, str | None]]) -> list[int]:
    """The process that handles each of these calls (code, owner, isolation), one after the other."""

    async def run() -> list[int]:
        pool = PythonPool(cores=2)
        found = []
        for code, owner, isolation in calls:
            request = {"code": code + "\nimport os\nresult = os.getpid()", "inputs": {}, "scopes": {}, "limits": {}}
            reply = await pool.call(request, owner=owner, isolation=isolation)
            found.append(int(reply.body))
        await pool.close()
        await close_loop_resources()
        return found

    return asyncio.run(run())


def test_processes_are_not_shared_between_playbooks():
    first, second, third, shared, other_shared = pids(
        [("", "a", None), ("", "a", None), ("", "b", None), ("", "a", "shared"), ("", "b", "shared")]
    )
    assert first == second != third
    assert shared == other_shared


@pytest.mark.parametrize(
    "code",
    [
        "import builtins; builtins.print = None",
        "import time; time.time = lambda: 0",
        "import os; os.getcwd = lambda: '/'",
        "import sys; sys.settrace(lambda *a: None)",
        "import sys; sys.meta_path.insert(0, type('F', (), {'find_spec': lambda *a: None})())",
        "import sys; sys.excepthook = print",
        "import builtins; builtins.x = 1",
    ],
)
def test_a_process_whose_interpreter_was_changed_is_not_used_again(code):
    before, changed, after = pids([("", "a", None), (code, "a", None), ("import csv", "a", None)])
    assert before == changed != after


def test_an_ordinary_call_does_not_replace_the_process():
    first, *others = pids([("import csv, decimal, json, re, datetime", "a", None)] * 3)
    assert set(others) == {first}


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every environment")
def test_a_task_cannot_read_the_environment_of_its_worker():
    outcome = run_tool("python", {"code": "import os\nresult = open(f'/proc/{os.getppid()}/environ').read()"})
    assert outcome.error is not None

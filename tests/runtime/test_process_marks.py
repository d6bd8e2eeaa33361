"""All processes of a tool die with their worker, and a resume proves it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from noetl.runtime import process_marks

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")

PLAYBOOK = """apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: orphan}
workflow:
  - step: start
    tool:
      kind: shell
      command: |
        if [ -e "$FOLDER/again" ]; then
          pid=$(cat "$FOLDER/pid")
          if grep -qs sleep "/proc/$pid/cmdline"; then echo alive; else echo dead; fi
          exit 0
        fi
        CLEAR setsid sh -c 'echo $$ > "$0/pid.new"; mv "$0/pid.new" "$0/pid"; exec sleep 600' "$FOLDER" &
        wait
      env: {FOLDER: "{{ workload.folder }}"}
workload: {folder: ""}
"""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.fixture(params=["", "env -i"], ids=["marked", "environment cleared"])
def killed_run(request, tmp_path):
    """Start `noetl run`, wait for the process that left its group, and kill the run with SIGKILL."""
    file = tmp_path / "orphan.yaml"
    file.write_text(PLAYBOOK.replace("CLEAR", request.param))
    environment = {**os.environ, "NOETL_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "noetl", "run", str(file), "--set", f"folder={tmp_path}", "--quiet"]

    def start(before_kill: Callable[[int], None] = lambda pid: None) -> int:
        run = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until((tmp_path / "pid").exists)
        before_kill(run.pid)
        run.send_signal(signal.SIGKILL)
        run.wait()
        return int((tmp_path / "pid").read_text())

    yield start, environment
    if (tmp_path / "pid").exists() and alive(pid := int((tmp_path / "pid").read_text())):
        os.kill(pid, signal.SIGKILL)


def test_a_process_that_left_its_group_dies_with_a_killed_worker(killed_run):
    start, _ = killed_run
    pid = start()
    until(lambda: not alive(pid))


def test_a_resume_kills_what_a_killed_run_left_before_the_task_runs_again(killed_run, tmp_path):
    start, environment = killed_run

    def kill_watcher(run: int) -> None:
        for child in Path(f"/proc/{run}/task/{run}/children").read_text().split():
            if b"watcher" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\\0"):
                os.kill(int(child), signal.SIGKILL)

    pid = start(kill_watcher)
    assert alive(pid)
    (tmp_path / "again").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "noetl", "resume", "last", "--json"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '"dead' in done.stdout and not alive(pid)


def test_only_processes_with_the_mark_are_killed():
    def sleeper(mark: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sleep", "600"], env={**os.environ, process_marks.VARIABLE: mark})

    ours, other = sleeper("mark-of-this-test"), sleeper("mark-of-this-test-2")
    try:
        until(lambda: process_marks.marked("mark-of-this-test") == [ours.pid])
        assert ours.pid in process_marks.kill_marked("mark-of-this-test")
        assert ours.wait() == -signal.SIGKILL and other.poll() is None
    finally:
        other.kill()
        other.wait()

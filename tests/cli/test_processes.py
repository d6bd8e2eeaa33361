"""`noetl server`, `noetl worker` and `noetl dev`, as processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.serving import free_port


class Shell:
    """Runs `noetl` with a home and a port of its own."""

    def __init__(self, home: Path) -> None:
        self.port = free_port()
        self.environ = {**os.environ, "NOETL_HOME": str(home), "NOETL_SERVER_PORT": str(self.port)}

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "noetl.clictl", *words],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def noetl(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell("worker", "stop")
    shell("server", "stop")


def test_a_server_and_workers_live_in_the_background(noetl: Shell):
    assert noetl("server", "status").returncode == 4
    assert noetl("server", "start", "--background").returncode == 0
    status = json.loads(noetl("server", "status", "--json").stdout)
    assert (status["running"], status["ready"], status["url"]) == (True, True, f"http://127.0.0.1:{noetl.port}")
    again = noetl("server", "start")
    assert again.returncode == 2
    assert "runs already" in again.stderr

    assert noetl("worker", "start", "--count", "2", "--background").returncode == 0
    assert len(json.loads(noetl("worker", "status", "--json").stdout)) == 2
    assert noetl("worker", "scale", "1").returncode == 0
    assert len(json.loads(noetl("worker", "status", "--json").stdout)) == 1
    assert noetl("worker", "stop").returncode == 0
    assert noetl("worker", "status").returncode == 4
    assert noetl("server", "stop").returncode == 0
    assert json.loads(noetl("server", "status", "--json").stdout)["running"] is False


def test_a_server_that_cannot_come_up_says_why(noetl: Shell, tmp_path: Path):
    (tmp_path / "noetl.db").write_text("this is not a database, it is a letter to whoever opens it")
    started = noetl("server", "start", "--background")
    assert started.returncode == 4
    assert "choose another --store" in started.stderr
    assert "Traceback" not in started.stderr


def test_workers_without_a_server_say_what_they_need(noetl: Shell):
    started = noetl("worker", "start")
    assert started.returncode == 2
    assert "NOETL_TOKEN" in started.stderr


def test_dev_runs_everything_until_it_is_interrupted(noetl: Shell):
    process = subprocess.Popen(
        [sys.executable, "-m", "noetl.clictl", "dev", "--workers", "1"],
        env=noetl.environ,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        assert f"NoETL is at http://127.0.0.1:{noetl.port}" in process.stderr.readline()
        assert json.loads(noetl("server", "status", "--json").stdout)["ready"] is True
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 0
    deadline = time.monotonic() + 5
    while noetl("server", "status").returncode == 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert noetl("server", "status").returncode == 4

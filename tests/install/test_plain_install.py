"""The built wheel, installed as a user installs it, is complete; tests/pages types the commands of the README."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from plain_install import ROOT, build_wheel, install

from tests.waiting import until

OUTSIDE = {
    "postgres": """\
      - {name: query, kind: postgres, auth: "{{ workload.dsn }}", command: "SELECT 41 + 1 AS answer"}
""",
    "nats": """\
      - {name: write, kind: nats, url: "{{ workload.nats }}", action: kv_put, bucket: plain, key: a, value: 42}
""",
}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Installed:
    """The commands of the environment, with a data folder and a working folder of their own."""

    def __init__(self, bin: Path, folder: Path) -> None:
        self.bin, self.work = bin, folder / "work"
        self.work.mkdir()
        self.environ = {
            "PATH": f"{bin}:/usr/bin:/bin",
            "HOME": str(folder),
            "NOETL_HOME": str(folder / "home"),
            "NOETL_SERVER_PORT": str(free_port()),
            "PYTHONPATH": "",
        }

    def run(self, command: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.work,
            env={**self.environ, **more},
            capture_output=True,
            text=True,
            timeout=60,
        )


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def commands(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheel, tmp_path_factory.mktemp("plain") / "env")


@pytest.fixture
def installed(commands: Path, tmp_path: Path) -> Iterator[Installed]:
    found = Installed(commands, tmp_path)
    yield found
    found.run("noetl worker stop; noetl server stop")


def test_the_quickstart_runs(installed: Installed):
    answer = installed.run(f"{installed.bin}/python {ROOT}/examples/quickstart/run.py --set build=$PWD")
    assert answer.returncode == 0, answer.stderr
    assert '"orders":600' in answer.stdout


def test_dev_serves_the_page(installed: Installed):
    process = subprocess.Popen(
        [installed.bin / "noetl", "dev"],
        cwd=installed.work,
        env=installed.environ,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        first = next(line for line in process.stderr if "NoETL is running" in line)
        url = first.split(" at ")[1].split()[0]
        with urllib.request.urlopen(url) as page:
            assert b"<html" in page.read()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize("kind", OUTSIDE)
def test_kinds_for_other_servers_need_no_extra(installed: Installed, database: str, nats_server: str, kind: str):
    head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: outside}\n"
    text = f"{head}workload: {{dsn: '{database}', nats: '{nats_server}'}}\nworkflow:\n  - step: start\n    tool:\n"
    (installed.work / "outside.yaml").write_text(text + OUTSIDE[kind])
    answer = installed.run("noetl run outside.yaml")
    assert answer.returncode == 0, answer.stderr


def test_doctor_agrees_that_the_install_is_complete(installed: Installed):
    found = {one["check"]: one for one in json.loads(installed.run("noetl doctor --json").stdout)}
    assert found["packages"]["status"] == "ok"
    assert found["extras"]["detail"].startswith("none; `pip install 'noetl-engine[aws,")


def test_a_missing_extra_is_one_line_with_the_command(installed: Installed):
    answer = installed.run("noetl server start", NOETL_TRACES="console")
    assert answer.returncode != 0
    assert "pip install 'noetl-engine[otel]'" in answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1, answer.stderr


def test_a_missing_package_is_one_line_with_the_command(installed: Installed, tmp_path: Path):
    """As after an update of a checkout without `make run`."""
    packages = next((installed.bin.parent / "lib").glob("python*")) / "site-packages"
    hidden = [packages / name for name in os.listdir(packages) if name.startswith("uvicorn")]
    for each in hidden:
        each.rename(tmp_path / each.name)
    try:
        answer = installed.run("noetl server start")
        doctor = {one["check"]: one for one in json.loads(installed.run("noetl doctor --json").stdout)}
    finally:
        for each in hidden:
            (tmp_path / each.name).rename(each)
    assert "uvicorn is not installed: pip install --upgrade noetl-engine" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert doctor["packages"]["status"] == "failed"
    assert "uvicorn" in doctor["packages"]["detail"]


def test_several_workers_run_in_the_terminal_like_one(installed: Installed):
    assert installed.run("noetl server start --background").returncode == 0
    process = subprocess.Popen(
        [installed.bin / "noetl", "worker", "start", "--count", "2"],
        cwd=installed.work,
        env=installed.environ,
        stderr=subprocess.DEVNULL,
    )
    try:
        asyncio.run(until(lambda: len(json.loads(installed.run("noetl worker status --json").stdout)) == 2))
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
    assert json.loads(installed.run("noetl worker status --json").stdout) == []


def test_pytest_loads_the_plug_in_of_the_installed_package(wheel: Path, tmp_path: Path):
    """By its entry point, without an option and without the repository on the path."""
    project = Installed(install(wheel, tmp_path / "env", "pytest"), tmp_path)
    assert project.run("noetl new hello --template basic").returncode == 0
    project.work /= "hello"
    (project.work / "test_hello.py").write_text(
        "def test_hello(noetl_playbook):\n    assert noetl_playbook('hello.yaml').status == 'success'\n"
    )
    ran = project.run("python -m pytest -rA -p no:cacheprovider")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "plugins: noetl-engine" in ran.stdout
    assert "PASSED hello.test.yaml::" in ran.stdout
    assert "PASSED test_hello.py::test_hello" in ran.stdout
    assert str(ROOT) not in ran.stdout

"""The units of systemd: installed and started by a systemd in namespaces of its own, where root can create them.

Elsewhere the units are installed below a folder and verified by systemd-analyze, and the commands of the server unit run with its
environment.
"""

from __future__ import annotations

import asyncio
import configparser
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from devcluster.servers import free_port
from noetl.settings import TABLE
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "deploy" / "systemd"
NOETL = Path(sys.executable).parent / "noetl"


def unit(name: str) -> dict[str, list[str]]:
    """The section Service of a unit; a key can be repeated."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in (UNITS / name).read_text().splitlines():
        if line.startswith("["):
            section = line
        elif section == "[Service]" and "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder into which the units are installed twice, so that the second run keeps the settings."""
    root = tmp_path / "root"
    root.mkdir()
    script = ["sh", str(UNITS / "install.sh"), str(root)]
    subprocess.run(script, check=True, capture_output=True)
    (root / "etc/noetl/noetl.env").write_text("NOETL_LOG_FORMAT=json\n")
    subprocess.run(script, check=True, capture_output=True)
    return root


def test_the_script_installs_units_and_keeps_settings(root: Path):
    assert (root / "etc/noetl/noetl.env").read_text() == "NOETL_LOG_FORMAT=json\n"
    assert (root / "etc/systemd/system/noetl-worker@.service").exists()
    variables = {setting.variable for setting in TABLE}
    for file in (root / "etc/noetl").iterdir():
        assert file.stat().st_mode & 0o007 == 0
        names = [line.lstrip("#").partition("=")[0] for line in file.read_text().splitlines() if "=" in line]
        assert set(names) <= variables


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", ["noetl-server.service", "noetl-worker@default.service"])
def test_systemd_accepts_the_units(root: Path, tmp_path: Path, name: str):
    text = (root / "etc/systemd/system" / name.replace("default", "")).read_text()
    copy = tmp_path / name
    copy.write_text(text.replace("/opt/noetl/bin/noetl", str(NOETL)))
    answer = subprocess.run(["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True)
    problems = [line for line in answer.stderr.splitlines() if "noetl" in line]
    assert not problems


def test_the_commands_of_the_server_unit_start_and_stop_a_server(root: Path, tmp_path: Path):
    service = unit("noetl-server.service")
    port = free_port()
    environ = {
        **os.environ,
        **dict(each.split("=", 1) for each in service["Environment"]),
        **dict(line.split("=", 1) for line in (root / "etc/noetl/noetl.env").read_text().splitlines()),
        "NOETL_HOME": str(tmp_path / "home"),
        "NOETL_SERVER_PORT": str(port),
    }

    def command(key: str) -> list[str]:
        return service[key][0].replace("/opt/noetl/bin/noetl", str(NOETL)).split()

    subprocess.run(command("ExecStartPre"), env=environ, check=True, capture_output=True)
    process = subprocess.Popen(command("ExecStart"), env=environ, stderr=subprocess.PIPE)
    try:

        def ready() -> Any:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz") as response:
                    return response.status == 200
            except OSError:
                return False

        asyncio.run(until(ready))
    finally:
        process.send_signal(signal.SIGTERM)  # KillSignal of systemd
        process.communicate(timeout=60)
    assert process.returncode == 0


HIDDEN = ("/root/", "/home/", "/tmp/", "/var/tmp/")  # the units see neither home folders nor temporary files
PACKAGES = f"{ROOT}:{sysconfig.get_path('purelib')}"


def base_python() -> str | None:
    """A Python of this version that the units see, as they must see the packages."""
    names = (f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}", os.path.realpath(sys.executable))
    if any(name.startswith(HIDDEN) for name in PACKAGES.split(":")):
        return None
    return next((name for name in names if Path(name).exists() and not name.startswith(HIDDEN)), None)


def can_boot() -> bool:
    """Whether systemd is installed and its namespaces can be created."""
    if os.geteuid() or not Path("/lib/systemd/systemd").exists() or shutil.which("runuser") is None:
        return False
    mounts = "mount -t tmpfs tmpfs /run && mount -t cgroup2 cgroup2 /sys/fs/cgroup"
    command = ["unshare", "--pid", "--fork", "--mount", "--cgroup", "--propagation", "private", "sh", "-c", mounts]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.skipif(not can_boot() or base_python() is None, reason="systemd cannot run here")
def test_systemd_starts_restarts_and_stops_the_units(tmp_path: Path):
    script = Path(__file__).with_name("systemd_boot.sh")
    command = [script, UNITS, base_python(), PACKAGES, str(free_port()), tmp_path]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=110)
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    stops = [line for line in done.stdout.splitlines() if line.startswith("stop: ")]
    assert lines.get("server") == "ready, user noetl", done.stdout + done.stderr
    task = json.loads(lines["task"])
    assert task["stdout"] == "noetl-worker\n"
    assert "Read-only file system" in task["stderr"]  # a task cannot change the machine
    assert lines["restart"] == "ready"  # after kill -9
    assert stops == ["stop: noetl-worker@default inactive success", "stop: noetl-server inactive success"]
    assert {"noetl 700 /var/lib/noetl", "noetl-worker 700 /var/lib/noetl-worker"} <= set(done.stdout.splitlines())


def test_servers_and_workers_are_different_users_without_privileges():
    server, worker = unit("noetl-server.service"), unit("noetl-worker@.service")
    assert server["User"] != worker["User"]
    for service in (server, worker):
        assert service["NoNewPrivileges"] == ["yes"]
        assert service["CapabilityBoundingSet"] == [""]
        assert service["ProtectSystem"] == ["strict"]


def test_units_are_ini_files():
    for file in UNITS.glob("*.service"):
        configparser.ConfigParser(strict=False, interpolation=None).read_string(file.read_text())

"""The services of the compose file, started as processes in its order, with its commands, environments and health checks.

Names of the network and folders of the containers are replaced by addresses and folders of this machine; nothing else is.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.servers import free_port
from tests.waiting import until

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SERVICES: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text().replace("0o1777", "1023"))["services"]
NOETL = Path(sys.executable).parent / "noetl"

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: composed}
workflow:
  - step: start
    tool: {kind: python, code: "result = [{'row': i, 'text': 'x' * 200} for i in range(2000)]"}
    next: {arcs: [{step: end}]}
  - step: end
    tool: {kind: resolve, ref: "{{ start.ref }}", limit: 3}
"""


class Composed:
    """The processes of the services; each container has its own home."""

    def __init__(self, folder: Path, replaced: dict[str, str]) -> None:
        self.folder, self.replaced = folder, replaced
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.logs: dict[str, Path] = {}

    def text(self, text: str, home: Path) -> str:
        for name, value in {**self.replaced, "/var/lib/noetl": str(home), "$$": "$"}.items():
            text = text.replace(name, value)
        return text

    def prepare(self, service: str, instance: str) -> tuple[list[str], dict[str, str]]:
        """The command of a container and its environment."""
        definition = SERVICES[service]
        home = self.folder / instance
        home.mkdir(exist_ok=True)
        environ = {
            "PATH": f"{NOETL.parent}:/usr/bin:/bin",
            "NOETL_HOME": str(home),  # of the image
            "KEYS_FOLDER": self.replaced["/run/noetl-keys"],
            "NOETL_PRIVATE_NETWORKS": "127.0.0.0/8",
            **{name: self.text(value, home) for name, value in definition.get("environment", {}).items()},
        }
        entrypoint = definition.get("entrypoint", ["sh", str(DEPLOY / "docker" / "entrypoint.sh")])
        return [self.text(word, home) for word in (*entrypoint, *definition.get("command", ()))], environ

    def run(self, service: str) -> None:
        """A service that completes."""
        command, environ = self.prepare(service, service)
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr

    def start(self, service: str, instance: str, **more: str) -> None:
        command, environ = self.prepare(service, instance)
        self.logs[instance] = self.folder / f"{instance}.log"
        with self.logs[instance].open("wb") as log:
            self.running[instance] = subprocess.Popen(command, env={**environ, **more}, stdout=log, stderr=log)

    def healthy(self, service: str, instance: str, **more: str) -> None:
        """Wait for the health check of the service, or of the image."""
        _, environ = self.prepare(service, instance)
        test = SERVICES[service].get("healthcheck", {"test": ["CMD", "noetl", "server", "status"]})["test"]

        def check() -> bool:
            assert self.running[instance].poll() is None, self.logs[instance].read_text()
            return (
                subprocess.run([NOETL, *test[2:]], env={**environ, **more}, capture_output=True, timeout=30).returncode
                == 0
            )

        asyncio.run(until(check, seconds=60))

    def stop(self) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.running.values():
            process.wait(60)


@pytest.fixture
def composed(tmp_path: Path, database: str, nats_server: str) -> Iterator[Composed]:
    ports = {name: free_port() for name in ("server-1", "server-2")}
    found = Composed(
        tmp_path,
        {
            "postgresql://noetl:${POSTGRES_PASSWORD:-noetl}@postgres/noetl": database,
            "nats://nats:4222": nats_server,
            "${NOETL_SECRET_KEY:?set NOETL_SECRET_KEY to 32 random bytes, for example the output of openssl rand -hex 32}": "ab"
            * 32,
            "/run/noetl-keys": str(tmp_path / "keys"),
            "/create-keys.sh": str(DEPLOY / "docker" / "create-keys.sh"),
            "10001:10001": f"{os.getuid()}:{os.getgid()}",
            **{f"{name}:8642": f"127.0.0.1:{port}" for name, port in ports.items()},
        },
    )
    try:
        found.run("keys")
        found.run("migrate")
        for name, port in ports.items():
            found.start(name, name, NOETL_SERVER_PORT=str(port))
        for name, port in ports.items():
            found.healthy(name, name, NOETL_SERVER_PORT=str(port))
        for instance in range(SERVICES["worker"]["deploy"]["replicas"]):
            found.start("worker", f"worker-{instance}")
        for instance in range(SERVICES["worker"]["deploy"]["replicas"]):
            found.healthy("worker", f"worker-{instance}")
        yield found
    finally:
        found.stop()


@pytest.mark.timeout(300)
def test_the_services_run_executions_and_survive_the_loss_of_a_server(composed: Composed, tmp_path: Path):
    file = tmp_path / "composed.yaml"
    file.write_text(PLAYBOOK)
    token = (tmp_path / "keys" / "admin.token").read_text().strip()

    def execute(server: str) -> subprocess.CompletedProcess[str]:
        url = f"http://{composed.replaced[f'{server}:8642']}"
        environ = {"PATH": os.environ["PATH"], "NOETL_HOME": str(tmp_path / "client"), "NOETL_TOKEN": token}
        command = [NOETL, "execute", str(file), "--server", url, "--json"]
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=90)

    for server in ("server-1", "server-2"):  # both accept the token, and workers of either run it
        done = execute(server)
        assert done.returncode == 0, done.stderr
        assert [row["row"] for row in json.loads(done.stdout)["output"]["data"]] == [0, 1, 2]
    composed.running["server-1"].kill()
    composed.running["server-1"].wait()
    done = execute("server-2")
    assert done.returncode == 0, done.stderr
    composed.stop()
    codes = {name: process.returncode for name, process in composed.running.items()}
    assert codes == {"server-1": -signal.SIGKILL, "server-2": 0, "worker-0": 0, "worker-1": 0}

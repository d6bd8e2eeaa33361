"""A server and workers as processes, for tests of the API."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from devcluster.servers import free_port

START_SECONDS = 120.0  # on a loaded machine
SERVE = "from noetl.server.process import serve; from noetl.settings import load; serve(load().settings)"


class Cluster:
    """One server and its workers over one home folder, which is their working folder too."""

    def __init__(self, home: Path, **settings: str) -> None:
        self.home = home
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environ = {
            **os.environ,
            "NOETL_HOME": str(home),
            "NOETL_SERVER_PORT": str(self.port),
            "NOETL_SERVER_URL": self.url,
            "NOETL_PRIVATE_NETWORKS": "127.0.0.0/8",
            **settings,
        }
        self.server: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []

    def start_server(self, code: str = SERVE, log: IO[bytes] | None = None) -> None:
        """Start it and wait until it is ready; its words go to `log`."""
        self.server = self._python(code, log)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.server.poll() is not None:
                raise AssertionError(f"the server ended with {self.server.returncode}")
            try:
                if self.ask("GET", "/readyz", token="")[0] == 200:
                    return
            except OSError:
                time.sleep(0.02)
        raise AssertionError(f"the server is not ready after {START_SECONDS:g} s")

    def start_worker(self) -> subprocess.Popen[bytes]:
        """Start one more worker."""
        self.environ["NOETL_TOKEN"] = self.token
        worker = self._python(
            "from noetl.runtime import event_loop; from noetl.worker.process import work; from noetl.settings import load; "
            "event_loop.run(work(load().settings))"
        )
        self.workers.append(worker)
        return worker

    @property
    def token(self) -> str:
        """The admin's token."""
        return (self.home / "admin.token").read_text().strip()

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Status and document of one request."""
        sent = dict(headers or {})
        text = self.token if token is None else token
        if text:
            sent.setdefault("Authorization", f"Bearer {text}")
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            sent.setdefault("Content-Type", "application/json")
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=sent)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                text_body = answer.read()
                return answer.status, json.loads(text_body) if text_body else None
        except urllib.error.HTTPError as problem:
            with problem:
                text_body = problem.read()
            return problem.code, json.loads(text_body) if text_body else None

    def finished(self, execution_id: str, within: float = 30) -> dict[str, Any]:
        """The execution's document once it has ended."""
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            _, document = self.ask("GET", f"/api/executions/{execution_id}")
            if document["status"] in ("success", "failed", "cancelled"):
                return document
            time.sleep(0.02)
        raise AssertionError(f"execution {execution_id} has not ended: {document}")

    def stop(self) -> None:
        """Stop everything."""
        for process in (*self.workers, self.server):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in (*self.workers, self.server):
            if process is not None:
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _python(self, code: str, log: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
        self.home.mkdir(parents=True, exist_ok=True)
        return subprocess.Popen([sys.executable, "-c", code], env=self.environ, cwd=self.home, stderr=log)

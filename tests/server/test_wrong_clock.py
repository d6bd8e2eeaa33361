"""A server on Postgres whose clock is an hour wrong reports it, and measures with the clock of the database."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.server.http.serving import SERVE, Cluster

NO_WORKER = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: no_worker}
workflow:
  - step: start
    spec: {pool: gpu}
    tool: {kind: noop}
"""


@pytest.mark.parametrize("hours", [1, -1])
def test_a_server_with_a_wrong_clock_reports_it(database: str, tmp_path, hours: int):
    cluster = Cluster(tmp_path, NOETL_STORE=database)
    wrong = f"import time; real = time.time; time.time = lambda: real() + {hours} * 3600\n"
    try:
        cluster.start_server(wrong + SERVE)
        cluster.ask("POST", "/api/execute", {"content": NO_WORKER})
        _, found = cluster.ask("GET", "/readyz", token="")
        side = "ahead of" if hours > 0 else "behind"
        warning = found["warnings"][0]
        assert warning.startswith(f"the clock of this server is 3600 s {side} that of the database: it starts no")
        deadline = time.monotonic() + 15
        while not (wait := max((each["oldest_wait_s"] for each in _pools(cluster)), default=0.0)):
            assert time.monotonic() < deadline, "no run waits"
            time.sleep(0.02)
        assert wait < 600
        run = subprocess.run(
            [sys.executable, "-m", "noetl", "doctor", "--json"], env=cluster.environ, capture_output=True, check=False
        )
        findings = [each for each in json.loads(run.stdout) if each["check"] == "server"]
        assert {"check": "server", "status": "warning", "detail": f"{cluster.url}: {warning}"} in findings
    finally:
        cluster.stop()


def _pools(cluster: Cluster) -> list[dict[str, Any]]:
    return cluster.ask("GET", "/api/operations")[1]["pools"]

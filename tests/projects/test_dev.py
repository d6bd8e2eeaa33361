"""`noetl dev` in a project: applied at the start and on save, loopback allowed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from devcluster.servers import free_port
from tests.projects.conftest import write
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: one, path: dev/one}\n"
STEP = "workflow:\n  - step: start\n    tool: {name: t, kind: python, script: {uri: one.py}}\n"


def test_dev_applies_the_project_on_save(noetl, folder, monkeypatch):
    write(folder, {"noetl.toml": "[project]\nname = 'dev'\n", "one.yaml": HEAD + STEP, "one.py": "result = 1\n"})
    url = f"http://127.0.0.1:{free_port()}"
    log = folder.parent / "dev.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "noetl.clictl", "dev", "--port", url.rpartition(":")[2], "--workers", "1"],
            stderr=output,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    try:
        asyncio.run(until(lambda: "registered dev/one version 1" in log.read_text()))
        monkeypatch.setenv("NOETL_SERVER_URL", url)
        assert noetl("execute", "dev/one", "--json").json["output"]["data"] == 1
        write(folder, {"one.py": "result = 2\n"})
        asyncio.run(until(lambda: "registered dev/one version 2" in log.read_text()))
        assert noetl("execute", "dev/one", "--json").json["output"]["data"] == 2
        write(folder, {"one.yaml": HEAD + "workflow: []\n"})
        asyncio.run(until(lambda: "nothing was registered" in log.read_text()))
        healthz = f"tool: {{name: t, kind: http, url: '{url}/healthz', spec: {{timeout: 5}}}}"
        write(folder, {"one.yaml": f"{HEAD}workflow:\n  - step: start\n    {healthz}\n"})
        asyncio.run(until(lambda: "registered dev/one version 3" in log.read_text()))
        ran = noetl("execute", "dev/one", "--json")
        assert ran.json["status"] == "success", ran.json["error"]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0

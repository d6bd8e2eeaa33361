"""Runs a transfer in a process of its own that ends without notice after the first chunk, as a lost worker does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from noetl.testing.tools import ToolHost, run_tool

KILLED = 9
SECONDS = 120.0


def lose_worker(given: dict[str, Any], host: ToolHost, execution_id: str) -> None:
    """Start the process, and wait for its end."""
    task = {"given": given, "credentials": host.credentials, "folder": str(host.folder), "execution_id": execution_id}
    ran = subprocess.run(
        [sys.executable, "-c", "from noetl.testing.connectors.lost_worker import main; main()"],
        input=json.dumps(task, default=str),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert ran.returncode == KILLED, f"no chunk was written: {ran.stdout}{ran.stderr}"


class _LostHost(ToolHost):
    """Ends the process when a chunk was written."""

    def progress(self, **counts: float) -> None:
        """A chunk was written."""
        os._exit(KILLED)


def main() -> None:
    """Run the transfer that is given as JSON on standard input."""
    task = json.load(sys.stdin)
    host = _LostHost(credentials=task["credentials"], folder=task["folder"])
    print(run_tool("transfer", task["given"], host=host, execution_id=task["execution_id"]).error)

"""Requests generated from the OpenAPI document: no internal errors and no undocumented responses.

This test sends a few deterministic requests; `make fuzz` sends thousands.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.server.http.serving import Cluster

ROOT = Path(__file__).resolve().parents[3]


def fuzz(cluster: Cluster, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable, "-m", "schemathesis.cli", "run", f"{cluster.url}/openapi.json",
        "--header", f"Authorization: Bearer {cluster.token}", "--no-color", "--warnings", "off",
        "--generation-deterministic", *options,
    ]  # fmt: skip
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_few_generated_requests_to_every_operation_find_no_failure(cluster: Cluster):
    found = fuzz(cluster, "--phases", "fuzzing", "--max-examples", "2")
    assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-2000:]
    assert "Tested: " in found.stdout

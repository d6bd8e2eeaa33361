"""Requests nobody would think of, made from our own OpenAPI document: no mistakes, and nothing undocumented.

A few of them here, always the same; `make fuzz` sends thousands.
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


def test_nothing_is_found_in_a_few_requests_to_every_operation(cluster: Cluster):
    found = fuzz(cluster, "--phases", "fuzzing", "--max-examples", "2")
    assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-2000:]
    assert "Tested: " in found.stdout

"""Large payloads are streamed to and from every result store in constant memory (1 GB: `make bench`)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.http_server import http_server

ROOT = Path(__file__).resolve().parents[2]
MEGABYTES = 80


@pytest.fixture(scope="module")
def body() -> Iterator[str]:
    """The address of a body of any size."""
    with http_server() as url:
        yield url


@pytest.mark.parametrize("kind", ["blob", "sqlite", "postgres", "s3", "nats"])
def test_a_large_payload_needs_memory_for_a_few_blocks(
    kind: str, body: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if kind == "postgres":
        url: str = request.getfixturevalue("database")
    elif kind == "nats":
        url = request.getfixturevalue("nats_server") + "/memory-test"
    elif kind == "s3":
        s3: dict[str, Any] = request.getfixturevalue("s3")
        keys = "&".join(f"{name}={value}" for name, value in s3.items())
        url = f"s3://{request.getfixturevalue('bucket')}/results?{keys}"
    else:
        url = f"blob://{tmp_path}" if kind == "blob" else f"sqlite://{tmp_path}/results.db"
    command = [sys.executable, "-m", "bench.streaming", "one", url, body, str(MEGABYTES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    reported = json.loads(done.stdout.splitlines()[-1])
    assert reported["large_mb"] < 200, reported
    assert reported["large_mb"] - reported["small_mb"] < 60, reported

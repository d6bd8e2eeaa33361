"""The stub services of the jobs in `examples/jobs`, as processes."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import default_verbosity, folder, noetl, start  # noqa: F401 - fixtures

JOBS = Path(__file__).parents[2] / "examples" / "jobs"


class Stub:
    """A stub service; it prints its port when it is ready."""

    def __init__(self, file: Path, *arguments: str) -> None:
        command = [sys.executable, str(file), "0", *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{self._process.stdout.readline().strip()}"

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return json.loads(answer.read())

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def stub() -> Iterator[Any]:
    """Start the stub service of a job."""
    started: list[Stub] = []

    def begin(file: Path, *arguments: str) -> Stub:
        started.append(Stub(file, *arguments))
        return started[-1]

    yield begin
    for each in started:
        each.stop()

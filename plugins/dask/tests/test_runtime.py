"""The runtime on a real Dask cluster: a scheduler and workers as processes of this machine."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from distributed import Client
from noetl_dask.runtime import DaskRuntime, connect

from noetl.testing import RuntimeConformance

START_SECONDS = 100


class DaskCluster:
    """A scheduler, and workers by name."""

    def __init__(self, port: int, folder: Path) -> None:
        self.address = f"127.0.0.1:{port}"
        self._folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._start("scheduler", "scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard", "--no-show")

    def add_worker(self, name: str, *arguments: str) -> None:
        """Start a worker with one thread per slot and without a nanny, which would restart it."""
        options = ["--nthreads", "4", "--no-nanny", "--no-dashboard", "--name", name, *arguments]
        self._start(name, "worker", f"tcp://{self.address}", *options)

    def _start(self, name: str, command: str, *arguments: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            program = [sys.executable, "-m", "dask", command, *arguments]
            self.processes[name] = subprocess.Popen(program, stdout=log, stderr=log, cwd=self._folder)

    def wait(self) -> None:
        """Wait until the first worker is registered; a busy machine takes long to start three Python processes."""
        with Client(f"tcp://{self.address}", timeout=START_SECONDS) as client:
            client.wait_for_workers(1, timeout=START_SECONDS)

    def stop(self) -> None:
        """Kill all processes."""
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture(scope="class")
def cluster(free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    found = DaskCluster(free_port(), tmp_path_factory.mktemp("dask"))
    found.add_worker("near", "--resources", "near=100")
    found.wait()
    yield found
    found.stop()


class TestDask(RuntimeConformance):
    LOST_LABELS = ("far=true",)

    @pytest.fixture(autouse=True)
    def _started(self, cluster: DaskCluster) -> None:
        self.cluster = cluster

    def connect(self) -> DaskRuntime:
        return connect(f"dask://{self.cluster.address}")

    def lose_node(self) -> None:
        process = self.cluster.processes["far"]
        process.kill()
        process.wait()

    def test_a_lost_node_is_an_error(self, tmp_path: Path) -> None:
        self.cluster.add_worker("far", "--resources", "far=1")
        super().test_a_lost_node_is_an_error(tmp_path)

    def test_a_resource_that_no_worker_has_waits_and_can_be_cancelled(self) -> None:
        began = time.monotonic()
        outcome = self.run("python", {"code": "result = 1"}, labels=("none=true",), spec={"timeout": 2}, timeout=2.0)
        assert outcome.error is not None
        assert outcome.error.kind == "timeout"
        assert time.monotonic() - began < 30

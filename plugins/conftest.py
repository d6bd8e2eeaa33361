"""Fixtures of all plug-ins' tests."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from debian import NotAvailable, ServerProcess, program


@pytest.fixture(scope="session")
def find_program() -> Callable[..., str]:
    """The path of a server's program, from PATH or from Debian packages; skips the test where it cannot be had."""

    def find(name: str, *packages: str) -> str:
        try:
            return program(name, packages)
        except NotAvailable as reason:
            if os.environ.get("NOETL_REQUIRE_SERVERS"):
                raise
            pytest.skip(str(reason))

    return find


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., ServerProcess]]:
    """Starts server processes, and stops them at the end of the tests."""
    running: list[ServerProcess] = []

    def start(command: list[str], *, folder: Path | None = None, ready: Callable[[], bool]) -> ServerProcess:
        server = ServerProcess(command, folder or tmp_path_factory.mktemp("server"))
        running.append(server)
        server.wait_until(ready)
        return server

    yield start
    for server in reversed(running):
        server.stop()


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """A port of the loopback interface that is not in use."""

    def find() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    return find

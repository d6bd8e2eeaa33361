"""A real Redis server."""

from __future__ import annotations

import socket

import pytest


@pytest.fixture(scope="session")
def redis_server(find_program, start_server, free_port, tmp_path_factory) -> dict:
    """The connection's fields."""
    # redis-tools has the program in Debian 12; redis-server has a link to it.
    packages = (
        "redis-tools",
        "redis-server",
        "libjemalloc2",
        "liblua5.1-0",
        "lua-cjson",
        "lua-bitop",
        "libhiredis0.14",
        "liblzf1",
    )
    path, port = find_program("redis-server", *packages), free_port()

    def ready() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    folder = tmp_path_factory.mktemp("redis")
    start_server(
        [
            path,
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--requirepass",
            "secret",
            "--dir",
            str(folder),
        ],
        folder=folder,
        ready=ready,
    )
    return {"host": "127.0.0.1", "port": port, "password": "secret"}

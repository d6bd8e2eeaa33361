"""A real Redis server."""

from __future__ import annotations

import socket

import certificates
import pytest

TLS: dict = {}


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
    path, port, tls_port = find_program("redis-server", *packages), free_port(), free_port()

    def ready() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    folder = tmp_path_factory.mktemp("redis")
    tls = certificates.create(folder)
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
            "--tls-port",
            str(tls_port),
            "--tls-auth-clients",
            "no",
            "--tls-ca-cert-file",
            str(tls.ca),
            "--tls-cert-file",
            str(tls.certificate),
            "--tls-key-file",
            str(tls.key),
        ],
        folder=folder,
        ready=ready,
    )
    TLS.update(port=tls_port, ca=tls.ca)
    return {"host": "127.0.0.1", "port": port, "password": "secret"}


@pytest.fixture
def redis_tls(redis_server) -> dict:
    """The port with TLS, and the file of the authority that has signed the certificate for 127.0.0.1."""
    return TLS

"""A real MariaDB server."""

from __future__ import annotations

import itertools
import socket
from pathlib import Path

import certificates
import mariadb
import pytest
from noetl_mysql.names import quoted

from noetl.testing import ToolHost, run_tool

numbers = itertools.count()


class Server:
    """The running server, and how tests use it."""

    def __init__(self, port: int, authority: Path) -> None:
        self.authority = authority  # that has signed the certificate of the server, which is for 127.0.0.1
        self.auth = {
            "host": "127.0.0.1", "port": port, "user": mariadb.USER, "password": mariadb.PASSWORD, "database": "noetl",
        }  # fmt: skip

    def sql(self, command: str, params=None) -> list[dict]:
        """Run statements with the kind itself; tests of the kind check that this is right."""
        outcome = run_tool("mysql", {"auth": self.auth, "command": command, "params": params})
        assert outcome.error is None, outcome.error
        return outcome.data["rows"]

    def new_name(self) -> str:
        return f"t{next(numbers)}"

    def create_table(self, rows: list[dict], columns: str = "id BIGINT, name TEXT, price DOUBLE, note TEXT") -> str:
        name = self.new_name()
        self.sql(f"CREATE TABLE {quoted(name)} ({columns}) CHARACTER SET utf8mb4")
        if rows:
            marks = ", ".join(f"%({column})s" for column in rows[0])
            names = ", ".join(map(quoted, rows[0]))
            self.sql(f"INSERT INTO {quoted(name)} ({names}) VALUES ({marks})", rows)
        return name


@pytest.fixture(scope="session")
def server(find_program, start_server, free_port, tmp_path_factory) -> Server:
    port, folder = free_port(), tmp_path_factory.mktemp("mariadb")
    tls = certificates.create(folder)
    command = mariadb.command(find_program("mariadbd", *mariadb.PACKAGES), folder, port)
    command += [f"--ssl-ca={tls.ca}", f"--ssl-cert={tls.certificate}", f"--ssl-key={tls.key}"]

    def ready() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    start_server(command, folder=folder, ready=ready)
    return Server(port, tls.ca)


@pytest.fixture
def host(server, tmp_path) -> ToolHost:
    return ToolHost(credentials={"shop": server.auth}, folder=tmp_path)

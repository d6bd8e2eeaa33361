from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from devcluster import services


def reachable(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def use_shared(key: str) -> subprocess.Popen[str]:
    code = (
        "import sys; from devcluster import services;"
        f"print(services.shared('nats', {key!r})['port'], flush=True); sys.stdin.read()"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_shared_server_is_started_once_and_ends_with_its_last_user() -> None:
    key = f"sharing-{os.getpid()}"
    first, second = use_shared(key), use_shared(key)
    port = int(first.stdout.readline())
    assert int(second.stdout.readline()) == port
    first.kill()  # no farewell
    first.communicate()
    assert reachable(port)
    second.communicate()
    deadline = time.monotonic() + 20
    while reachable(port):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_every_test_has_a_database_of_its_own(postgres: dict, database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("create table t (a int)")
    with services.fresh_database(postgres) as other, psycopg.connect(other) as connection:
        assert connection.execute("select to_regclass('t')").fetchone() == (None,)


def test_postgres_asks_for_the_password(postgres: dict) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(services.postgres_dsn({**postgres, "password": "wrong"}))


def test_a_server_of_ones_own_survives_being_killed(tmp_path: Path) -> None:
    with services.Postgres(tmp_path / "pg") as server:
        with psycopg.connect(server.dsn()) as connection:
            connection.execute("create table t as select 1 as a")
        server.kill()
        server.start()
        with psycopg.connect(server.dsn()) as connection:
            assert connection.execute("select a from t").fetchone() == (1,)


def test_the_token_of_nats_is_in_a_file_and_not_on_its_command_line(tmp_path: Path) -> None:
    with services.Nats(tmp_path, token='se"cret {$}') as server:
        shown = subprocess.run(["ps", "-ww", "-o", "args=", "-p", str(server.pid)], capture_output=True, text=True)
        assert "nats-server" in shown.stdout
        assert "cret" not in shown.stdout
        assert (tmp_path / "token.conf").stat().st_mode & 0o777 == 0o600
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
            connection.sendall(b'CONNECT {"verbose": false, "auth_token": "se\\"cret {$}"}\r\nPING\r\n')
            with connection.makefile("rb") as lines:
                assert b'"auth_required":true' in lines.readline()
                assert lines.readline() == b"PONG\r\n"

"""Incremental loads whose process is killed at random points: in the end the target equals a full load.

Rows arrive between the loads, three with each value of the cursor. The loads read a table of PostgreSQL or the pages of
an API, and append or merge their rows in PostgreSQL, DuckDB or SQLite.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import duckdb
import psycopg

from chaos.findings import Finding
from devcluster import services

PAGE = 40
LIMIT = 20  # loads after the last kill
PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: load, path: chaos/load}}
workflow:
  - step: orders
    tool:
      name: copy
      kind: transfer
      source: {source}
      targets: [{target}]
      chunk: {{size: 50}}
"""
SOURCES = {
    "postgres": '{{kind: postgres, auth: "{dsn}", table: orders, incremental: {{{cursor}}}}}',
    "http": '{{kind: http, url: "{url}/orders", params: {{since: "{{{{ cursor }}}}"}}, pages: link, '
    "incremental: {{{cursor}, initial: 0}}}}",
}
TARGETS = {
    "postgres": '{{kind: postgres, auth: "{dsn}", table: loaded, {mode}}}',
    "duckdb": "{{kind: duckdb, file: target.duckdb, table: loaded, {mode}}}",
    "sqlite": "{{kind: sqlite, file: target.sqlite, table: loaded, {mode}}}",
}
MODES = {"upsert": "mode: upsert, key: id", "append": "mode: append"}
CURSORS = {"upsert": "cursor: at, lag: 1", "append": "cursor: at"}


@contextmanager
def orders_api(dsn: str) -> Iterator[str]:
    """The orders as linked pages: the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
            since, start = int(query.get("since", 0)), int(query.get("start", 0))
            select = "SELECT id, at, note FROM orders WHERE at >= %s ORDER BY at, id OFFSET %s LIMIT %s"
            with psycopg.connect(dsn) as connection:
                rows = connection.execute(select, (since, start, PAGE + 1)).fetchall()
            body = json.dumps([dict(zip(("id", "at", "note"), row, strict=True)) for row in rows[:PAGE]]).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            if len(rows) > PAGE:
                self.send_header("Link", f'</orders?since={since}&start={start + PAGE}>; rel="next"')
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    class Api(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """The client was killed."""

    server = Api(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def rows_of(kind: str, dsn: str, folder: Path) -> list[Any]:
    """The rows in the target."""
    query = "SELECT id, at, note FROM loaded ORDER BY id"
    if kind == "postgres":
        with psycopg.connect(dsn) as connection:
            return connection.execute(query).fetchall()
    if kind == "sqlite":
        with closing(sqlite3.connect(folder / "target.sqlite")) as file:
            return file.execute(query).fetchall()
    with duckdb.connect(folder / "target.duckdb") as database:
        return database.execute(query.replace(" at,", ' "at",')).fetchall()


def kill_loads(load: tuple[str, str, str], dsn: str, folder: Path, kills: int, seed: int) -> dict[str, int]:
    """Kill loads until `kills` were killed while they ran; AssertionError if the target differs from the source."""
    kind, target, mode = load
    chance = random.Random(seed)
    with psycopg.connect(dsn, autocommit=True) as connection, orders_api(dsn) as url:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, at int, note text)")
        source = SOURCES[kind].format(dsn=dsn, url=url, cursor=CURSORS[mode])
        written = TARGETS[target].format(dsn=dsn, mode=MODES[mode])
        (folder / "load.yaml").write_text(PLAYBOOK.format(source=source, target=written))
        number = killed = runs = 0

        def arrive(count: int) -> None:
            nonlocal number
            rows = [(each, each // 3, f"n{each}") for each in range(number + 1, number + count + 1)]
            number += count
            connection.cursor().executemany("INSERT INTO orders VALUES (%s, %s, %s)", rows)

        arrive(200)
        began = time.monotonic()
        process = _run(folder)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
        duration = time.monotonic() - began
        while killed < kills and runs < kills * 3:
            arrive(chance.randrange(300))
            runs += 1
            process = _run(folder)
            time.sleep(chance.uniform(0.1, 1.0) * duration)
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                killed += 1
            process.communicate()
        for _ in range(LIMIT):  # a load that the next process continues may conflict with its own
            process = _run(folder)
            _, errors = process.communicate(timeout=300)
            if process.returncode == 0:
                break
            assert b"state.conflict" in errors, errors.decode()
        wanted = connection.execute("SELECT id, at, note FROM orders ORDER BY id").fetchall()
        found = rows_of(target, dsn, folder)
        assert found == wanted, f"{len(found)} rows in the target, {len(wanted)} in the source"
    return {"killed": killed, "loads": runs, "rows": len(found)}


def _run(folder: Path) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "NOETL_HOME": str(folder / "home"), "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "noetl.clictl", "run", "load.yaml", "--quiet"]
    return subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def experiment(load: tuple[str, str, str], *, quick: bool) -> Finding:
    """100 kills of one kind of load."""
    kind, target, mode = load
    kills = 10 if quick else 100
    figures, violations, missed = {}, [], []
    with (
        services.fresh_database(services.shared("postgres", f"chaos-{os.getpid()}")) as dsn,
        tempfile.TemporaryDirectory(prefix="noetl-chaos-") as folder,
    ):
        try:
            found = kill_loads(load, dsn, Path(folder), kills, seed=11)
            figures = {
                "SIGKILLs": f"{found['killed']} during {found['loads']} loads",
                "rows in source and target": f"{found['rows']:,}, equal",
            }
            if found["killed"] < kills:
                missed.append(f"{kills} kills")
        except AssertionError as wrong:
            violations.append(str(wrong))
    return Finding(
        "transfers",
        "6, 11",
        f"{kills} kills of an incremental load from {kind} to {target}, {mode}: the target equals a full load",
        f"`python -m chaos transfers-{'-'.join(load)}`: `noetl run` of a transfer with a cursor, SIGKILL at random "
        "points while rows arrive, three with each value of the cursor" + (", a lag of 1" if mode == "upsert" else ""),
        figures,
        violations,
        missed,
    )

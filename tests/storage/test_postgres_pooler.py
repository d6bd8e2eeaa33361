"""A server whose connections go through PgBouncer in transaction mode."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from noetl.embedded import open_local
from noetl.errors import RequestRefused, VersionConflict
from noetl.server.orchestrator.submissions import Submission
from noetl.storage.events.postgres import PostgresEventStore
from noetl.storage.postgres.database import PostgresDatabase, pooled_url
from noetl.storage.results.postgres import PostgresResults
from tests.conformance.event_store import BODIES, make_append

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: pooled}
workflow:
  - step: start
    loop: {in: "{{ range(20) | list }}", iterator: n, spec: {mode: parallel, max_in_flight: 10}}
    tool: {kind: python, code: "result = n * 2", input: {n: "{{ iter.n }}"}}
    next: {arcs: [{step: end}]}
  - step: end
    tool: {kind: noop}
"""
CONFIGURATION = """
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = 2
max_client_conn = 200
server_reset_query_always = 1
server_reset_query = DISCARD ALL
"""


@pytest.fixture
def pooler(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a database through PgBouncer, whose sessions are reset after every transaction."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH')}:/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed")
    parts = urlsplit(database)
    folder = Path(tmp_path_factory.mktemp("pgbouncer"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    name = parts.path.lstrip("/")
    text = CONFIGURATION.format(host=parts.hostname, port=parts.port, listen=port, folder=folder)
    text = text.replace("* = ", f"{name} = dbname={name} user={parts.username} password={parts.password} ")
    (folder / "pgbouncer.ini").write_text(text)
    (folder / "users").write_text(f'"{parts.username}" "{parts.password}"\n')
    options = {}
    if os.geteuid() == 0:  # PgBouncer does not run as root
        other = pwd.getpwnam("nobody")
        options = {"user": other.pw_uid, "group": other.pw_gid, "extra_groups": []}
        for path in (folder, *folder.iterdir()):
            os.chown(path, other.pw_uid, other.pw_gid)
        for parent in (folder, *folder.parents):
            if parent != Path("/tmp") and parent != Path("/"):
                parent.chmod(parent.stat().st_mode | 0o011)
    log = (folder / "log").open("wb")
    process = subprocess.Popen([program, str(folder / "pgbouncer.ini")], stdout=log, stderr=log, **options)
    try:
        deadline = time.monotonic() + 60
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield f"postgresql://{parts.username}:{parts.password}@127.0.0.1:{port}{parts.path}?pooler=transaction"
    finally:
        process.terminate()
        process.wait(20)
        log.close()


def test_concurrent_appends_reads_and_conflicts(pooler):
    async def scenario():
        stores = [PostgresEventStore(PostgresDatabase(pooler)) for _ in range(3)]

        async def write(store, first):
            for number in range(first, first + 15):
                await store.append(make_append(str(number), 0, *BODIES[:2]))
                await store.append(make_append(str(number), 2, BODIES[2]))
                assert [each.seq for each in await store.read(str(number))] == [1, 2, 3]

        await asyncio.gather(
            *(write(store, 1000 * (n + 1) + 100 * m) for n, store in enumerate(stores) for m in range(4))
        )
        with pytest.raises(VersionConflict):
            await stores[0].append(make_append("1000", 1, BODIES[2]))
        assert (await stores[1].counts()) == {"running": 180}
        await stores[0].tidy(time.time())
        for store in stores:
            await store.check()
            await store.close()

    asyncio.run(scenario())


def test_an_engine_runs_playbooks(pooler, tmp_path):
    async def scenario():
        async with await open_local(home=tmp_path / "home", store=pooler) as engine:
            submitted = [await engine.orchestrator.submit(Submission(text=PLAYBOOK)) for _ in range(5)]
            return [(await engine.orchestrator.wait(each)).status for each in submitted]

    assert asyncio.run(scenario()) == ["success"] * 5


def test_statements_of_the_result_store_are_not_prepared(pooler):
    async def scenario():
        results = PostgresResults(pooler)
        for number in range(12):  # psycopg prepares a statement that was executed five times
            assert await results.forget([str(number)]) == 0
        await results.close()

    asyncio.run(scenario())


def test_the_url_says_whether_there_is_a_pooler():
    assert pooled_url("postgresql://h/d?pooler=transaction&sslmode=require") == (
        "postgresql://h/d?sslmode=require",
        True,
    )
    assert pooled_url("postgresql://u:p%40@h/d") == ("postgresql://u:p%40@h/d", False)
    with pytest.raises(RequestRefused, match="can only be"):
        pooled_url("postgresql://h/d?pooler=statement")

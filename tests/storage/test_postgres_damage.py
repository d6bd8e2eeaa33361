"""Overwritten pages and deleted files of a Postgres database are found, and what they do not concern goes on.

A copy of a database by files is not in the memory of the server, so its files can be changed before they are read."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from devcluster.services import postgres_dsn
from noetl.cli import app
from noetl.core.model.events import PlaybookProcessed
from noetl.embedded import open_local
from noetl.errors import CorruptLog, StoreUnavailable
from noetl.server.lifecycle.recovery import resume
from noetl.server.orchestrator.submissions import Submission
from noetl.storage.factory import open_stores
from noetl.storage.postgres import database as postgres_database
from noetl.storage.postgres.database import PostgresDatabase
from tests.conformance.event_store import make_append
from tests.waiting import until

PAGE = 8192
TEXT = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: p}}\nworkflow:\n  - {{step: start, tool: {}}}\n"
DONE, WAITING = TEXT.format("{kind: noop}"), TEXT.format("{kind: wait, signal: go}")
COUNT = 24


@pytest.fixture(scope="module")
def filled(postgres) -> Iterator[str]:
    """The name of a database with ended and waiting executions on several pages, all with an idempotency key."""
    name = f"t_{secrets.token_hex(8)}"
    with psycopg.connect(postgres_dsn(postgres), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} STRATEGY file_copy")

    async def fill() -> None:
        async with await open_local(store=postgres_dsn(postgres, name)) as engine:
            orchestrator = engine.orchestrator
            texts = [WAITING if number % 2 else DONE for number in range(COUNT)]
            submissions = [Submission(text=text, key=f"key-{number}") for number, text in enumerate(texts)]
            for execution_id in await asyncio.gather(*map(orchestrator.submit, submissions)):

                async def reached(each: str = execution_id) -> bool:
                    return (await orchestrator.summary(each)).status in ("waiting", "success")

                await until(reached)
            await orchestrator.store.save_snapshot(execution_id, 2, b"snapshot")

    asyncio.run(fill())
    yield name
    with psycopg.connect(postgres_dsn(postgres), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


Change = Callable[[Path], object]


def overwrite(file: Path, page: int = 0) -> None:
    with file.open("r+b") as content:
        content.seek(page * PAGE)
        content.write(os.urandom(PAGE))


def overwrite_leaf(file: Path) -> None:
    overwrite(file, 1)


@contextmanager
def damaged(postgres: dict[str, Any], filled: str, relation: str, change: Change = overwrite) -> Iterator[str]:
    """The URL of a copy of the database with a changed file."""
    name = f"t_{secrets.token_hex(8)}"
    with psycopg.connect(postgres_dsn(postgres), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {filled} STRATEGY file_copy")
        (folder,) = connection.execute("SHOW data_directory").fetchone()
        try:
            with psycopg.connect(postgres_dsn(postgres, name)) as copy:
                (path,) = copy.execute("SELECT pg_relation_filepath(%s)", [relation]).fetchone()
                change(Path(folder, path))
            yield postgres_dsn(postgres, name)
        finally:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def on_first_page(postgres: dict[str, Any], filled: str) -> dict[str, str]:
    """The executions on the page that `overwrite` changes, and their status."""
    with psycopg.connect(postgres_dsn(postgres, filled)) as connection:
        rows = connection.execute("SELECT id, status FROM noetl_executions WHERE ctid < '(1,0)'").fetchall()
    return {str(number): status for number, status in rows}


KEYS = "SELECT count(*) FROM noetl_executions WHERE key LIKE 'key-%'"


@pytest.mark.parametrize(
    ("relation", "change", "keeps_keys"),
    [
        ("noetl_executions", overwrite, False),
        ("noetl_executions", Path.unlink, False),
        ("noetl_executions_pkey", overwrite_leaf, True),
        ("noetl_executions_status", overwrite_leaf, True),
        ("noetl_executions_status", Path.unlink, True),
        ("noetl_log_first_pkey", overwrite_leaf, True),
        ("noetl_snapshots", overwrite, True),
    ],
)
def test_damage_in_what_is_derived_is_found_and_repaired(
    postgres, filled, tmp_path, monkeypatch, capsys, relation, change, keeps_keys
):
    monkeypatch.setenv("NOETL_HOME", str(tmp_path))
    with damaged(postgres, filled, relation, change) as url:
        monkeypatch.setenv("NOETL_STORE", url)
        assert app.run(["doctor", "--verify"]) == 1
        found = capsys.readouterr().out
        assert ("could not open file" if change is Path.unlink else relation) in found
        assert "`noetl doctor --repair` rebuilds what is derived" in found
        assert app.run(["doctor", "--repair"]) == 0, capsys.readouterr().out
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT count(*) FROM noetl_executions").fetchone() == (COUNT,)
            if keeps_keys:
                assert connection.execute(KEYS).fetchone() == (COUNT,)


def test_a_damaged_page_of_the_log_concerns_its_executions_only(postgres, filled, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NOETL_HOME", str(tmp_path))
    with psycopg.connect(postgres_dsn(postgres, filled)) as connection:
        rows = connection.execute("SELECT DISTINCT execution FROM noetl_log_first WHERE ctid < '(1,0)'").fetchall()
    lost = {str(number) for (number,) in rows}
    assert 0 < len(lost) < COUNT
    with damaged(postgres, filled, "noetl_log_first") as url:
        monkeypatch.setenv("NOETL_STORE", url)
        assert app.run(["doctor", "--verify"]) == 1
        found = capsys.readouterr().out
        assert "table noetl_log_first: Postgres: invalid page" in found and "restore a backup" in found
        assert all(f"execution {each}: Postgres: invalid page" in found for each in lost)

        async def continued() -> tuple[list[str], str]:
            async with await open_local(store=url) as engine:
                resumed = await resume(engine.orchestrator)
                execution_id = await engine.orchestrator.submit(Submission(text=DONE))
                return resumed, (await engine.orchestrator.wait(execution_id)).status

        resumed, status = asyncio.run(continued())
    assert status == "success" and resumed and lost.isdisjoint(resumed)


def test_a_damaged_page_of_executions_concerns_these_only(postgres, filled):
    lost = on_first_page(postgres, filled)
    assert set(lost.values()) == {"waiting", "success"} and len(lost) < COUNT

    async def scenario(url: str) -> tuple[list[str], list[Any]]:
        events, _ = open_stores(url)
        try:
            # The row that begins and the row that cannot be read are one statement.
            appends = [
                make_append("7", 0, PlaybookProcessed(outcome="success"), status="success"),
                make_append(next(iter(lost)), 5, PlaybookProcessed(outcome="success"), status="success"),
            ]
            ended = await asyncio.gather(*map(events.append, appends), return_exceptions=True)
            return await events.unfinished(), ended
        finally:
            await events.close()

    with damaged(postgres, filled, "noetl_executions") as url:
        unfinished, (begun, refused) = asyncio.run(scenario(url))
    assert begun is None and isinstance(refused, CorruptLog)
    waiting = COUNT // 2 - list(lost.values()).count("waiting")
    assert len(unfinished) == waiting and lost.keys().isdisjoint(unfinished)


def test_a_check_waits_until_a_server_that_a_damaged_page_has_ended_responds(monkeypatch):
    answers = [StoreUnavailable("in recovery mode"), StoreUnavailable("in recovery mode"), None]

    async def row(_: object, __: str) -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    monkeypatch.setattr(PostgresDatabase, "row", row)
    monkeypatch.setattr(postgres_database, "RECONNECT_DELAYS", (0.0,))
    asyncio.run(PostgresDatabase("postgresql://localhost/x").recovered())
    assert answers == []
    monkeypatch.setattr(postgres_database, "RECOVERY_SECONDS", 0.0)
    answers.append(StoreUnavailable("gone"))
    with pytest.raises(StoreUnavailable, match="gone"):
        asyncio.run(PostgresDatabase("postgresql://localhost/x").recovered())


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (asyncpg.InternalServerError("missing chunk number 0 for toast value 16402"), CorruptLog),
        (asyncpg.DataCorruptedError("invalid page in block 0 of relation base/5/16385"), CorruptLog),
        (asyncpg.InternalServerError("could not open relation with OID 16385"), StoreUnavailable),
        (asyncpg.InternalServerError("tuple concurrently updated"), StoreUnavailable),
        (asyncpg.InternalServerError("cache lookup failed for relation 16385"), StoreUnavailable),
    ],
    ids=str,
)
def test_an_error_of_a_table_that_was_changed_meanwhile_is_no_damage(problem: Exception, kind: type[Exception]):
    assert type(postgres_database.unavailable(problem)) is kind

"""A flipped bit in any row of any table is found, and the other rows stay usable.

Tables and columns come from the database itself: a new table fails here until its rows have a checksum."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from noetl.cli.doctor import environment as doctor
from noetl.cli.operations.schema_parts import schema_parts
from noetl.core.model.bundle import Bundle, file_digest
from noetl.core.model.quotas.token_bucket import Bucket
from noetl.core.model.task_log import LogChunk, LogLine, LogSource
from noetl.embedded import run_async
from noetl.errors import CorruptLog, StoreUnavailable
from noetl.secrets.keychain import open_credentials
from noetl.server.lifecycle.log_verifier import repair, verify
from noetl.settings import load
from noetl.storage import factory
from noetl.storage.document_checksums import is_intact, with_checksum
from noetl.storage.events.execution_queries import encode_day
from noetl.storage.integrity import database_problems, rebuild_derived
from noetl.storage.playbooks.sql import text_digest
from noetl.storage.ports.deliveries import Delivery, DeliveryFilter
from noetl.storage.ports.events import DayHistory, EventStore
from noetl.storage.ports.load_samples import StoredLoad
from noetl.storage.ports.playbooks import StoredPlaybook
from noetl.storage.ports.state import StateChange, StateCommit
from noetl.storage.ports.triggers import StoredTrigger
from noetl.storage.sqlite.database_file import SqliteFile

TEXT = """apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p, labels: {team: data}}
workflow:
  - {step: start, tool: {kind: noop}}
"""
# Rows that are valid for seconds and that live servers and workers write again; the versions of the schema; encrypted
# rows, which have a test of their own.
OTHERS = {
    "servers",
    "duties",
    "deciding",
    "signs",
    "queue",
    "queue_passes",
    "queue_lines",
    "migrations",
    "noetl_schema",
    "credentials",
}
# Tables whose rows nothing refers to: a deleted row is not noticed. What is derived or valid for minutes begins again;
# the others are documented in docs/reference/stores.md.
UNREFERRED = {"snapshots", "quotas", "load_samples", "state", "days", "triggers", "deliveries"}
# Whether the status was read, which no other column says; the position of a row; when a text or a bundle was used last.
UNCHECKED = {("executions", "news"), ("log", "place")} | {
    (table, "used_at") for table in ("playbook_texts", "bundles", "bundle_files")
}


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request, tmp_path, monkeypatch) -> str:
    monkeypatch.setenv("NOETL_HOME", str(tmp_path))
    return f"sqlite://{tmp_path}/noetl.db" if request.param == "sqlite" else request.getfixturevalue("database")


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[EventStore]:
    events, _ = factory.open_stores(url)
    try:
        yield events
    finally:
        await events.close()


async def fill(url: str) -> None:
    """At least one row in each table."""
    for _ in range(3):
        await run_async(TEXT, store=url)
    events, playbooks = factory.open_stores(url)
    try:
        digest = text_digest(TEXT, "")
        await playbooks.register(StoredPlaybook("tests/p", 0, digest, TEXT, 5.0, ""))
        await playbooks.save_files({file_digest(b"content"): b"content"})
        bundle = Bundle({"a.txt": file_digest(b"content")})
        await playbooks.save_bundle(bundle)
        file = f"bundle:{bundle.digest}/a.txt"
        await playbooks.register(StoredPlaybook("tests/p", 0, text_digest(TEXT, file), TEXT, 5.0, file))
        triggers, deliveries = factory.open_triggers(events), factory.open_deliveries(events)
        for name in "ab":
            await triggers.add(StoredTrigger("schedule", name, b'{"cron": "@daily"}', 1, 7.5))
            assert await triggers.save(StoredTrigger("schedule", name, b'{"cron": "@hourly"}', 2, 8.5))
            await deliveries.add(Delivery(name, "webhook", "w", name, 5.0, due=6.0))
            assert await deliveries.save(
                Delivery(name, "webhook", "w", name, 5.0, b'{"n": 1}', "started", 1.0, True, "12")
            )
        await factory.open_quotas(events).update("api", 10.0, lambda bucket, now: (Bucket(full_at=now + 5), None))
        await factory.open_load_samples(events).add(StoredLoad(5.0, "s", 1, 2.0, 3, 4, 5, 6, 7))
        change = StateChange("cursor", b"7", None, "v1")
        await factory.open_state(events).commit(StateCommit("tests/p", (change,), 3.0, "12"))
        line = LogLine(0, 5.0, "stdout", "hello")
        for _ in range(2):
            await factory.open_task_logs(events).append(LogChunk("12", [LogSource("start", "task")], [line]))
        ids = await events.sql.fetch(f"SELECT id FROM {events.sql.prefix}executions ORDER BY id")
        await events.save_snapshot(str(ids[0][0]), 2, b"snapshot")
        await events.drop([str(ids[1][0])])  # its day stays; Postgres deletes its log later, with the partition
        await events.sql.execute(f"DELETE FROM {events.sql.prefix}log WHERE execution = $1", ids[1][0])
        past = DayHistory("tests/p", 5, {"success": 1})  # of a partition that does not exist any more
        await events.sql.execute(
            f"UPDATE {events.sql.prefix}days SET path = $1, day = $2, data = $3", past.path, past.day, encode_day(past)
        )
    finally:
        await events.close()


async def problems(events: EventStore) -> list[str]:
    return [str(each) async for each in database_problems(events.sql, schema_parts(events.sql.dialect))] + (
        await verify(events)
    )[2]


async def columns_of(events: EventStore) -> list[tuple[str, str]]:
    if events.sql.dialect == "sqlite":
        query = (
            "SELECT m.name, c.name FROM sqlite_master m JOIN pragma_table_info(m.name) c "
            "WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%' ORDER BY 1, c.cid"
        )
    else:
        query = (
            "SELECT table_name::text, column_name::text FROM information_schema.columns WHERE table_name LIKE 'noetl%' "
            "AND table_name !~ '^noetl_log_' AND table_schema = current_schema() ORDER BY 1, ordinal_position"
        )
    return [tuple(row) for row in await events.sql.fetch(query)]


def changed(value: Any) -> Any:
    """The value with one bit flipped; of a number, another number."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return chr(ord(value[0]) ^ 1) + value[1:]
    if isinstance(value, bytes):
        return value[: len(value) // 2] + bytes([value[len(value) // 2] ^ 1]) + value[len(value) // 2 + 1 :]
    return value + 1


async def damage(events: EventStore, table: str, column: str) -> Any:
    """Change the largest value of a column; returns what it was, None if no row has a value."""
    query = f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL ORDER BY {column} DESC LIMIT 1"
    row = await events.sql.row(query)
    if row is None or row[0] == "":
        return None
    await events.sql.execute(f"UPDATE {table} SET {column} = $1 WHERE {column} = $2", changed(row[0]), row[0])
    return row[0]


def test_a_changed_value_is_found_in_every_column_of_every_table(store_url):
    async def scenario() -> None:
        await fill(store_url)
        missed, empty = [], []
        async with opened(store_url) as events:
            assert await problems(events) == []
            for table, column in await columns_of(events):
                name = table.removeprefix(events.sql.prefix)
                if name in OTHERS or (name, column) in UNCHECKED:
                    continue
                before = await damage(events, table, column)
                if before is None:
                    empty.append((name, column))
                    continue
                if not await problems(events):
                    missed.append((name, column))
                await events.sql.execute(
                    f"UPDATE {table} SET {column} = $1 WHERE {column} = $2", before, changed(before)
                )
                assert await problems(events) == [], (table, column)
        assert missed == []
        allowed = {"parent", "key", "due", "reuses", "error", "file", "version"}
        assert {column for _, column in empty} <= allowed, empty

    asyncio.run(scenario())


async def tables_of(events: EventStore) -> dict[str, list[str]]:
    """The columns of each table with a checksum or a digest."""
    found: dict[str, list[str]] = {}
    for table, column in await columns_of(events):
        if table.removeprefix(events.sql.prefix) not in OTHERS:
            found.setdefault(table, []).append(column)
    return found


def test_a_deleted_row_is_found_in_every_table_whose_rows_belong_together(store_url):
    async def scenario() -> None:
        await fill(store_url)
        missed = set()
        async with opened(store_url) as events:
            for table, columns in (await tables_of(events)).items():
                rows = await events.sql.fetch(f"SELECT {', '.join(columns)} FROM {table} ORDER BY 1, 2")
                given = " AND ".join(f"{each} IS NOT DISTINCT FROM ${n}" for n, each in enumerate(columns, 1))
                places = ", ".join(f"${n}" for n in range(1, 1 + len(columns)))
                await events.sql.execute(f"DELETE FROM {table} WHERE {given}", *rows[0])
                if not await problems(events):
                    missed.add(table.removeprefix(events.sql.prefix))
                await events.sql.execute(f"INSERT INTO {table}({', '.join(columns)}) VALUES ({places})", *rows[0])
                assert await problems(events) == [], table
        assert missed == UNREFERRED

    asyncio.run(scenario())


@pytest.mark.parametrize("value", [None, "x", b"\x00", -1.5], ids=["null", "text", "bytes", "real"])
def test_a_value_of_another_type_is_found_in_every_column(tmp_path, monkeypatch, value):
    """SQLite stores the type with the value: a flipped bit changes it in any column."""
    monkeypatch.setenv("NOETL_HOME", str(tmp_path))
    url = f"sqlite://{tmp_path}/noetl.db"

    async def scenario() -> None:
        await fill(url)
        missed = []
        async with opened(url) as events:
            for table, columns in (await tables_of(events)).items():
                for column in columns:
                    rows = await events.sql.fetch(f"SELECT {column} FROM {table} ORDER BY 1 DESC LIMIT 1")
                    (before,) = rows[0]
                    if (table, column) in UNCHECKED or before is None or type(before) is type(value):
                        continue
                    change = f"UPDATE {table} SET {column} = $1 WHERE {column} IS $2"
                    with suppress(StoreUnavailable):  # not allowed in this column
                        await events.sql.execute(change, value, before)
                    stored = await events.sql.row(f"SELECT 1 FROM {table} WHERE {column} IS $1", value)
                    if stored and not await problems(events):
                        missed.append((table, column))
                    await events.sql.execute(change, before, value)
        assert missed == []

    asyncio.run(scenario())


def test_a_damaged_row_does_not_stop_the_others(store_url):
    async def scenario() -> None:
        await fill(store_url)
        async with opened(store_url) as events:
            prefix = events.sql.prefix
            for table, column in (
                ("triggers", "data"),
                ("deliveries", "data"),
                ("state", "data"),
                ("quotas", "data"),
                ("load_samples", "data"),
                ("days", "data"),
                ("task_logs", "data"),
            ):
                await damage(events, f"{prefix}{table}", column)
            triggers, deliveries = factory.open_triggers(events), factory.open_deliveries(events)
            assert [each.name for each in await triggers.due("schedule", 100.0)] == ["b"]
            assert [each.name for each in await triggers.list("schedule")] == ["b"]
            with pytest.raises(CorruptLog, match="delete it"):
                await triggers.get("schedule", "a")
            assert await triggers.remove("schedule", "a")
            assert len(await deliveries.list(DeliveryFilter())) == 1
            with pytest.raises(CorruptLog, match="noetl state set"):
                await factory.open_state(events).read("tests/p")
            assert await factory.open_quotas(events).update("api", 1.0, lambda bucket, _: (bucket, bucket)) == Bucket()
            assert await factory.open_load_samples(events).since(0.0) == []
            assert await events.days(None, 0.0) == []
            with pytest.raises(CorruptLog):
                await factory.open_task_logs(events).read("12")
            (number,) = await events.sql.row(f"SELECT max(id) FROM {prefix}executions")
            await events.drop([str(number)])  # retention continues the damaged history
            assert len(await events.days(None, 0.0)) == 1

    asyncio.run(scenario())


def test_what_is_derived_is_rebuilt(store_url):
    async def scenario() -> None:
        await fill(store_url)
        async with opened(store_url) as events:
            prefix = events.sql.prefix
            derived = (("executions", "status"), ("executions", "ended"), ("snapshots", "data"), ("quotas", "data"))
            for table, column in derived:
                await damage(events, f"{prefix}{table}", column)
            assert len(await problems(events)) == 4  # two executions, the snapshot, the quota
            assert await rebuild_derived(events.sql, schema_parts(events.sql.dialect)) == 4 and await repair(
                events, None
            ) == (0, [])
            assert await problems(events) == []

    asyncio.run(scenario())


def test_every_flipped_bit_of_a_document_is_found():
    stored = with_checksum(b'{"a": [1, "x"]}', "name", 3, None, True)
    assert is_intact(stored, "name", 3.0, None, 1) and not is_intact(stored, "name", 4, None, True)
    for place in range(8 * len(stored)):
        flipped = bytearray(stored)
        flipped[place // 8] ^= 1 << place % 8
        assert not is_intact(bytes(flipped), "name", 3, None, True), place
    assert is_intact(b"{}", "any") and not is_intact(b"{") and not is_intact(b"")


def test_a_damaged_credential_is_found(store_url, tmp_path):
    async def store() -> None:
        async with open_credentials(tmp_path, store_url) as credentials:
            await credentials.set("intact", "http", {"token": "t"})
            await credentials.set("damaged", "http", {"token": "t"})

    async def flip(database: Any) -> None:
        table = f"{database.prefix}credentials"
        (sealed,) = await database.row(f"SELECT sealed FROM {table} WHERE name = 'damaged'")
        await database.execute(f"UPDATE {table} SET sealed = $1 WHERE name = 'damaged'", changed(sealed))

    async def damage_it() -> None:
        if store_url.startswith("sqlite"):
            file = SqliteFile(str(tmp_path / "credentials.db"))
            await flip(file)
            await file.close()
        else:
            async with opened(store_url) as events:
                await flip(events.sql)

    settings = load({"store": store_url, "home": str(tmp_path)}).settings
    asyncio.run(store())
    assert [each.status for each in doctor.credentials(settings)] == ["ok"]
    asyncio.run(damage_it())
    (found,) = doctor.credentials(settings)
    assert found.status == "failed" and "damaged" in found.detail and "credential set" in found.detail

"""`doctor --repair` writes the rows of executions as the engine wrote them, in every state that an execution can have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from noetl.cli.operations.schema_parts import schema_parts
from noetl.embedded import LocalEngine, open_local
from noetl.server.lifecycle.log_verifier import repair, verify
from noetl.server.orchestrator.catalog import Catalog, Source
from noetl.server.orchestrator.submissions import Submission
from noetl.storage.factory import open_stores
from noetl.storage.integrity import database_problems, rebuild_derived
from noetl.storage.ports.events import EventStore, ExecutionFilter
from noetl.tools.registry import specs
from tests.waiting import until

HEADER = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p, path: tests/NAME, labels: {team: data}}\n"
SLEEP = "{kind: shell, command: 'sleep 600'}"
# name -> the workflow, and the status in which it stays
STATES = {
    "done": ("[{step: start, tool: {kind: noop}}]", "success"),
    "failed": ("[{step: start, tool: {kind: shell, command: 'exit 3'}}]", "failed"),
    "signal": ("[{step: start, tool: {kind: wait, signal: go}}]", "waiting"),
    "timer": ("[{step: start, tool: {kind: wait, for: 1h}}]", "waiting"),
    "approval": ("[{step: start, tool: {kind: wait, signal: go, title: 'Ship?', timeout: 2h}}]", "waiting"),
    "loop": (
        "[{step: start, loop: {in: [1, 2, 3], iterator: n, spec: {mode: parallel, max_in_flight: 3}}, "
        "tool: {kind: wait, signal: 'go-{{ iter.n }}', timeout: 3h}}]",
        "waiting",
    ),
    "paused": ("[{step: start, tool: {kind: wait, signal: go}}]", "paused"),
    "both": (
        "[{step: start, tool: {kind: noop}, next: {spec: {mode: inclusive}, arcs: [{step: ask}, {step: work}]}}, "
        f"{{step: ask, tool: {{kind: wait, signal: go, timeout: 1h}}}}, {{step: work, tool: {SLEEP}}}]",
        "running",
    ),
    "retry": (
        "[{step: start, tool: {kind: shell, command: 'exit 1', spec: {policy: {rules: "
        "[{when: \"{{ output.status == 'error' }}\", then: {do: retry, attempts: 3, delay: 3600}}]}}}}]",
        "running",
    ),
    "running": (f"[{{step: start, tool: {SLEEP}}}]", "running"),
}  # fmt: skip
PARENT = "[{step: start, tool: {kind: playbook, path: tests/CHILD}}]"


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request, tmp_path, monkeypatch) -> str:
    monkeypatch.setenv("NOETL_HOME", str(tmp_path))
    return f"sqlite://{tmp_path}/noetl.db" if request.param == "sqlite" else request.getfixturevalue("database")


def text_of(name: str, workflow: str) -> str:
    return HEADER.replace("NAME", name) + f"workflow: {workflow}\n"


@asynccontextmanager
async def in_every_state(url: str, home: Any) -> AsyncIterator[EventStore]:
    """Executions in every state, while their engine runs; another connection to their store."""
    async with await open_local(store=url, home=home, slots=8) as engine:
        orchestrator = engine.orchestrator
        wanted = {}
        for name, (workflow, status) in STATES.items():
            execution_id = await orchestrator.submit(
                Submission(text=text_of(name, workflow), key=f"key-{name}", labels={"of": name})
            )
            wanted[execution_id] = status
            if status == "paused":
                await reached(engine, {execution_id: "waiting"})
                await orchestrator.pause(execution_id)
        for child in ("signal", "running"):
            workflow, status = STATES[child]
            text = text_of(f"child-{child}", workflow)
            await orchestrator.catalog.register(Source(text), 5.0)
            parent = PARENT.replace("CHILD", f"child-{child}")
            caller = await orchestrator.submit(Submission(text=text_of(f"parent-{child}", parent)))
            called = await until(lambda id=caller: orchestrator.store.executions(ExecutionFilter(parent=id)))
            wanted |= {caller: status, called[0].execution_id: status}
        cancelled = await orchestrator.submit(Submission(text=text_of("x", STATES["timer"][0])))
        await reached(engine, {cancelled: "waiting"})
        await orchestrator.cancel(cancelled)
        await reached(engine, {**wanted, cancelled: "cancelled"})
        events, _ = open_stores(url)
        try:
            yield events
        finally:
            await events.close()


async def reached(engine: LocalEngine, wanted: dict[str, str]) -> None:
    async def all_are() -> bool:
        summaries = {each: await engine.orchestrator.summary(each) for each in wanted}
        return all(
            summaries[each].status == status and (status != "running" or summaries[each].seq >= 6)
            for each, status in wanted.items()
        )

    await until(all_are)


COLUMNS = "SELECT id, seq, data, crc, status, ended, path, key, parent, due, inbox, reuses, took, error, version, started_by, labels"


async def rows(events: EventStore) -> dict[int, dict[str, Any]]:
    found = await events.sql.fetch(f"{COLUMNS} FROM {events.sql.prefix}executions ORDER BY id")
    names = COLUMNS.removeprefix("SELECT ").split(", ")
    return {row[0]: dict(zip(names, row, strict=True)) for row in found}


async def repaired(events: EventStore, url: str) -> list[str]:
    """Repair; what is left."""
    store, playbooks = open_stores(url)
    try:
        await rebuild_derived(store.sql, schema_parts(store.sql.dialect))
        left = (await repair(store, Catalog(playbooks, specs).load))[1]
        return (
            left
            + [str(each) async for each in database_problems(store.sql, schema_parts(store.sql.dialect))]
            + (await verify(store))[2]
        )
    finally:
        await store.close()


def test_damaged_rows_are_written_as_they_were(store_url, tmp_path):
    async def scenario() -> None:
        async with in_every_state(store_url, tmp_path) as events:
            before = await rows(events)
            table = f"{events.sql.prefix}executions"
            no = "0" if events.sql.dialect == "sqlite" else "false"
            await events.sql.execute(
                f"UPDATE {table} SET seq = seq + 3, data = $1, status = 'running', ended = {no}, path = '', parent = 7, "
                "due = 5.0, inbox = 9, reuses = 4, took = 1.0, error = 'none', version = '9', started_by = '', labels = ''",
                b"{}",
            )
            assert await repaired(events, store_url) == []
            assert await rows(events) == before

    asyncio.run(scenario())


def test_missing_rows_are_written_from_their_logs(store_url, tmp_path):
    async def scenario() -> None:
        async with in_every_state(store_url, tmp_path) as events:
            before = await rows(events)
            await events.sql.execute(
                f"DELETE FROM {events.sql.prefix}executions WHERE key IS NULL OR key <> 'key-done'"
            )
            found = [str(each) async for each in database_problems(events.sql, schema_parts(events.sql.dialect))]
            lost = [each for each, row in before.items() if row["key"] != "key-done"]
            assert sorted(int(each.split()[1].rstrip(":")) for each in found) == lost
            assert await repaired(events, store_url) == []
            after = await rows(events)
            assert [each for each in after if before[each]["key"] != "key-done"] == lost
            for each in lost:  # the key is in the row only
                for row in (before[each], after[each]):
                    row["data"] = row["data"].replace(f'"key":"{row["key"]}",'.encode(), b"")
                    row["key"] = row["crc"] = None
                assert after[each] == before[each]

    asyncio.run(scenario())


def test_rows_that_are_missing_beside_deleted_executions_are_counted(database, tmp_path):
    async def scenario() -> None:
        async with in_every_state(database, tmp_path) as events:
            ended = [str(number) for number, row in (await rows(events)).items() if row["ended"]]
            await events.drop(ended[:1])  # its log stays until the partition is deleted
            parts = schema_parts(events.sql.dialect)
            assert [each async for each in database_problems(events.sql, parts)] == []
            await events.sql.execute("DELETE FROM noetl_executions WHERE ended")
            (found,) = [str(each) async for each in database_problems(events.sql, parts)]
            assert found.startswith(f"{len(ended) - 1} executions that began on ") and "restore a backup" in found

    asyncio.run(scenario())


def test_without_the_text_of_its_playbook_the_waits_of_an_execution_are_reported_as_unknown(tmp_path):
    url = f"sqlite://{tmp_path}/noetl.db"

    async def scenario() -> None:
        async with in_every_state(url, tmp_path) as events:
            await events.sql.execute("UPDATE executions SET crc = 1 WHERE key IN ('key-timer', 'key-done')")
            await events.sql.execute("DELETE FROM playbook_texts")
            store, playbooks = open_stores(url)
            try:
                count, left = await repair(store, Catalog(playbooks, specs).load)
            finally:
                await store.close()
            assert (
                count == 2
                and len(left) == 2
                and all("its waits, slots and durations are unknown" in each for each in left)
            )
            found = {row["key"]: (row["status"], row["due"]) for row in (await rows(events)).values()}
            assert found["key-timer"] == ("running", None) and found["key-done"] == ("success", None)

    asyncio.run(scenario())
